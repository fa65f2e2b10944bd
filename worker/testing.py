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
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO

from sandbox.errors import (
    Detached,
    FileRefused,
    LinkLost,
    SandboxLost,
    SandboxUnavailable,
    StaleGeneration,
)
from sandbox.types import Execution, FileInfo, Interpreter, Outcome, SandboxSpec
from worker.errors import Cancelled, ModelUnavailable, Stop
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


class _Call:
    """A call in flight, in a thread of its own: it goes on when its host has let go."""

    def __init__(self, execution_id: str, run: Callable[[], Execution]) -> None:
        self.id = execution_id
        self._run = run
        self._done = threading.Event()
        self._execution: Execution | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._work, daemon=True, name=f"fake-{execution_id}").start()

    def _work(self) -> None:
        try:
            self._execution = self._run()
        except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
            self._error = error
        self._done.set()

    def is_done(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def result(self) -> Execution:
        if self._error is not None:
            raise self._error
        if self._execution is None:
            raise AssertionError("it is not done")
        return self._execution


@dataclass
class _Inside:
    """What of a fake sandbox is inside, and so outlives its host."""

    generation: int
    place: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    contents: dict[str, bytes] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    results: dict[str, Execution] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    running: _Call | None = None
    is_lost: bool = False
    is_closed: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeSandbox:
    """See `sandbox.base.Sandbox`. `adopted` gives the same one to another host.

    `is_lost` loses what is inside; `is_cut` breaks this host's link to it and no more.
    """

    def __init__(
        self,
        respond: Respond = echo,
        spec: SandboxSpec | None = None,
        inside: _Inside | None = None,
    ) -> None:
        self.respond = respond
        self.spec = spec or SandboxSpec()
        self.is_cut = False
        self.is_detached = False
        self._inside = inside or _Inside(self.spec.generation)
        self._to_acknowledge: list[str] = []

    def adopted(self, spec: SandboxSpec | None = None) -> FakeSandbox:
        """Take it over, by default with the next generation."""
        higher = self.spec.model_copy(update={"generation": self._inside.generation + 1})
        host = FakeSandbox(self.respond, spec or higher, self._inside)
        host._check()
        self._inside.generation = host.spec.generation
        return host

    @property
    def place(self) -> str:
        return self._inside.place

    @property
    def contents(self) -> dict[str, bytes]:
        return self._inside.contents

    @property
    def ran(self) -> list[str]:
        """The text of every call that really ran."""
        return self._inside.ran

    @property
    def cancelled(self) -> threading.Event:
        return self._inside.cancelled

    @property
    def is_closed(self) -> bool:
        return self._inside.is_closed

    @property
    def is_lost(self) -> bool:
        return self._inside.is_lost

    @is_lost.setter
    def is_lost(self, value: bool) -> None:
        self._inside.is_lost = value

    @property
    def _results(self) -> dict[str, Execution]:
        return self._inside.results

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
        with self._inside.lock:
            known = self._known(execution_id)
        return self._settle(execution_id, known) if known else None

    def cancel(self) -> None:
        self.cancelled.set()
        if not self.is_closed:
            self._check()

    def write_file(self, name: str, source: BinaryIO) -> int:
        self._check()
        if not _is_in_workspace(name):
            raise FileRefused(f"{name} is outside the workspace")
        if any(_is_below(name, known) or _is_below(known, name) for known in self.contents):
            raise FileRefused(f"{name}: a folder and a file cannot have one name")
        self.contents[name] = source.read()
        return len(self.contents[name])

    def read_file(self, name: str, target: BinaryIO, *, max_bytes: int | None = None) -> int:
        self._check()
        if name not in self.contents:
            raise FileRefused(f"{name} is not there")
        data = self.contents[name]
        limit = self.spec.limits.read_bytes if max_bytes is None else max_bytes
        if len(data) > limit:
            raise FileRefused(f"{name}: {len(data)} bytes, the limit is {limit}")
        return target.write(data)

    def files(self) -> tuple[FileInfo, ...]:
        self._check()
        return tuple(self.info(name) for name in sorted(self.contents))

    def detach(self) -> None:
        self.is_detached = self.is_detached or not self.is_closed

    def close(self) -> None:
        if not self.is_detached and self.spec.generation >= self._inside.generation:
            self._inside.is_closed = True

    def info(self, name: str, mime: str = "text/plain") -> FileInfo:
        return FileInfo(name=name, size=len(self.contents[name]), mime=mime)

    def _check(self) -> None:
        self._check_host()
        if self.is_closed:
            raise SandboxLost("the sandbox is closed")
        if self.is_lost:
            raise SandboxLost("the container was removed from outside")
        if self.is_cut:
            raise LinkLost("the link to the sandbox broke; the sandbox runs on")

    def _check_host(self) -> None:
        if self.is_detached:
            raise Detached("this host has let go of the sandbox")
        if self.spec.generation < self._inside.generation:
            raise StaleGeneration(f"generation {self._inside.generation} owns this sandbox")

    def _execute(
        self, kind: str, text: str, timeout_s: float | None, execution_id: str | None
    ) -> Execution:
        del timeout_s
        self._check()
        execution_id = execution_id or uuid.uuid4().hex
        inside = self._inside
        with inside.lock:
            self._acknowledge_all_but(execution_id)
            known = self._known(execution_id)
            if known is None:
                if inside.running is not None:
                    raise _conflict(f"busy: {inside.running.id} is running")
                inside.ran.append(text)
                known = inside.running = _Call(
                    execution_id, lambda: self._run(execution_id, kind, text)
                )
        return self._settle(execution_id, known)

    def _run(self, execution_id: str, kind: str, text: str) -> Execution:
        inside = self._inside
        try:
            execution = self.respond(self, kind, text)
            inside.results[execution_id] = execution
        finally:
            with inside.lock:
                inside.running = None
        return execution

    def _known(self, execution_id: str) -> _Call | Execution | None:
        inside = self._inside
        if inside.running is not None and inside.running.id == execution_id:
            return inside.running
        if execution_id in inside.acknowledged:
            raise _conflict(f"already acknowledged: {execution_id}")
        return inside.results.get(execution_id)

    def _settle(self, execution_id: str, known: _Call | Execution) -> Execution:
        if isinstance(known, _Call):
            while not known.is_done(0.01):
                self._check_host()
            self._check()
            known = known.result()
        self._to_acknowledge.append(execution_id)
        return known

    def _acknowledge_all_but(self, execution_id: str) -> None:
        for known in set(self._to_acknowledge) - {execution_id}:
            self._inside.acknowledged.add(known)
            self._inside.results.pop(known, None)
        self._to_acknowledge = []


def _is_in_workspace(name: str) -> bool:
    path = PurePosixPath(name)
    is_plain = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return bool(path.parts) and is_plain and all(len(p.encode()) < 256 for p in path.parts)  # noqa: PLR2004


def _is_below(name: str, folder: str) -> bool:
    return name.startswith(folder + "/")


def _conflict(why: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"the sandbox is at something else: {why}")


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
    """See `worker.models.base.Model`. Keeps the requests that it was asked.

    Those for summaries are apart, and answered with `summaries` in their order.
    """

    name = "scripted"

    def __init__(
        self,
        messages: Iterable[Wire | Exception],
        *,
        repeat_last: bool = False,
        summaries: Iterable[Wire | Exception] = (),
    ) -> None:
        self._messages: Sequence[Wire | Exception] = list(messages)
        self._repeat_last = repeat_last
        self._summaries = iter(summaries)
        self.requests: list[Request] = []
        self.summaries_asked: list[Request] = []

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        del timeout_s
        asked = self.summaries_asked if request.is_summary else self.requests
        asked.append(request)
        if is_cancelled():
            raise Cancelled
        message = self._summary() if request.is_summary else self._turn(request.turn)
        if isinstance(message, Exception):
            raise message
        usage = message.get("usage", {})
        is_last = not self._repeat_last and request.turn + 1 == len(self._messages)
        return Reply.model_validate(
            {
                "is_last": is_last,
                "message": _without_usage(message),
                "finish": normal_finish(message.get("finish_reason")),
                "usage": usage,
                "model": self.name,
            }
        )

    def _turn(self, turn: int) -> Wire | Exception:
        if self._repeat_last:
            turn = min(turn, len(self._messages) - 1)
        if turn >= len(self._messages):
            raise Stop("the script has no more replies", kind="RecordingExhausted")
        return self._messages[turn]

    def _summary(self) -> Wire | Exception:
        return next(self._summaries, ModelUnavailable("the script has no more summaries"))

    def close(self) -> None:
        """Nothing is held open."""


def _without_usage(wire: Wire) -> Message:
    return normal_message({key: value for key, value in wire.items() if key != "usage"})
