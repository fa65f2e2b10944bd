"""Loop detection: the same thing again becomes a nudge, then a refusal, then the end.

Everything is derived from the stored job, and each step of it is read once. What makes two calls
the same is the tool and its canonical arguments (for code: without comments and white space); what
makes two outcomes the same is what was printed and raised, without addresses. A changed outcome is
progress: looking again at something that moves is no loop.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile

from sandbox.types import Outcome
from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid, SkipCall
from worker.history import History, Turn
from worker.hooks import Hook, Run
from worker.messages import FinishReason, ResultStatus, ToolCall, ToolResult
from worker.prompts import notice
from worker.settings import LoopLimits

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_WAITS = re.compile(r"\bsleep\b|\bwait\b|\bwatch\b|\btail\b|\bps\b|\bpgrep\b|\bjobs\b")
_WAITING = re.compile(
    r"still running|in progress|not (?:yet )?(?:ready|finished|done)|pending", re.IGNORECASE
)
_NOISE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER)

Step = tuple[tuple[str, str], ...]  # the (call, outcome) pairs of one step
Outcomes = list[tuple[str, str, bool]]  # call, outcome, and whether the call was blocked


# ---- what is the same


def same_call(call: ToolCall) -> str:
    """Return a text that is equal for calls that do the same."""
    return _canonical(call.name, call.arguments)


@lru_cache(maxsize=1024)  # a call is looked at again for the others of its turn
def _canonical(name: str, text: str) -> str:
    try:
        arguments, _ = read_arguments(text)
    except ArgumentsInvalid:
        return f"{name} {text}"
    if isinstance(code := arguments.get("code"), str):
        arguments["code"] = _bare_python(code)
    if isinstance(command := arguments.get("command"), str):
        arguments["command"] = _bare_shell(command)
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def _bare_python(code: str) -> str:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return " ".join(code.split())
    names = {tokenize.INDENT: "{", tokenize.DEDENT: "}"}
    return " ".join(names.get(t.type, t.string) for t in tokens if t.type not in _NOISE)


def _bare_shell(command: str) -> str:
    lines = (line.strip() for line in command.splitlines())
    return "\n".join(" ".join(line.split()) for line in lines if line and line[0] != "#")


def same_outcome(result: ToolResult) -> str:
    """Return a text that is equal for outcomes that tell the model the same."""
    if (done := result.execution) is None:
        return "\n".join(result.text.splitlines()[1:])
    error = f"{done.error.type}: {done.error.message}" if done.error else ""
    told = f"{done.outcome} {done.exit_code} {error}\n{done.value}\n{done.output}"
    return _without_addresses(told)


def _without_addresses(text: str) -> str:
    # Most texts have none, which a search for two letters finds out a hundred times faster.
    return _ADDRESS.sub("0x", text) if "0x" in text else text


def _error_of(turn: Turn) -> str | None:
    """The error that a step ended with, whichever code led to it."""
    for result in reversed(turn.results.values()):
        done = result.execution
        if done and done.error:
            return f"{done.error.type}: {_without_addresses(done.error.message)}"
        if result.status is ResultStatus.REFUSED:
            return "\n".join(result.text.splitlines()[1:3])
        if result.status is ResultStatus.ERROR and done and done.output.strip():
            return done.output.strip().splitlines()[-1]
    return None


def _outcomes_of(turn: Turn) -> Outcomes:
    found = []
    for call in turn.calls:
        if result := turn.results.get(call.id):
            is_blocked = result.status is ResultStatus.SKIPPED
            outcome = result.text if is_blocked else same_outcome(result)
            found.append((same_call(call), outcome, is_blocked))
    return found


def _steps(outcomes: Iterable[Outcomes]) -> list[Step]:
    """Steps as they are compared; a blocked call keeps the outcome that it had before."""
    known: dict[str, str] = {}
    steps = []
    for step in outcomes:
        pairs: dict[tuple[str, str], None] = {}
        for key, outcome, is_blocked in step:
            if not is_blocked:
                known[key] = outcome
            pairs[key, known.get(key, outcome)] = None
        steps.append(tuple(pairs))
    return steps


class Trail:
    """The latest turns with calls, as they are compared: a view of a history (`History.view`)."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcomes] = {}
        self._extent = (0, 0)
        self._latest: tuple[list[Turn], list[Step]] = ([], [])

    def latest(self, history: History, reach: int, end: int) -> tuple[list[Turn], list[Step]]:
        """The last `reach` turns with calls before number `end`, whose calls all have results."""
        if self._extent != (reach, end):
            turns = history.turns
            near = range(max(1, end - 2 * reach), end)
            numbers = [number for number in near if turns[number].calls][-reach:]
            known = self._outcomes
            self._outcomes = {
                n: known[n] if n in known else _outcomes_of(turns[n]) for n in numbers
            }
            self._latest = [turns[n] for n in numbers], _steps(self._outcomes.values())
            self._extent = reach, end
        return self._latest


# ---- how often


def trailing_repeats(steps: Sequence[Step], call: str | None = None) -> int:
    """How many of the last steps in a row made one call with one outcome.

    Without `call` it is the call of the last step that was repeated most.
    """
    if not steps:
        return 0
    counts = []
    for pair in steps[-1]:
        if call in {None, pair[0]}:
            before = next((i for i, step in enumerate(reversed(steps)) if pair not in step), None)
            counts.append(len(steps) if before is None else before)
    return max(counts, default=0)


