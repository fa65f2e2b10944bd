"""Put a reply that comes in pieces together, into the shape of one that comes whole.

Nothing of a stream is a reply before the endpoint has said why it ended: a connection that breaks
looks like an end to most readers, and half a command is another command. Seen in the wild: every
parallel call with index 0 or none, ids and names repeated in each piece, comments and empty lines
to keep the line open, errors in the middle, whole messages in place of pieces.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from worker.errors import ModelUnavailable
from worker.messages import Wire
from worker.relaxed import is_deep

DONE = "[DONE]"
_TOO_DEEP = "too many brackets in each other"
_MOST_LINES = 200  # of one object in a stream, which is read anew with each of them
_JOINED = ("content", "reasoning_content", "reasoning", "thinking", "refusal")
_APART = {"role", "tool_calls", "function_call", *_JOINED}


class Broken(ModelUnavailable):
    """What came is not a whole reply."""


class Pulse:
    """When something came last, and how long there may be nothing."""

    def __init__(self, idle_s: float | None) -> None:
        self._idle_s = idle_s
        self._last: float | None = None

    def beat(self) -> None:
        self._last = time.monotonic()

    def check(self) -> None:
        """Raise `Broken` when nothing has come for too long since something did."""
        if self._idle_s is None or self._last is None:
            return
        if time.monotonic() - self._last > self._idle_s:
            raise Broken(f"the stream stands still for {self._idle_s:g} s")


def chunks(lines: Iterable[str]) -> Iterator[Wire]:
    """The objects of a stream of server-sent events, as far as its end. Raises `Broken`."""
    data: list[str] = []
    event = ""
    for line in lines:
        field, _, value = line.partition(":")
        value = value.strip()
        if not line:
            _refuse_half(data)
            data, event = [], ""
        elif field == "event":
            event = value
        elif field in {"data", "error"} and value == DONE:
            return
        elif field in {"data", "error"} and (data or value.startswith("{")):
            data.append(value)
        elif line.startswith("{"):  # an error that was written into the stream as it is
            data.append(line)
        if (found := _json("\n".join(data))) is not None:
            is_error = "error" in (field, event) and not found.get("error")
            yield {"error": found} if is_error else found
            data = []
        if len(data) > _MOST_LINES:
            _refuse_half(data)
    _refuse_half(data)


def read_json(text: str) -> Any:  # noqa: ANN401 - whatever came
    """Read JSON; null for numbers that are none, which nobody could be sent.

    Raises `ValueError`, also for what is nested too deeply to be stored or shown.
    """
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if is_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _json(text: str) -> Any:  # noqa: ANN401 - whatever came
    if not text.startswith("{"):
        return None
    try:
        return read_json(text)
    except ValueError:
        return None


def _refuse_half(data: list[str]) -> None:
    """Noise is let go; what begins as an object and is none has lost a part of the reply."""
    if data:
        raise Broken("a piece of the stream is no JSON")


def assembled(pieces: Iterable[Wire]) -> Wire:
    """The whole reply. Raises `Broken` for one that did not come to its end.

    An error in the stream is returned as an endpoint sends it without one.
    """
    building = _Building()
    for piece in pieces:
        if error := _error_in(piece):
            return {"error": error}
        building.add(piece)
    return building.whole()


def _error_in(piece: Wire) -> Any:  # noqa: ANN401 - whatever came
    if piece.get("error"):
        return piece["error"]
    return piece if piece.get("object") == "error" else None


class _Building:
    """A reply as far as it has come. Of several choices only the first is built."""

    def __init__(self) -> None:
        self._wire: Wire = {}
        self._message: Wire = {}
        self._texts: dict[str, list[str]] = {}
        self._calls = _Calls()
        self._choice: object = None
        self._finish: object = None

    def add(self, piece: Wire) -> None:
        self._wire.update({k: v for k, v in piece.items() if k != "choices" and v is not None})
        choices = piece.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._add_choice(choice)

    def _add_choice(self, choice: Wire) -> None:
        index = choice.get("index") or 0
        if self._choice is None:
            self._choice = index
        if index != self._choice:
            return
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._add_delta(delta)
        elif isinstance(choice.get("message"), dict) and not self._has_any():
            self._add_delta(choice["message"])
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]

    def _has_any(self) -> bool:
        return bool(self._texts or self._calls.made or self._message)

    def _add_delta(self, delta: Wire) -> None:
        for name in _JOINED:
            self._add_text(name, delta.get(name))
        calls = delta.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        if not calls and isinstance(delta.get("function_call"), dict):
            calls = [{"index": 0, "function": delta["function_call"]}]
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                self._calls.add(call)
        for name, value in delta.items():
            if name not in _APART and value is not None:
                self._add_other(name, value)

    def _add_other(self, name: str, value: object) -> None:
        old = self._message.get(name)
        if isinstance(old, list) and isinstance(value, list):
            old.extend(value)
        else:
            self._message[name] = list(value) if isinstance(value, list) else value

    def _add_text(self, name: str, value: object) -> None:
        if isinstance(value, str) and value:
            self._texts.setdefault(name, []).append(value)
        elif isinstance(value, list | dict) and value:  # content as parts
            parts = value if isinstance(value, list) else [value]
            self._message.setdefault(f"{name}_parts", []).extend(parts)

    def whole(self) -> Wire:
        if not self._finish:
            raise Broken("the stream ended before the reply did: no finish_reason")
        message = {"role": "assistant", **self._message}
        for name in _JOINED:
            texts, parts = self._texts.get(name, []), message.pop(f"{name}_parts", [])
            if parts:
                message[name] = [*parts, *([{"type": "text", "text": "".join(texts)}])]
            elif texts:
                message[name] = "".join(texts)
        if self._calls.made:
            message["tool_calls"] = self._calls.made
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return {**self._wire, "choices": [choice]}


class _Calls:
    """Calls as far as they have come, each in the shape of a whole one."""

    def __init__(self) -> None:
        self.made: list[Wire] = []
        self._latest: dict[object, Wire] = {}  # by their index

    def add(self, piece: Wire) -> None:
        function = piece.get("function")
        function = function if isinstance(function, dict) else piece
        name, arguments = function.get("name"), function.get("arguments")
        call = self._of(piece, name if isinstance(name, str) else "")
        made = call["function"]
        if isinstance(name, str) and name != made["name"]:
            made["name"] += name
        if isinstance(arguments, str):
            made["arguments"] += arguments
        elif arguments is not None:  # as an object, and so whole
            made["arguments"] = json.dumps(arguments, ensure_ascii=False)
        known = {"index", "function", "name", "arguments", "type"} | ({"id"} & call.keys())
        call.update({k: v for k, v in piece.items() if k not in known and v})

    def _of(self, piece: Wire, name: str) -> Wire:
        """The call that a piece belongs to; a new one if it begins one."""
        index = piece.get("index")
        key = index if isinstance(index, int | str) else None
        latest = self._latest.get(key) if key is not None else None
        if latest is None and key is None and self.made:
            latest = self.made[-1]
        if latest is not None and not _begins(piece, name, latest):
            return latest
        new: Wire = {"type": "function", "function": {"name": "", "arguments": ""}}
        self.made.append(new)
        self._latest[key] = new
        return new


def _begins(piece: Wire, name: str, latest: Wire) -> bool:
    """Whether a piece with the index of an earlier call, or with none, begins a new call.

    An id of its own together with a name does. Without ids another name does, unless it may be a
    further piece of the one before, and the same name, which some repeat with every piece, once the
    arguments before it are whole.
    """
    made = latest["function"]
    if not name or not made["name"]:
        return False
    identity, before = piece.get("id"), latest.get("id")
    if identity and before:
        return bool(identity != before)
    if name != made["name"]:
        return bool(made["arguments"]) or "type" in piece
    return _json(made["arguments"]) is not None
