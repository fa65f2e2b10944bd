"""A model whose replies are read for calls that are text, and which can be asked in text.

With the protocol `text` it always is, and a call in the form of our prompt is nothing to report.
With `auto` the model is offered tools natively, and a reply that is a call all the same becomes
one, reported as repaired. From then on it is asked in text, as long as it has made no native call;
so it is where the endpoint says that it takes no tools. What counts as a call:
`worker.models.text_calls`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from worker.conversation import chars_of
from worker.errors import ToolsUnsupported
from worker.messages import Finish, Reply, ToolCall
from worker.models.base import Model, Request
from worker.models.text_calls import (
    Offered,
    Written,
    goal_of,
    read_asked_code,
    read_calls,
    read_code,
)
from worker.models.text_tools import TextTools

_NOT_NATIVE = "the call came as text, not through the tool-call interface"
_NOT_ASKED = "the call was not written as it was asked for"
_ALLOWED = "triple-quoted strings were escaped"  # by our prompt


class TextProtocol:
    """Wraps a model; see `worker.models.base.Model`."""

    def __init__(self, model: Model, *, in_text: bool = False) -> None:
        self.name = model.name
        self._model = model
        self._in_text = in_text
        self._text = TextTools()

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        deadline = time.monotonic() + timeout_s
        remarks: tuple[str, ...] = ()
        if not self._is_in_text(request):
            try:
                reply = self._model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
            except ToolsUnsupported as error:
                remarks = (f"{self.name} is asked in text from now on: {error}",)
                self._in_text = True
            else:
                return self._read(reply, request)
        left_s = max(0.0, deadline - time.monotonic())
        written = self._text.rewritten(request)
        reply = self._model.reply(written, timeout_s=left_s, is_cancelled=is_cancelled)
        told = {"remarks": (*remarks, *reply.remarks), "request_chars": chars_of(written.messages)}
        return self._read(reply.model_copy(update=told), request)

    def _is_in_text(self, request: Request) -> bool:
        """Whether it is to be asked in text: it must be, or has made all its calls so."""
        calls = list(_calls(request))
        return self._in_text or (bool(calls) and all(call.is_text for call in calls))

    def close(self) -> None:
        self._model.close()

    def _read(self, reply: Reply, request: Request) -> Reply:
        if reply.calls or not request.tools or reply.finish is not Finish.STOP:
            return reply
        written = self._written(reply.text, request)
        if written is None:
            return reply
        in_text = self._is_in_text(request)
        calls = tuple(_noted(call, written, in_text=in_text) for call in written.calls)
        changed = {"content": written.said or None, "tool_calls": calls}
        message = reply.message.model_copy(update=changed)
        return reply.model_copy(update={"message": message})

    def _written(self, text: str, request: Request) -> Written | None:
        """The calls of a reply; of a model that makes calls natively, code is shown and not one."""
        offered = Offered.of(request.tools)
        if found := read_calls(text, offered):
            return found
        if self._is_in_text(request):
            return read_asked_code(text, offered, goal_of(request))
        if any(not call.is_text for call in _calls(request)):
            return None
        return read_code(text, offered, goal_of(request))


def _noted(call: ToolCall, written: Written, *, in_text: bool) -> ToolCall:
    """Say what was unusual about a call: what our prompt has asked for is not."""
    mended = (call.repaired or "").split("; ")
    if in_text:
        notes = [note for note in mended if note != _ALLOWED]
        notes = notes if written.is_usual else [_NOT_ASKED, *notes]
    else:
        notes = [_NOT_NATIVE, *mended]
    repaired = "; ".join(filter(None, notes)) or None
    return call.model_copy(update={"repaired": repaired, "is_text": True})


def _calls(request: Request) -> Iterator[ToolCall]:
    return (call for message in request.messages for call in message.tool_calls)