def trailing_cycle(steps: Sequence[Step], longest: int) -> tuple[int, int]:
    """The cycle that the steps end with: its length (from 2) and how often it came; or (0, 0)."""
    best = (0, 0)
    for length in range(2, longest + 1):
        unit = list(steps[-length:])
        if len(unit) < length or len(set(unit)) == 1:
            continue
        count = 0
        while list(steps[len(steps) - (count + 1) * length : len(steps) - count * length]) == unit:
            count += 1
            if (count + 1) * length > len(steps):
                break
        if count > 1 and count * length > best[0] * best[1]:
            best = (length, count)
    return best


def repeats_itself(text: str, times: int = 10, least_chars: int = 400) -> bool:
    """Whether a text ends in one piece said again and again, as models do that have lost it."""
    tail = text[-4000:].rstrip()
    for length in range(8, len(tail) // times + 1):
        unit = tail[-length:]
        if len(set(re.findall(r"\w", unit))) < 4:  # noqa: PLR2004 - rules and borders of tables
            continue
        count = 1
        while tail.endswith(unit, 0, len(tail) - count * length):
            count += 1
        if count >= times and count * length >= least_chars:
            return True
    return False


# ---- what is done about it


class LoopHook(Hook):
    """The ladder: nudge, block, stop. In observe mode only people are told."""

    def __init__(self, limits: LoopLimits) -> None:
        self._limits = limits
        cycle = limits.cycle_length * (limits.cycle_repeats + 1)
        self._reach = 2 + max(limits.stop * limits.poll_factor, limits.error_stop, cycle)

    def before_model(self, run: Run) -> None:
        trail = run.history.view(Trail)
        turns, steps = trail.latest(run.history, self._reach, len(run.history.turns))
        self._judge_repeats(run, steps, turns)
        self._judge_errors(run, turns)
        self._judge_cycles(run, steps)

    def before_tool(self, run: Run, call: ToolCall) -> None:
        """Block a call that gave the same thing often enough, and doubles within one turn."""
        key = same_call(call)
        turn = run.history.last
        twins = [c for c in turn.calls if same_call(c) == key]
        if len(twins) > 2 and call.id != twins[0].id and not self._limits.observe:  # noqa: PLR2004
            raise SkipCall(notice("twice", number=run.history.number(twins[0].id)))
        trail = run.history.view(Trail)
        earlier, steps = trail.latest(run.history, self._reach, len(run.history.turns) - 1)
        count = trailing_repeats(steps, key)
        if count + 1 >= self._limits.block * self._factor(earlier) and not self._limits.observe:
            result = self._last_result(earlier, key)
            raise SkipCall(notice("blocked", count=count, earlier=result))

    @staticmethod
    def _last_result(turns: list[Turn], key: str) -> str:
        found = (
            turn.results[call.id].text
            for turn in reversed(turns)
            for call in turn.calls
            if same_call(call) == key and turn.results[call.id].status is not ResultStatus.SKIPPED
        )
        return next(found, "")

    def _factor(self, turns: Sequence[Turn]) -> int:
        """Give checks of something that runs a longer limit."""
        ran = (t for t in reversed(turns) if any(r.execution for r in t.results.values()))
        last = next(ran, None)
        return self._limits.poll_factor if last and _is_poll(last) else 1

    def _judge_repeats(self, run: Run, steps: Sequence[Step], turns: Sequence[Turn]) -> None:
        count = trailing_repeats(steps)
        factor = self._factor(turns)
        if count >= self._limits.stop * factor:
            self._stop(run, f"the same call gave the same result {count} times")
        elif count == self._limits.nudge * factor:
            key = "repeat_poll" if factor > 1 else "repeat"
            self._nudge(run, notice(key, count=count), f"repeat:{count}")

    def _judge_errors(self, run: Run, turns: Sequence[Turn]) -> None:
        if not turns or (last := _error_of(turns[-1])) is None:
            return
        count = sum(1 for _ in takewhile(lambda turn: _error_of(turn) == last, reversed(turns)))
        if count >= self._limits.error_stop:
            self._stop(run, f"the same error came {count} times: {last}")
        elif count == self._limits.error_nudge:
            text = notice("error_again", count=count, error=last)
            self._nudge(run, text, f"error:{count}")

    def _judge_cycles(self, run: Run, steps: Sequence[Step]) -> None:
        length, count = trailing_cycle(steps, self._limits.cycle_length)
        if count >= self._limits.cycle_repeats:
            self._stop(run, f"{length} steps repeated {count} times in the same order")
        elif count and count == self._limits.cycle_repeats - 1:
            self._nudge(run, notice("cycle", length=length), f"cycle:{length}")

    def _nudge(self, run: Run, text: str, reason: str) -> None:
        if self._limits.observe:
            run.remark(f"loop detection (observing): {reason}")
        else:
            run.notify(text, reason)

    def _stop(self, run: Run, why: str) -> None:
        if self._limits.observe:
            run.remark(f"loop detection (observing): would stop: {why}")
        else:
            run.land(notice("landing_loop", why=why), FinishReason.LOOP, why)


def _is_poll(turn: Turn) -> bool:
    """A step that looked at something which is still running, and found no error."""
    return all(
        (result := turn.results.get(call.id)) is not None
        and (done := result.execution) is not None
        and done.outcome is Outcome.OK
        and bool(
            done.background_processes
            or _WAITS.search(call.arguments)
            or _WAITING.search(done.output)
        )
        for call in turn.calls
    )
