"""Loop detection: the same thing again becomes a nudge, then a refusal, then the end.

Everything is derived from the stored job, and each step of it is read once. What is the same,
`worker.fingerprints` says. A changed outcome is progress: looking again at something that moves is
no loop, and looking at something that does not move yet gets more patience.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

from sandbox.types import Execution, Outcome
from worker.errors import SkipCall
from worker.fingerprints import (
    error_of,
    is_ours,
    same_call,
    same_outcome,
    shown,
    shown_call,
    shown_outcome,
)
from worker.history import History, Turn
from worker.hooks import Hook, Run
from worker.messages import FinishReason, ResultStatus, ToolCall, ToolResult
from worker.prompts import notice
from worker.settings import LoopLimits

_WAITS = re.compile(
    r"(?:^|[;&|(\"!]\s*+|\\n\s*+|\b(?:do|then|else|while|until|if)\s++)"
    r"(?:sleep|wait|watch|ps|pgrep|jobs|kill -0)\b"
    r"|\btail\b[^|;&]{0,80}(?:log|out|progress|status)"
    r"|\bsleep\(|\.(?:poll|wait|is_alive|done)\("
)
_LAST_CHARS = 20_000  # of the arguments of a call in which waiting is looked for
_WAITING = re.compile(
    r"still running|in progress|not (?:yet )?(?:ready|finished|done)|\bpending\b|\bwaiting\b",
    re.IGNORECASE,
)

Step = tuple[tuple[str, str], ...]  # the (call, outcome) pairs of one step
Outcomes = list[tuple[str, str, bool]]  # call, outcome, and whether the call was blocked


# ---- the steps as they are compared


def _outcomes_of(turn: Turn) -> Outcomes:
    ran = ((call, turn.results[call.id]) for call in turn.calls if call.id in turn.results)
    return [(same_call(call), same_outcome(result), is_ours(result)) for call, result in ran]


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
        self._last = 0  # the number of the turn whose calls are these, by what they do
        self._calls: dict[str, list[ToolCall]] = {}

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

    def twins(self, history: History, key: str) -> list[ToolCall]:
        """The calls of the last turn that do the same; they may be very many."""
        if self._last != (last := len(history.turns) - 1):
            self._last, self._calls = last, {}
            for call in history.last.calls:
                self._calls.setdefault(same_call(call), []).append(call)
        return self._calls[key]


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
        cycle = limits.cycle_length * (limits.cycle_repeats * limits.poll_factor + 1)
        self._reach = 2 + max(limits.stop * limits.poll_factor, 2 * limits.error_stop, cycle)

    def before_model(self, run: Run) -> None:
        trail = run.history.view(Trail)
        turns, steps = trail.latest(run.history, self._reach, len(run.history.turns))
        self._judge_repeats(run, steps, turns)
        self._judge_errors(run, turns)
        self._judge_cycles(run, steps, turns)

    def before_tool(self, run: Run, call: ToolCall) -> None:
        """Block a call that gave the same thing often enough, and doubles within one turn."""
        if self._limits.observe:
            return
        key = same_call(call)
        trail = run.history.view(Trail)
        twins = trail.twins(run.history, key)
        if len(twins) > 2 and call.id != twins[0].id:  # noqa: PLR2004
            raise SkipCall(notice("twice", number=run.history.number(twins[0].id)))
        earlier, steps = trail.latest(run.history, self._reach, len(run.history.turns) - 1)
        count = trailing_repeats(steps, key)
        if count + 1 >= self._limits.block * self._factor(earlier):
            found = _last_result(earlier, key)
            raise SkipCall(notice("blocked", count=count, earlier=found.text if found else ""))

    def _factor(self, turns: Sequence[Turn]) -> int:
        """Give checks of something that runs a longer limit."""
        ran = (t for t in reversed(turns) if any(r.execution for r in t.results.values()))
        last = next(ran, None)
        return self._limits.poll_factor if last and _is_poll(last) else 1

    def _judge_repeats(self, run: Run, steps: Sequence[Step], turns: Sequence[Turn]) -> None:
        count = trailing_repeats(steps)
        factor = self._factor(turns)
        stop = self._limits.stop * factor
        if count >= stop:
            why = f"the same call gave the same result {count} times: {_quoted(steps, turns)}"
            self._stop(run, why, is_first=count == stop)
        elif count == self._limits.nudge * factor:
            key = "repeat_poll" if factor > 1 else "repeat"
            failed = _repeat_failed(turns, count) if factor == 1 else None
            told = failed or notice(key, count=count)
            self._nudge(run, told, f"repeat:{count}")

    def _judge_errors(self, run: Run, turns: Sequence[Turn]) -> None:
        """Count how often the last error came since anything went well."""
        own = [turn for turn in turns if not all(map(is_ours, turn.results.values()))]
        if not own or own[-1] is not turns[-1]:
            return
        errors = list(takewhile(lambda error: error is not None, map(error_of, reversed(own))))
        count = errors.count(errors[0]) if errors else 0
        last = shown(errors[0] or "") if errors else ""
        if count >= self._limits.error_stop:
            why = f"the same error came {count} times: {last}, the last time from "
            is_first = count == self._limits.error_stop
            self._stop(run, why + shown_call(turns[-1].calls[-1]), is_first=is_first)
        elif count == self._limits.error_nudge:
            text = notice("error_again", count=count, error=last)
            self._nudge(run, text, f"error:{count}")

    def _judge_cycles(self, run: Run, steps: Sequence[Step], turns: Sequence[Turn]) -> None:
        firsts = [next(same)[0] for _, same in groupby(enumerate(steps), key=lambda pair: pair[1])]
        length, count = trailing_cycle([steps[i] for i in firsts], self._limits.cycle_length)
        unit = [turns[i] for i in firsts[len(firsts) - length :]]
        factor = self._limits.poll_factor if all(map(_is_poll, unit)) else 1
        repeats = self._limits.cycle_repeats * factor
        if count >= repeats:
            quoted = ", ".join(shown(shown_call(turn.calls[-1]), 60) for turn in unit)
            why = f"{length} steps repeated {count} times in the same order: {quoted}"
            self._stop(run, why, is_first=count == repeats)
        elif count and count == repeats - 1:
            self._nudge(run, notice("cycle", length=length), f"cycle:{length}")

    def _nudge(self, run: Run, text: str, reason: str) -> None:
        if self._limits.observe:
            run.remark(f"loop detection (observing): {reason}")
        else:
            run.notify(text, reason)

    def _stop(self, run: Run, why: str, *, is_first: bool) -> None:
        if not self._limits.observe:
            run.land(notice("landing_loop", why=why), FinishReason.LOOP, why)
        elif is_first:
            run.remark(f"loop detection (observing): would stop: {why}")


def _repeat_failed(turns: Sequence[Turn], count: int) -> str | None:
    """What is said of a call that fails again and again: with the way out, if there is a hint."""
    failed = [r for r in turns[-1].results.values() if r.status is ResultStatus.ERROR]
    if not failed:
        return None
    hint = f"\nhint: {failed[-1].hint}" if failed[-1].hint else ""
    return notice("repeat_failed", count=count, hint=hint)


def _last_result(turns: Sequence[Turn], key: str) -> ToolResult | None:
    """The last result of that call which was not our own refusal."""
    found = (
        turn.results[call.id]
        for turn in reversed(turns)
        for call in turn.calls
        if same_call(call) == key and not is_ours(turn.results[call.id])
    )
    return next(found, None)


def _quoted(steps: Sequence[Step], turns: Sequence[Turn]) -> str:
    """The call of the last step that was repeated most, and what came of it."""
    most = trailing_repeats(steps)
    call = next(c for c in turns[-1].calls if trailing_repeats(steps, same_call(c)) == most)
    result = _last_result(turns, same_call(call))
    return f"{shown_call(call)}, which gave: {shown_outcome(result) if result else 'nothing'}"


def _is_poll(turn: Turn) -> bool:
    """A step that looked at something which is still running, and was told of no error."""
    return all(
        (result := turn.results.get(call.id)) is not None
        and (done := result.execution) is not None
        and (done.outcome is Outcome.OK or _is_silent(done))
        and bool(
            done.background_processes
            or _WAITS.search(call.arguments[-_LAST_CHARS:])
            or _WAITING.search(_last_line(done.output or done.value or ""))
        )
        for call in turn.calls
    )


def _is_silent(done: Execution) -> bool:
    """Whether it only says no, by its exit code: as `grep`, `pgrep` and `test` do."""
    is_no = done.outcome is Outcome.ERROR and done.exit_code == 1
    return is_no and not (done.error or done.output.strip() or done.value)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
