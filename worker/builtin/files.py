"""Read and write text files of the workspace."""

from __future__ import annotations

import io
import mimetypes
import posixpath
from typing import Annotated

from pydantic import Field

from sandbox.types import FileInfo
from worker.builtin.programs import run_program
from worker.builtin.workplace import Workplace
from worker.tools import CallContext, Resume, Said, Tool, tool

Name = Annotated[str, Field(min_length=1, description="file name, relative to the current folder")]


def read_tool(place: Workplace) -> Tool:
    def read_file(
        call: CallContext,
        name: Name,
        offset: Annotated[int, Field(ge=1, description="first line")] = 1,
        lines: Annotated[int, Field(ge=1, le=2000, description="how many lines")] = 200,
    ) -> str:
        """Show lines of a text file, numbered."""
        return run_program(place, call, "read.py", name, offset, lines)

    return tool(read_file, resume=Resume.REPEAT)


def write_tool(place: Workplace) -> Tool:
    def write_file(
        name: Name, content: Annotated[str, Field(description="the whole text")]
    ) -> Said:
        """Write a text file; what it held before is replaced."""
        data = content.encode("utf-8", "replace")
        size = place.sandbox.write_file(name, io.BytesIO(data))
        mime = mimetypes.guess_type(name)[0] or "text/plain"
        info = FileInfo(name=posixpath.normpath(name), size=size, mime=mime)
        return Said(text=f"wrote {size} bytes to {name}", files=(info,))

    return tool(write_file, resume=Resume.REPEAT)
