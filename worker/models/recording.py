"""Keep the replies of another model in a file that `recorded` can replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from worker.errors import InputInvalid, Stop
from worker.messages import Finish, Reply
from worker.models.base import Model, Request


class RecordingModel:
    """Wraps a model. The file is begun anew with the first reply of a job."""

    def __init__(self, model: Model, path: Path) -> None:
        self.name = model.name
        self._model = model
        self._path = path
        try:
            if path.is_fifo():  # opening it would wait for a reader
                raise InputInvalid(f"cannot write the recording {path}: it is a pipe, not a file")
            path.open("a").close()
        except OSError as error:
            raise InputInvalid(f"cannot write the recording {path}: {error.strerror}") from error

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        reply = self._model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
        wire = reply.message.to_wire()
        if reply.finish is not Finish.STOP:
            wire["finish_reason"] = reply.finish.value
        try:
            with self._path.open("a" if request.turn else "w", encoding="utf-8") as lines:
                lines.write(json.dumps(wire, ensure_ascii=False) + "\n")
        except OSError as error:
            why = f"cannot write the recording {self._path}: {error.strerror}"
            raise Stop(why, kind="RecordingFailed") from error
        return reply

    def close(self) -> None:
        self._model.close()
