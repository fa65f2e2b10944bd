"""Page through the whole output of an earlier call, of which the model saw head and tail."""

from __future__ import annotations

import io
from typing import Annotated

from pydantic import Field

from worker.builtin.workplace import Workplace
from worker.errors import ToolError
from worker.messages import ToolResult
from worker.tools import CallContext, Resume, Tool, tool

PAGE_CHARS = 8000


def read_output_tool(place: Workplace) -> Tool:
    def read_output(
        context: CallContext,
        call: Annotated[int, Field(ge=1, description="number of the call, as its status says")],
        page: Annotated[int, Field(ge=1, description="1 is the first")] = 1,
    ) -> str:
        """Show the whole output of an earlier call, page by page."""
        result = context.history.result(call)
        if result is None:
            raise ToolError(f"there is no finished call {call}")
        text = _whole(place, result)
        pages = max(1, -(-len(text) // PAGE_CHARS))
        if page > pages:
            raise ToolError(f"the output of call {call} has {pages} pages")
        piece = text[(page - 1) * PAGE_CHARS : page * PAGE_CHARS]
        return f"[page {page} of {pages} of call {call}]\n{piece}"

    return tool(read_output, resume=Resume.REPEAT)


def _whole(place: Workplace, result: ToolResult) -> str:
    done = result.execution
    if done is None:
        return result.text
    if not (done.output_truncated and done.output_file):
        return done.output
    spilled = io.BytesIO()
    limits = place.sandbox.spec.limits
    most = min(limits.spill_bytes + 4096, limits.read_bytes)
    place.sandbox.read_file(done.output_file, spilled, max_bytes=most)
    return spilled.getvalue().decode("utf-8", "replace")
