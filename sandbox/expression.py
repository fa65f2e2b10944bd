"""Evaluate one expression, or a few simple statements, without a container.

A light tool for arithmetic, statistics and dates, never the boundary: RestrictedPython has been
escaped before and will be again, and a child process of ours shares our kernel, our network and,
unless we are root, our user. What holds code that somebody else wrote is a container. Therefore
the tool is kept small (see `sandbox.expression_child`: plain types only, no attribute of anything
else, nothing to import), and what it may cost is bounded from outside:

* each evaluation is a process of its own, killed with SIGKILL when its time is over, because
  `9**9**9` or `sum(range(10**12))` hear no signal that Python handles;
* it has no environment variable, no descriptor and no working directory of ours, and limits on
  memory, CPU time, files and processes;
* only text comes back, in one JSON object of a limited size, and is checked and cleaned here.

A new interpreter takes 45 ms (measured); a server that forks would take 5 and would have to be
watched, restarted and kept from inheriting its worker's descriptors. `subprocess` is used, not
`multiprocessing`, which Celery's daemonic workers may not use, nor a bare fork, which is unsafe
beside threads.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ConfigDict, Field, ValidationError

from sandbox.errors import ProtocolError, SandboxUnavailable
from sandbox.transcript import clean
from sandbox.types import MIB, ErrorInfo, Execution, Interpreter, Outcome, Record

MAX_TEXT_CHARS = 10_000  # in UTF-8 this fits into a pipe, so writing it never blocks
START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 * 1024
_MAX_CHARS = 8_000
_POLL_S = 0.1

_READY = b"\n"
_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent)
_BOOTSTRAP = "import sys; sys.path += sys.argv[3:]; import sandbox.expression_child as c; c.main()"


class _Failure(Record):
    """The child's account of an exception."""

    model_config = ConfigDict(strict=True)

    type: str
    message: str
    line: int | None = None
    source: str | None = None


class _Answer(Record):
    """What a child may say; whatever else it says is a breach of protocol."""

    model_config = ConfigDict(strict=True)

    value: str | None = None
    output: str = ""
    output_chars: int = Field(0, ge=0)
    oom: bool = False
    error: _Failure | None = None
    cpu_s: float = Field(0.0, ge=0)


class _TimeUp(Exception):
    """The deadline of a read has passed."""


