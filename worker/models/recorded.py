"""A model that replays stored replies: for tests, demonstrations, and bug reports.

A recording is JSON lines; each line is one assistant message of the chat API (`role`, `content`,
`tool_calls`), so that anybody can write one by hand. A line may also carry the `finish_reason`
that came with its message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from worker.errors import InputInvalid, RecordingInvalid, Stop
from worker.messages import Reply, Wire
from worker.models.base import Request
from worker.models.normal import normal_finish, normal_message


class RecordedModel:
    """See `worker.models.base.Model`. Which reply is next follows from the request alone."""

    def __init__(self, path: Path) -> None:
        self.name = f"recording {path.name}"
        self._path = path
        self._replies = _read(path)

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        del timeout_s, is_cancelled
        if request.turn >= len(self._replies):
            raise Stop(
                f"the recording {self._path} has no more replies after {len(self._replies)}",
                kind="RecordingExhausted",
            )
        return self._replies[request.turn].model_copy(update={"model": self.name})

    def close(self) -> None:
        """Nothing is held open."""


def _read(path: Path) -> list[Reply]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordingInvalid(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise InputInvalid(f"cannot read the recording {path}: {error.strerror}") from error
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise RecordingInvalid(f"{path} has no replies")
    return [_reply(line, f"{path}, line {number}") for number, line in lines]


def _reply(line: str, place: str) -> Reply:
    try:
        wire = json.loads(line)
    except ValueError as error:
        raise RecordingInvalid(f"{place}: not JSON: {error}") from error
    if fault := _fault(wire):
        raise RecordingInvalid(f"{place}: {fault}")
    return Reply(message=normal_message(wire), finish=normal_finish(wire.get("finish_reason")))


def _fault(wire: object) -> str | None:
    if not isinstance(wire, dict):
        return "not an object"
    if wire.get("role", "assistant") != "assistant":
        return f"role is {wire['role']!r}; a recording holds the model's messages only"
    if "content" not in wire and "tool_calls" not in wire:
        return "neither content nor tool_calls"
    if not isinstance(wire.get("content"), str | list | None):
        return "content is not text"
    calls = wire.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        return "tool_calls is not a list of {id, type, function: {name, arguments}}"
    return None


def _is_call(call: object) -> bool:
    function: Wire | None = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
