"""The kernel process as the supervisor sees it: started, asked, and not believed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
from collections.abc import Iterable

from . import processes, wire
from .capture import Capture
from .wire import Channel, Frame, Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MAX_REPLY = 2 * 1024 * 1024
MAX_TEXT = 8000
MAX_ITEMS = 500
MAX_FAILURES, MAX_REASON = 50, 400


def prepare() -> None:
    """Load what each kernel needs once, here: ours, and the site packages."""
    import site  # noqa: PLC0415 - none of these is needed to say hello

    from . import kernel, shell, syscalls  # noqa: F401, PLC0415

    site.main()
    shell.program()
    if os.getpid() == 1:
        _furnish_home()
        syscalls.protect(1)  # all that is started from here on inherits it
    _settle()


def preload(names: Iterable[str]) -> list[str]:
    """Load heavy libraries once, here, so that each kernel begins with them; returns failures."""
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module may do anything, sys.exit() included
            failed.append(f"{name}: {type(error).__name__}: {error}"[:MAX_REASON])
    _settle()
    return failed[:MAX_FAILURES]


def _settle() -> None:
    gc.collect()
    processes.give_back_memory()
    gc.freeze()  # the collector would else touch, and so copy, every shared page


def _furnish_home(source: str = "/etc/skel") -> None:
    """Give the new user what the image has for one: caches that libraries else make anew."""
    home = os.environ.get("HOME", "")
    for folder, _, names in os.walk(source):
        target = home + folder[len(source) :]
        try:
            os.makedirs(target, exist_ok=True)
            for name in names:
                there, here = os.path.join(folder, name), os.path.join(target, name)
                with open(there, "rb") as old, open(here, "wb") as new:
                    new.write(old.read())
        except OSError:
            return  # a courtesy: libraries do without


class KernelProcess:
    """One interpreter process; raises OSError if it cannot be started.

    Its pid comes from `fork`, told its output, and its ends of the pipes for requests and answers.
    """

    def __init__(
        self, fork: Callable[[list[int]], int], value_limit: int, capture: Capture
    ) -> None:
        # Pipes, not a socket: user code could send open files over one, and some files make
        # whoever closes them last wait for an hour.
        answers, answer_fd = os.pipe()
        request_fd, requests = os.pipe()
        self.channel = Channel(answers, requests, MAX_REPLY)
        try:
            self.pid = fork([capture.write_fd, request_fd, answer_fd])
        except OSError:
            self.channel.close()
            raise
        finally:
            os.close(request_fd)
            os.close(answer_fd)
        self.process = processes.inspect(self.pid)
        self.capture = capture
        self.names: list[str] = []
        self._value_limit = value_limit
        self.cpu_s = 0.0
        self._reply: Frame | None = None
        self._is_faulty = False  # it has said what it may not

    def ask(self, text: str, number: int) -> None:
        """Send code; the answer comes by `read` and `take_reply`."""
        self._reply = None
        self.channel.send({"kind": "run", "code": text, "number": number})

    def read(self) -> bool:
        """Take what it says; False when it has gone or says what it may not."""
        alive = self.channel.receive(self._keep, self._blame)
        return alive and not self._is_faulty

    def _blame(self, _why: str) -> None:
        self._is_faulty = True

    def _keep(self, frame: Frame) -> None:
        self._reply = frame

    def take_reply(self, number: int) -> dict[str, Any] | None:
        """The answer to call `number`, if it is there; raises `Malformed`."""
        reply, self._reply = self._reply, None
        if self._is_faulty:  # nothing that came with them, or comes after them, counts
            return None
        if reply is None or reply.get("number") != number:
            return None
        checked = _checked(reply, self._value_limit)
        self.names = checked["names"]
        self.cpu_s += checked["cpu_s"]
        return checked

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _checked(reply: Frame, value_limit: int) -> dict[str, Any]:
    """Rebuild a reply from the parts that have the right shape; raises `Malformed`."""
    exited = reply.get("exited")
    return {
        "value": _bounded(reply.get("value"), value_limit),
        "error": _error(reply.get("error")),
        "exited": None if exited is None else int(wire.number(reply, "exited", 0, 255)),
        "names": _strings(reply, "names"),
        "cpu_s": wire.number(reply, "cpu_s", 0, 10**9),
    }


def _bounded(value: Any, limit: int) -> Frame | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Malformed("value is not an object")
    head, tail = wire.text(value, "head", MAX_REPLY), wire.text(value, "tail", MAX_REPLY)
    if len(wire.unpack(head)) + len(wire.unpack(tail)) > limit:
        raise Malformed("value is longer than it may be")
    return {"head": head, "tail": tail, "bytes": int(wire.number(value, "bytes", 0, 2**62))}


def _error(error: Any) -> Frame | None:
    if error is None:
        return None
    if not isinstance(error, dict) or not isinstance(error.get("facts"), dict):
        raise Malformed("error is not an object with facts")
    line, source = error.get("line"), error.get("source")
    return {
        "type": wire.text(error, "type", MAX_TEXT),
        "message": wire.text(error, "message", MAX_TEXT),
        "line": None if line is None else int(wire.number(error, "line", 0, 2**31)),
        "source": None if source is None else wire.text(error, "source", MAX_TEXT),
        "frames": _strings(error, "frames"),
        "facts": {key[:80]: _strings(error["facts"], key) for key in list(error["facts"])[:10]},
    }


def _strings(frame: Frame, key: str) -> list[str]:
    return [item[:MAX_TEXT] for item in wire.texts(frame, key)[:MAX_ITEMS]]
