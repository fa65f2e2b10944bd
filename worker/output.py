"""Standard output and error as streams that say, and remember, that they cannot be written."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TextIO


class OutputLost(OSError):
    """What was printed could not be written.

    It has no `errno`: where one says that a pipe was closed, Typer ends the program by itself.
    """

    def __init__(self, why: OSError) -> None:
        super().__init__(why.strerror or str(why))
        self.is_closed = why.errno == errno.EPIPE  # nobody reads any more, which is no failure


class Output(io.TextIOWrapper):
    """A stream of this process. After the first failure it leads nowhere, and fails no more."""

    lost: OutputLost | None = None

    @classmethod
    def over(cls, stream: TextIO | None) -> Self:
        """Put it in the place of a stream; of one that the process was started without, too."""
        if not isinstance(stream, io.TextIOWrapper):
            stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.devnull, "w")))
        encoding, is_line_buffered = stream.encoding, stream.line_buffering
        return cls(
            stream.detach(),
            encoding=encoding,
            errors="replace",
            line_buffering=is_line_buffered,
        )

    def write(self, text: str) -> int:
        with self._remembering():
            return super().write(text)

    def flush(self) -> None:
        with self._remembering():
            super().flush()

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is still in the buffer would be complained about at the very end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            self.lost = OutputLost(error)
            raise self.lost from error


def guard_output() -> Output:
    """Let what is printed go through `Output`; returns standard output."""
    sys.stderr = Output.over(sys.stderr)
    sys.stdout = output = Output.over(sys.stdout)
    return output
