"""Evaluate light expressions without the sandbox's interpreter."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandbox.expression import evaluate
from sandbox.types import Execution
from worker.tools import CallContext, Resume, Tool, tool

_LIMIT_S = 1.0


def calculate_tool() -> Tool:
    return tool(calculate, resume=Resume.REPEAT)


def calculate(
    call: CallContext,
    expression: Annotated[
        str, Field(min_length=1, description="e.g. sqrt(2) * pi, or round(mean([1, 2, 4]), 2)")
    ],
) -> Execution:
    """Evaluate an arithmetic expression exactly with math, statistics and dates."""
    return evaluate(expression, timeout_s=_LIMIT_S, is_cancelled=call.is_cancelled)