class _Cancelled(Exception):
    """Nobody wants the answer any more."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """When an evaluation ends, whether it is done or not."""

    timeout_s: float
    memory_bytes: int
    is_cancelled: Callable[[], bool]


def _never() -> bool:
    return False


def evaluate(
    text: str,
    *,
    timeout_s: float = 1.0,
    memory_bytes: int = 128 * MIB,
    is_cancelled: Callable[[], bool] = _never,
) -> Execution:
    """Return the value of the last expression in `text`, as its `repr`, and what was printed.

    Whatever is wrong with the text is in the result: `error.type` is `NotAllowed` for what an
    expression may not do, `SyntaxError`, or the exception that it raised; the outcomes `timeout`
    and `oom` name the limit. `memory_bytes` includes the interpreter's own 35 MiB or so.
    `is_cancelled` is asked about ten times a second; once it says so, the outcome is `killed`.

    Raises:
        SandboxUnavailable: The child could not be started.
        ProtocolError: It answered what our child does not answer.
    """
    started = time.monotonic()
    refusal = _refusal(text)
    if refusal is not None:
        return _refused(refusal)
    bounds = _Bounds(timeout_s, memory_bytes, is_cancelled)
    with _start(timeout_s, memory_bytes) as child:
        try:
            execution = _converse(child, text, started, bounds)
        except _Cancelled:
            execution = _failed(Outcome.KILLED, "Cancelled", "the call was cancelled")
        finally:
            child.kill()
    return execution.model_copy(update={"duration_s": time.monotonic() - started})


def _refusal(text: str) -> str | None:
    if len(text) > MAX_TEXT_CHARS:
        return f"{len(text)} characters; the limit is {MAX_TEXT_CHARS}"
    if "\0" in text:
        return "a NUL character in the text"
    if not text.strip():
        return "an empty text"
    return None


def _refused(what: str) -> Execution:
    message = f"not allowed in an expression: {what}; python_interpreter can do more"
    return _failed(Outcome.ERROR, "NotAllowed", message)


def _start(timeout_s: float, memory_bytes: int) -> subprocess.Popen[bytes]:
    limits = [str(math.ceil(timeout_s) + 1), str(memory_bytes)]
    # -I and -S: no user's site, no .pth files, no current folder; what is needed is named.
    options = ["-I", "-S", "-W", "ignore", "-c", _BOOTSTRAP]
    try:
        return subprocess.Popen(
            [sys.executable, *options, *limits, _PACKAGE_ROOT, _library_root()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxUnavailable(f"cannot start the evaluator: {error}") from error


def _library_root() -> str:
    spec = importlib.util.find_spec("RestrictedPython")
    if spec is None or spec.origin is None:
        raise SandboxUnavailable("RestrictedPython is not installed")
    return str(Path(spec.origin).resolve().parent.parent)


def _converse(
    child: subprocess.Popen[bytes], text: str, started: float, bounds: _Bounds
) -> Execution:
    assert child.stdin is not None  # noqa: S101 - see `_start`
    assert child.stdout is not None  # noqa: S101
    try:
        child.stdin.write(text.encode(errors="replace"))
        child.stdin.close()
    except BrokenPipeError:
        raise _dead_on_arrival(child) from None
    _await_ready(child, child.stdout, bounds)
    # Starting counts, but on a busy machine it must not use up the time there is.
    timeout_s = bounds.timeout_s
    deadline = max(started + timeout_s, time.monotonic() + timeout_s / 2)
    try:
        data = _read(child.stdout, MAX_ANSWER_BYTES, deadline, bounds)
    except _TimeUp:
        return _out_of_time(timeout_s)
    if not data:
        return _died(_exit_code(child))
    return _execution(_checked(data), bounds.memory_bytes)


def _exit_code(child: subprocess.Popen[bytes]) -> int:
    """How a child ended that has closed its output, which ours does by ending."""
    try:
        return child.wait(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ProtocolError("the evaluator closed its output and went on running") from None


def _await_ready(child: subprocess.Popen[bytes], stdout: IO[bytes], bounds: _Bounds) -> None:
    try:
        ready = _read(stdout, 1, time.monotonic() + START_TIMEOUT_S, bounds)
    except _TimeUp:
        raise SandboxUnavailable(
            f"the evaluator did not start within {START_TIMEOUT_S:g} s"
        ) from None
    if ready != _READY:
        raise _dead_on_arrival(child)


def _read(stream: IO[bytes], size: int, deadline: float, bounds: _Bounds) -> bytes:
    """Read up to the end of the stream, or `size` bytes; raises `_TimeUp` or `_Cancelled`."""
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(data) < size:
            if not selector.select(min(_POLL_S, max(0.0, deadline - time.monotonic()))):
                if bounds.is_cancelled():
                    raise _Cancelled
                if time.monotonic() >= deadline:
                    raise _TimeUp
                continue
            piece = os.read(stream.fileno(), size - len(data))
            if not piece:
                break
            data += piece
    return data


def _dead_on_arrival(child: subprocess.Popen[bytes]) -> SandboxUnavailable:
    child.kill()
    code = child.wait()
    said = child.stderr.read(4096).decode(errors="replace") if child.stderr else ""
    last = clean(said.strip().rpartition("\n")[2], 300)
    return SandboxUnavailable(f"the evaluator did not start (exit code {code}): {last}")


def _checked(data: bytes) -> _Answer:
    try:
        return _Answer.model_validate(json.loads(data))
    except (ValueError, RecursionError, ValidationError) as error:
        raise ProtocolError("the evaluator gave an answer that is not in the protocol") from error


def _execution(answer: _Answer, memory_bytes: int) -> Execution:
    seen = {
        "output": clean(answer.output, _MAX_CHARS),
        "output_bytes": answer.output_chars,
        "output_truncated": answer.output_chars > len(answer.output),
        "cpu_s": answer.cpu_s,
    }
    if answer.oom:
        return _out_of_memory(memory_bytes).model_copy(update=seen)
    if answer.error is not None:
        return Execution(outcome=Outcome.ERROR, error=_error(answer.error)).model_copy(update=seen)
    value = None if answer.value is None else clean(answer.value, _MAX_CHARS)
    return Execution(outcome=Outcome.OK, value=value).model_copy(update=seen)


def _error(failure: _Failure) -> ErrorInfo:
    return ErrorInfo(
        type=clean(failure.type, 100),
        message=clean(failure.message, _MAX_CHARS),
        line=failure.line,
        source=None if failure.source is None else clean(failure.source, _MAX_CHARS),
    )


def _out_of_time(timeout_s: float) -> Execution:
    message = (
        f"not finished after {timeout_s:g} s and ended; "
        "make it smaller, or use python_interpreter, which has more time"
    )
    return _failed(Outcome.TIMEOUT, "TimeLimit", message, f"time limit of {timeout_s:g} s")


def _out_of_memory(memory_bytes: int) -> Execution:
    size = f"{memory_bytes // MIB} MiB"
    message = (
        f"needs more than the {size} of memory there are; "
        "make it smaller, or use python_interpreter, which has more"
    )
    return _failed(Outcome.OOM, "MemoryLimit", message, f"memory limit of {size}")


def _died(code: int) -> Execution:
    message = f"the evaluator was ended by signal {-code}" if code < 0 else "the evaluator ended"
    return _failed(Outcome.KILLED, "Crashed", f"{message} without an answer")


def _failed(outcome: Outcome, kind: str, message: str, limit: str | None = None) -> Execution:
    error = ErrorInfo(type=kind, message=message)
    return Execution(outcome=outcome, error=error, limit=limit, interpreter=Interpreter.NONE)
