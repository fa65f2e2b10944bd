"""Keep the replies of another model in a file that `recorded` can replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from worker.errors import InputInvalid, Stop
from worker.messages import Finish, Reply
from worker.models.base import Model, Request


def check_writable(path: Path) -> None:
    """Raise `InputInvalid` unless a recording can be written there."""
    try:
        if path.is_fifo():  # opening it would wait for a reader
            raise InputInvalid(f"cannot write the recording {path}: it is a pipe, not a file")
        path.open("a").close()
    except OSError as error:
        raise InputInvalid(f"cannot write the recording {path}: {error.strerror}") from error


def line_of(reply: Reply) -> str:
    """A reply as it stands in a recording."""
    wire = reply.message.to_wire()
    if reply.finish is not Finish.STOP:
        wire["finish_reason"] = reply.finish.value
    return json.dumps(wire, ensure_ascii=False) + "\n"


class RecordingModel:
    """Wraps a model. The file is begun anew with the first reply of a job."""

    def __init__(self, model: Model, path: Path) -> None:
        self.name = model.name
        self._model = model
        self._path = path
        check_writable(path)

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        reply = self._model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
        if request.is_summary:
            return reply
        try:
            with self._path.open("a" if request.turn else "w", encoding="utf-8") as lines:
                lines.write(line_of(reply))
        except OSError as error:
            why = f"cannot write the recording {self._path}: {error.strerror}"
            raise Stop(why, kind="RecordingFailed") from error
        return reply

    def close(self) -> None:
        self._model.close()
