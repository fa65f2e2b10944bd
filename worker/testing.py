"""Fakes that honour the contracts of the real parts, for tests of whatever stands on them.

`FakeSandbox` runs nothing: a function says what each call did. But it keeps the promises of
`sandbox.base.Sandbox` (an id never runs twice, results are kept, files are files), and it can be
lost at a chosen moment. `ScriptedModel` gives the replies that it was made with, in their order.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from sandbox.errors import Detached, FileRefused, SandboxLost
from sandbox.types import Execution, FileInfo, Interpreter, Outcome, SandboxSpec
from worker.errors import Cancelled, Stop
from worker.messages import Message, Reply, Wire
from worker.models.base import Request
from worker.models.normal import normal_finish, normal_message

Respond = Callable[["FakeSandbox", str, str], Execution]


def ok(output: str = "", **fields: object) -> Execution:
    """An execution that went well."""
    given = {"outcome": Outcome.OK, "output": output, "output_bytes": len(output), **fields}
    given.setdefault("interpreter", Interpreter.KEPT)
    return Execution.model_validate(given)


def echo(sandbox: FakeSandbox, kind: str, text: str) -> Execution:
    """The plainest answer: the text itself."""
    del sandbox
    return ok(text, exit_code=0 if kind == "shell" else None)


class FakeSandbox:
    """See `sandbox.base.Sandbox`."""

    def __init__(self, respond: Respond = echo, spec: SandboxSpec | None = None) -> None:
        self.respond = respond
        self.contents: dict[str, bytes] = {}
        self.ran: list[str] = []  # the text of every call that really ran
        self.is_lost = False
        self.is_closed = False
        self.is_detached = False
        self.place = uuid.uuid4().hex[:12]
        self.cancelled = threading.Event()
        self.spec = spec or SandboxSpec()
        self._results: dict[str, Execution] = {}

    def python(
        self, code: str, *, timeout_s: float | None = None, execution_id: str | None = None
    ) -> Execution:
        return self._execute("python", code, timeout_s, execution_id)

    def shell(
        self, command: str, *, timeout_s: float | None = None, execution_id: str | None = None
    ) -> Execution:
        return self._execute("shell", command, timeout_s, execution_id)

    def recall(self, execution_id: str) -> Execution | None:
        self._check()
        return self._results.get(execution_id)

    def cancel(self) -> None:
        self.cancelled.set()
        if self.is_lost:
            self._check()

    def write_file(self, name: str, source: BinaryIO) -> int:
        self._check()
        if name.startswith("/") or ".." in name.split("/"):
            raise FileRefused(f"{name} is outside the workspace")
        self.contents[name] = source.read()
        return len(self.contents[name])

    def read_file(self, name: str, target: BinaryIO, *, max_bytes: int | None = None) -> int:
        self._check()
        if name not in self.contents:
            raise FileRefused(f"{name} is not there")
        data = self.contents[name]
        limit = self.spec.limits.read_bytes if max_bytes is None else max_bytes
        if len(data) > limit:
            raise FileRefused(f"{name} has {len(data)} bytes, more than {limit}")
        return target.write(data)

    def files(self) -> tuple[FileInfo, ...]:
        self._check()
        return tuple(self.info(name) for name in sorted(self.contents))

    def detach(self) -> None:
        self.is_detached = self.is_detached or not self.is_closed

    def close(self) -> None:
        self.is_closed = self.is_closed or not self.is_detached

    def info(self, name: str, mime: str = "text/plain") -> FileInfo:
        return FileInfo(name=name, size=len(self.contents[name]), mime=mime)

    def _check(self) -> None:
        if self.is_detached:
            raise Detached("this host has let go of the sandbox")
        if self.is_lost or self.is_closed:
            raise SandboxLost("the container was removed from outside")

    def _execute(
        self, kind: str, text: str, timeout_s: float | None, execution_id: str | None
    ) -> Execution:
        del timeout_s
        self._check()
        if execution_id in self._results:
            return self._results[execution_id]
        self.ran.append(text)
        execution = self.respond(self, kind, text)
        self._check()
        if execution_id is not None:
            self._results[execution_id] = execution
        return execution


def say(text: str | None = None, *calls: tuple[str, Wire | str], **fields: object) -> Wire:
    """A message of a model: a text, and calls as (tool, arguments)."""
    made = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    wire: Wire = {"role": "assistant", "content": text, **fields}
    return {**wire, "tool_calls": made} if made else wire


class ScriptedModel:
    """See `worker.models.base.Model`. Keeps the requests that it was asked."""

    name = "scripted"

    def __init__(self, messages: Iterable[Wire | Exception], *, repeat_last: bool = False) -> None:
        self._messages: Sequence[Wire | Exception] = list(messages)
        self._repeat_last = repeat_last
        self.requests: list[Request] = []

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        del timeout_s
        self.requests.append(request)
        if is_cancelled():
            raise Cancelled
        turn = request.turn
        if self._repeat_last:
            turn = min(turn, len(self._messages) - 1)
        if turn >= len(self._messages):
            raise Stop("the script has no more replies", kind="RecordingExhausted")
        message = self._messages[turn]
        if isinstance(message, Exception):
            raise message
        usage = message.get("usage", {})
        return Reply.model_validate(
            {
                "message": _without_usage(message),
                "finish": normal_finish(message.get("finish_reason")),
                "usage": usage,
                "model": self.name,
            }
        )

    def close(self) -> None:
        """Nothing is held open."""


def _without_usage(wire: Wire) -> Message:
    return normal_message({key: value for key, value in wire.items() if key != "usage"})
