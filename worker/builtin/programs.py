"""Run a small fixed program inside the sandbox, with its arguments safely quoted."""

from __future__ import annotations

import shlex
from functools import cache
from importlib import resources

from sandbox.types import Outcome
from worker.builtin.workplace import Workplace
from worker.errors import ToolError
from worker.tools import CallContext


@cache
def _source(name: str) -> str:
    return resources.files("worker.builtin.inside").joinpath(name).read_text(encoding="utf-8")


def run_program(place: Workplace, call: CallContext, name: str, *arguments: object) -> str:
    """Return what the program `name` printed; raises `ToolError` with what it complains of."""
    words = ["python3", "-I", "-c", _source(name), *map(str, arguments)]
    if any("\0" in word for word in words):
        raise ToolError("an argument contains a NUL character")
    done = place.shell(call, shlex.join(words))
    if done.outcome is Outcome.OK:
        return done.output.rstrip("\n")
    raise ToolError(
        done.output.strip() or f"ended with {done.outcome} ({done.limit or 'no limit'})"
    )
