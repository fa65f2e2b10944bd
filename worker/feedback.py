"""What the model is told about a call: one shape for every tool, and hints that can be acted on.

status: error  (call 4, ran 1.2 s, interpreter kept)
KeyError: 'reviews'
  line 3: df["reviews"].mean()
hint: columns are review_count, stars, city; closest: review_count
output:
…

Where a line can be mended for certain, the whole call stands at the end, mended: small models act
on what they read last; told of a fault, they repeat the call or make an answer up.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.types import Execution, FileInfo, Interpreter, Outcome
from worker.hints import Advice, advise, hint
from worker.messages import ResultStatus
from worker.prompts import hint_text
from worker.sizes import said_bytes

__all__ = ["Observation", "hint", "render"]

_STATUS = {
    ResultStatus.REFUSED: "error",
    ResultStatus.SKIPPED: "not run",
}
_OUTCOME = {Outcome.OOM: "out of memory", Outcome.OUTPUT_LIMIT: "output limit"}
_SAID_BY_LIMIT = {"TimeLimit", "MemoryLimit", "OutputLimit"}
_FILES = 20
_NAMES = 30


@dataclass(slots=True)
class Observation:
    """Everything that is known about a finished call, before it becomes text."""

    number: int
    status: ResultStatus = ResultStatus.REFUSED
    text: str = ""
    execution: Execution | None = None
    code: str | None = None
    hint: str | None = None
    repaired: str | None = None
    files: tuple[FileInfo, ...] = ()
    lost_names: tuple[str, ...] = ()
    network: str = "none"


def render(seen: Observation) -> tuple[str, str | None]:
    """The text for the model, and the hint that is in it."""
    advice = _advice(seen)
    call = advice.mended(seen.code or "")
    lines = [_status_line(seen)]
    if seen.execution is not None:
        lines += _error_lines(seen.execution)
    if advice.text:
        lines.append(f"hint: {advice.text if call else advice.said}")
    if seen.repaired:
        lines.append(f"note: your call had to be repaired: {seen.repaired}")
    lines += _file_lines(seen.files)
    if seen.execution is not None:
        lines += _output_lines(seen.execution, seen.number)
    if seen.text:
        lines.append(seen.text)
    if call:
        lines.append(hint_text("call", code=call))
    return "\n".join(lines), advice.said or None


def _advice(seen: Observation) -> Advice:
    if seen.hint or seen.execution is None:
        return Advice(seen.hint or "")
    advice = advise(seen.execution, seen.code, lost_names=seen.lost_names, network=seen.network)
    return advice or Advice("")


def _status_line(seen: Observation) -> str:
    facts = [f"call {seen.number}"]
    status = _STATUS.get(seen.status, seen.status.value)
    if seen.status is ResultStatus.REFUSED:
        facts.append("not run")
    if seen.execution is not None:
        status = _OUTCOME.get(seen.execution.outcome, seen.execution.outcome.value)
        facts.append(f"ran {seen.execution.duration_s:.1f} s")
        if seen.execution.exit_code:
            facts.append(f"exit code {seen.execution.exit_code}")
        elif (
            seen.execution.exit_code is None and seen.execution.interpreter is not Interpreter.NONE
        ):
            facts.append(f"interpreter {seen.execution.interpreter}")
    return f"status: {status}  ({', '.join(facts)})"


def _error_lines(execution: Execution) -> list[str]:
    lines = []
    if execution.limit and not execution.error:
        lines.append(f"{execution.limit} reached, peak {said_bytes(execution.peak_memory_bytes)}")
    if error := execution.error:
        if not execution.limit or error.type not in _SAID_BY_LIMIT:
            lines.append(f"{error.type}: {error.message}" if error.message else error.type)
        if error.line is not None:
            lines.append(f"  line {error.line}: {(error.source or '').strip()}")
    if execution.interpreter is Interpreter.RESTARTED:
        gone = ", ".join(execution.lost_names[:_NAMES]) or "none were defined"
        lines.append(f"the interpreter was restarted, its variables are gone: {gone}")
    if execution.background_processes:
        lines.append(f"background processes still running: {execution.background_processes}")
    return lines


def _file_lines(files: tuple[FileInfo, ...]) -> list[str]:
    if not files:
        return []
    shown = [f"{f.name} ({said_bytes(f.size)})" for f in files[:_FILES]]
    more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
    return [f"new or changed files: {', '.join(shown)}{more}"]


def _output_lines(execution: Execution, number: int) -> list[str]:
    lines = []
    if execution.output:
        lines += ["output:", execution.output.rstrip("\n")]
    if execution.output_truncated:
        lines.append(
            f"(cut: {said_bytes(execution.output_bytes)} were written; page through all of it "
            f"with read_output(call={number}))"
        )
    if execution.value is not None:
        lines += ["value:", execution.value]
    if not lines and execution.outcome is Outcome.OK:
        lines.append("output: (nothing)")
    return lines
