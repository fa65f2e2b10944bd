"""Search the text files of the workspace."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from worker.builtin.programs import run_program
from worker.builtin.workplace import Workplace
from worker.tools import CallContext, Resume, Tool, tool

_MOST_LINES = 100


def search_tool(place: Workplace) -> Tool:
    def search_files(
        call: CallContext,
        pattern: Annotated[str, Field(min_length=1, description="regular expression of Python")],
        glob: Annotated[str, Field(min_length=1, description="which files, e.g. *.log")] = "*",
    ) -> str:
        """Search all text files for lines that match a pattern."""
        return run_program(place, call, "search.py", pattern, glob, _MOST_LINES)

    return tool(search_files, resume=Resume.REPEAT)
