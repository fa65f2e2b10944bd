"""Run Python and shell commands in the job's sandbox."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandbox.types import Execution
from worker.builtin.workplace import Workplace
from worker.tools import CallContext, Resume, Tool, tool

Timeout = Annotated[float | None, Field(gt=0, description="seconds; default 30 or as set")]


def python_tool(place: Workplace) -> Tool:
    def python_interpreter(
        call: CallContext,
        code: Annotated[str, Field(min_length=1, description="Python code; print() to see")],
        timeout_s: Timeout = None,
    ) -> Execution:
        """Run Python code. Variables and imports are kept between calls.

        Shows what is printed and the value of the last expression. Open plots are saved as PNG.
        """
        return place.python(call, code, timeout_s)

    return tool(python_interpreter, resume=Resume.BY_ID, recall=place.recall)


def shell_tool(place: Workplace) -> Tool:
    def shell(
        call: CallContext,
        command: Annotated[str, Field(min_length=1, description="a bash command or script")],
        timeout_s: Timeout = None,
    ) -> Execution:
        """Run a bash command in the folder of the files. Nobody can type into it."""
        return place.shell(call, command, timeout_s)

    return tool(shell, resume=Resume.BY_ID, recall=place.recall)
