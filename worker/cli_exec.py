"""`caisson exec`: calls read from options or a script, run in one sandbox, and printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Literal, Self, TypeVar

from rich.text import Text

from sandbox.base import Sandbox
from sandbox.errors import SandboxUnavailable
from sandbox.types import Execution, Outcome, SandboxSpec
from worker import assembly, feedback
from worker.errors import Cancelled, InputInvalid
from worker.messages import Record, Wire
from worker.settings import MAX_CALL_S, Settings, load_settings
from worker.sizes import said_bytes
from worker.stopping import stoppable
from worker.terminal import Activity, figures, make_console, safe, write_block

T = TypeVar("T")

Show = Callable[[Execution, str | None], None]
Kind = Literal["python", "shell", "expression"]
KINDS: tuple[Kind, ...] = ("python", "shell", "expression")
EXPRESSION_TIMEOUT_S = 1.0
_POLL_S = 0.1


class Call(Record):
    """One thing to run."""

    kind: Kind
    text: str
    timeout_s: float | None = None


# ---- what to run


def read_script(name: str) -> Iterator[Call]:
    """Read the calls of a script: a file is checked whole at once, `-` is read as it comes.

    Raises `InputInvalid`, which names the file and the line.
    """
    if name == "-":
        return _calls("standard input", sys.stdin)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputInvalid(f"cannot read the script {name}: {why}") from error
    return iter(tuple(_calls(name, text.splitlines())))


def _calls(name: str, lines: Iterable[str]) -> Iterator[Call]:
    numbered = enumerate(lines, 1)
    while True:
        try:
            number, line = next(numbered, (0, ""))
        except UnicodeDecodeError as error:
            raise InputInvalid(f"cannot read {name}: it is not UTF-8 text") from error
        if not number:
            return
        if line.strip():
            yield _numbered_call(name, number, line)


def _numbered_call(name: str, number: int, line: str) -> Call:
    try:
        return _call(line)
    except ValueError as error:
        raise InputInvalid(f"{name}, line {number}: {error}") from error


def _call(line: str) -> Call:
    try:
        said = json.loads(line)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(said, dict) or len(kinds := [k for k in KINDS if k in said]) != 1:
        raise ValueError('must be an object with one of "python", "shell" and "expression"')
    kind = kinds[0]
    if not isinstance(said[kind], str):
        raise ValueError(f'"{kind}" must be text')  # noqa: TRY004 - of the line, not our caller
    if unknown := said.keys() - {kind, "timeout"}:
        raise ValueError(f'does not know "{min(unknown)}"; besides "{kind}" there is "timeout"')
    return Call(kind=kind, text=said[kind], timeout_s=_timeout(said.get("timeout")))


def _timeout(value: object) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= MAX_CALL_S:  # type: ignore[operator]
        raise ValueError(
            f'"timeout" must be a number of seconds above 0, and {MAX_CALL_S:,} at most'
        )
    return float(value)  # type: ignore[arg-type]


# ---- running it


class Bench:
    """One sandbox, made when the first call needs it. Expressions need none.

    The calls run in a thread of their own, so that the main thread can hear Ctrl-C meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        spec: SandboxSpec,
        files: tuple[assembly.InputFile, ...],
        expression_timeout_s: float = EXPRESSION_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._spec = spec
        self._files = files
        self._expression_timeout_s = expression_timeout_s
        self.network = spec.network
        self._sandbox: Sandbox | None = None
        self._thread = ThreadPoolExecutor(1, "exec")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the sandbox, whatever is still going on in it."""
        if self._sandbox is not None:
            self._sandbox.close()
        self._thread.shutdown()
        if self._sandbox is not None:
            self._sandbox.close()  # it may have been made while we waited for the thread

    def is_ready_for(self, call: Call) -> bool:
        return call.kind == "expression" or self._sandbox is not None

    def prepare(self, is_cancelled: Event) -> None:
        """Start the sandbox and put the files into it."""
        self._await(self._start, is_cancelled)

    def run(self, call: Call, is_cancelled: Event) -> Execution:
        """Run a call; a cancelled one returns what it did until then."""
        self._check(call)
        return self._await(lambda: self._run(call, is_cancelled), is_cancelled)

    def _check(self, call: Call) -> None:
        life_s = self._spec.limits.max_life_s
        if call.kind != "expression" and (call.timeout_s or 0) > life_s:
            raise InputInvalid(
                f"a timeout of {call.timeout_s:g} s is longer than the sandbox lives "
                f"({life_s:g} s); set max_life_s"
            )

    def _start(self) -> None:
        self._sandbox = assembly.start_sandbox(self._settings, self._spec)
        assembly.put_files(self._sandbox, self._files)

    def _run(self, call: Call, is_cancelled: Event) -> Execution:
        if call.kind == "expression":
            from sandbox.expression import evaluate

            limit_s = call.timeout_s or self._expression_timeout_s
            return evaluate(call.text, timeout_s=limit_s, is_cancelled=is_cancelled.is_set)
        if self._sandbox is None:
            raise RuntimeError("the sandbox was not prepared")
        run = self._sandbox.python if call.kind == "python" else self._sandbox.shell
        return run(call.text, timeout_s=call.timeout_s)

    def _await(self, work: Callable[[], T], is_cancelled: Event) -> T:
        future: Future[T] = self._thread.submit(work)
        while not future.done():
            # Again and again: a guest that has not been told of the call yet ends nothing.
            if is_cancelled.is_set() and self._sandbox is not None:
                self._cancel(self._sandbox)
            wait([future], _POLL_S)
        result = future.result()
        if is_cancelled.is_set() and result is None:
            raise Cancelled
        return result

    @staticmethod
    def _cancel(sandbox: Sandbox) -> None:
        with suppress(SandboxUnavailable):  # the call itself meets it too, and says so
            sandbox.cancel()


# ---- showing it


def as_json(execution: Execution, hint: str | None) -> Wire:
    """The execution as programs are given it; these keys and their order are fixed."""
    fields = execution.model_dump(mode="json")
    names = list(fields)
    place = names.index("error") + 1
    known = {**fields, "hint": hint}
    return {name: known[name] for name in [*names[:place], "hint", *names[place:]]}


def print_json(execution: Execution, hint: str | None) -> None:
    print(json.dumps(as_json(execution, hint)), flush=True)


def print_text(execution: Execution, hint: str | None) -> None:
    """Output and value on stdout, as they are; how it ended on stderr."""
    for text in (execution.output, execution.value):
        if text:
            print(safe(text).rstrip("\n"), flush=True)
    console = make_console(sys.stderr)
    for line in _account(execution, hint):
        indent = len(line.plain) - len(line.plain.lstrip())
        write_block(console, line[indent:], " " * indent)


def _account(execution: Execution, hint: str | None) -> Iterator[Text]:
    is_good = execution.outcome is Outcome.OK
    mark, style = ("✓", "green") if is_good else ("✗", "red")
    head = Text.assemble((f"{mark} {execution.outcome.value.replace('_', ' ')}", style))
    if execution.exit_code:
        head.append(f"  exit code {execution.exit_code}")
    yield head.append(figures(execution), style="dim")
    yield from _error(execution)
    if hint:
        yield Text(f"  hint: {safe(hint)}", style="yellow")
    if execution.lost_names:
        yield Text(f"  lost: {safe(', '.join(execution.lost_names))}", style="dim")
    for file in execution.files:
        size = f"  {said_bytes(file.size)}"
        yield Text.assemble(("  + ", "green"), safe(file.name), (size, "dim"))
    if execution.output_file:
        yield Text(f"  full output: {safe(execution.output_file)}", style="dim")


def _error(execution: Execution) -> Iterator[Text]:
    error = execution.error
    if error is None:
        return
    yield Text(f"  {safe(error.type)}: {safe(error.message)}", style="bold")
    if error.line is not None:
        yield Text(f"    line {error.line}: {safe(error.source or '').strip()}")


def execute_all(
    calls: Iterable[Call],
    options: Mapping[str, object],
    *,
    files: Iterable[Path],
    mounts: Iterable[Path],
    show: Show,
) -> bool:
    """Run the calls in one sandbox; returns whether all were run, or one was cancelled.

    Raises `UsageError` or `SpecInvalid` for what was asked, `SandboxUnavailable` for our failures.
    """
    # How long a model may make its calls is no matter of a person's.
    settings = load_settings(options, {"max_call_timeout_s": MAX_CALL_S}).settings
    spec = settings.spec(f"exec-{os.getpid()}", assembly.read_mounts(mounts, settings))
    inputs = assembly.check_files(files, settings.limits())
    is_given = options.get("call_timeout_s") is not None
    expression_s = settings.call_timeout_s if is_given else EXPRESSION_TIMEOUT_S
    with Bench(settings, spec, inputs, expression_s) as bench:
        return _run_calls(bench, calls, show)


def _run_calls(bench: Bench, calls: Iterable[Call], show: Show) -> bool:
    activity = Activity(make_console(sys.stderr))
    lost: tuple[str, ...] = ()
    for call in calls:
        with stoppable() as is_stopped:
            execution = _run_call(bench, call, is_stopped, activity)
        lost += execution.lost_names
        advice = feedback.hint(
            execution, call.text, lost_names=lost, network=bench.network, is_for_person=True
        )
        show(execution, advice)
        if is_stopped.is_set():
            return False
    return True


def _run_call(bench: Bench, call: Call, is_stopped: Event, activity: Activity) -> Execution:
    if not bench.is_ready_for(call):
        with activity.during("starting a sandbox"):
            bench.prepare(is_stopped)
    with activity.during(f"{call.kind} runs"):
        return bench.run(call, is_stopped)
