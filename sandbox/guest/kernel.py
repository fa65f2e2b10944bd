"""The interpreter of one job: runs code in one namespace and says what came of it.

This process belongs to user code. What it reports is a claim, checked for shape by the
supervisor; time limits, memory and exit are the supervisor's to judge.
"""

from __future__ import annotations

import ast
import builtins
import io
import linecache
import os
import resource
import signal
import sys
import time
import types
from functools import partial

from . import display, options, report, wire
from .capture import Bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_NAMES = 500
MAX_NAME = 80
CO_COROUTINE = 0x80  # as in inspect, which takes long to import
RECEIVE_SIZE = 64 * 1024  # for more, malloc maps pages anew each time
BUILTINS = dict(vars(builtins))
LINES = linecache.cache  # user code may put something else in its place


class Interpreter:
    """One namespace, kept from call to call, like a notebook's."""

    def __init__(self, workspace: str, value_limit: int) -> None:
        self._workspace = workspace
        self._value_limit = value_limit
        self._running = False
        self._figures = 0
        self._loop: Any = None
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._module

    def execute(self, code: str, number: int) -> dict[str, Any]:
        """Run one call; returns the kernel's half of its result."""
        name = f"<call {number}>"
        linecache.cache = LINES
        LINES[name] = (len(code), None, code.splitlines(keepends=True), name)
        started = _cpu_s()
        result = self._guarded(code, name)
        result["names"] = self.names()
        result["cpu_s"] = max(0.0, _cpu_s() - started)
        return result

    def _guarded(self, code: str, name: str) -> dict[str, Any]:
        signal.signal(signal.SIGINT, self._interrupted)
        if not builtins.__dict__.keys() >= BUILTINS.keys():
            _restore_builtins()  # else code that has deleted one ends all others
        try:
            self._running = True
            value = self._run(code, name)
            # Still under the time limit: a figure can take as long as any other code.
            self._figures += len(display.save_figures(self._workspace, self._figures))
            return {"value": value.frame() if value else None}
        except SystemExit as stop:
            return {"exited": _exit_code(stop.code)}
        except BaseException as error:
            self._running = False
            return {"error": report.describe(error, name, self._module.__dict__, self._workspace)}
        finally:
            self._running = False
            _flush()

    def _interrupted(self, _number: int, _frame: types.FrameType | None) -> None:
        # Between calls a late SIGINT must not end the interpreter.
        if self._running:
            raise KeyboardInterrupt

    def _run(self, code: str, name: str) -> Bounded | None:
        value = self._evaluate(_parts(code, name))
        if value is None:
            return None
        self._module.__dict__["_"] = value
        bounded = Bounded(self._value_limit)
        bounded.add(display.text(value).encode("utf-8", "backslashreplace"))
        return bounded

    def _evaluate(self, parts: list[types.CodeType]) -> Any:
        """Run the parts of a call; in an event loop, kept between calls, if one of them waits."""
        if any(part.co_flags & CO_COROUTINE for part in parts):
            import asyncio  # noqa: PLC0415 - half of the guest's start, and few calls need it

            self._loop = self._loop or asyncio.new_event_loop()
            return self._loop.run_until_complete(self._evaluate_waiting(parts))
        value = None
        for part in parts:
            value = eval(part, self._module.__dict__)
        return value

    async def _evaluate_waiting(self, parts: list[types.CodeType]) -> Any:
        value = None
        for part in parts:
            value = eval(part, self._module.__dict__)
            if part.co_flags & CO_COROUTINE:
                value = await value
        return value

    def names(self) -> list[str]:
        """The names that user code has defined, in the order in which it did."""
        names = [name for name in list(self._module.__dict__) if type(name) is str]
        return [name[:MAX_NAME] for name in names if not name.startswith("_")][:MAX_NAMES]


def _restore_builtins() -> None:
    for name, value in BUILTINS.items():
        builtins.__dict__.setdefault(name, value)


def _parts(code: str, name: str) -> list[types.CodeType]:
    """Compile the statements of a call, and its last expression (or None) for its value."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = last.value if isinstance(last, ast.Expr) else ast.Constant(None, lineno=1, col_offset=0)
    # Not to inherit this module's own `from __future__ import annotations`.
    compiled = partial(
        compile, filename=name, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    expression = ast.fix_missing_locations(ast.Expression(value))
    return [compiled(tree, mode="exec"), compiled(expression, mode="eval")]


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # as the interpreter itself does
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: S112 - user code may have put anything in its place
            continue


def _open_streams() -> None:
    """Unbuffered, so that what was printed before a time limit or a crash is not lost."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w", closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process


def serve(request_fd: int, answer_fd: int, workspace: str, value_limit: int) -> None:
    """Answer calls until the supervisor is gone; the kernel process's main function."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # Python code expects BrokenPipeError
    _open_streams()
    sys.path.insert(0, workspace)
    sys.argv = [""]
    _reseed()
    options.watch_imports()
    interpreter = Interpreter(workspace, value_limit)
    interpreter.execute("pass", 0)  # else the first call pays for what every first time costs
    reader = wire.Reader()
    while True:
        data = os.read(request_fd, RECEIVE_SIZE)
        if not data:
            os._exit(0)
        reader.feed(data)
        while (line := reader.line()) is not None:
            request = wire.decode(line)
            answer = memoryview(_answer(interpreter, request["code"], request["number"]))
            while answer:
                answer = answer[os.write(answer_fd, answer) :]


def _reseed() -> None:
    """Give each interpreter random numbers of its own, where numpy was loaded before the fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _answer(interpreter: Interpreter, code: str, number: int) -> bytes:
    """Run a call; what user code has made unfit to be told becomes an error of its own."""
    done = {"kind": "done", "number": number}
    try:
        return wire.encode({**done, **interpreter.execute(code, number)})
    except BaseException as error:
        told = report.bare(type(error).__name__, "the result of the call cannot be told")
        return wire.encode({**done, "error": told, "names": interpreter.names(), "cpu_s": 0.0})
