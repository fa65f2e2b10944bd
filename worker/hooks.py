"""What a feature may do to the loop: four moments, and a narrow handle on the job.

Hooks keep no state: everything they decide is computed from the stored job, so that a job which
moves to another worker behaves as if nothing had happened. `before_…` run in order, `after_…` in
reverse. They fail closed: a hook that breaks ends the job, and the call it guarded does not run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec

from sandbox.errors import SandboxUnavailable
from worker.errors import CaissonError, Cancelled, Stop, StoreUnavailable
from worker.history import History, status_for
from worker.messages import (
    CallStarted,
    Ended,
    Event,
    FinishReason,
    Job,
    JobError,
    NoticeAdded,
    Remarked,
    Reply,
    ReplyAdded,
    ResultAdded,
    ResultStatus,
    Status,
    ToolCall,
    ToolResult,
)
from worker.store.base import Store

P = ParamSpec("P")
_log = logging.getLogger(__name__)
_AGAIN_S = 0.3
_BEGUN = {ResultStatus.SKIPPED: ResultStatus.UNKNOWN}  # what is said of a call that was begun


class Observer:
    """Told what happens, as it happens. An observer must not raise; the work does not wait."""

    def on_event(self, event: Event, history: History) -> None:
        """Take an event that has just been stored; `history` includes it."""

    def on_asking(self, history: History) -> None:
        """The model is being asked now."""


@dataclass
class Run:
    """One worker's hold on one job: reads its history, and is the only way to add to it.

    `check_held` raises `LeaseLost` when the job is not this worker's any more; `is_cancelled` does
    so too, and raises `Handover` when the worker is to let go. With `is_patient` a store that is
    away is waited for, as long as the job is held.
    """

    history: History
    store: Store
    generation: int
    observer: Observer = field(default_factory=Observer)
    is_cancelled: Callable[[], bool] = lambda: False
    check_held: Callable[[], None] = lambda: None
    is_patient: bool = False
    clock: Callable[[], float] = time.time

    @property
    def job(self) -> Job:
        return self.history.job

    @property
    def time_left_s(self) -> float:
        return self.history.time_left_s(self.clock())

    def append(self, event: Event) -> None:
        """Store an event, then let it be seen. Raises `LeaseLost` when the job is another's."""
        event = event.model_copy(update={"at": self.clock()})
        while not self._is_stored(event):
            time.sleep(_AGAIN_S)
        self.history.add(event)
        self.observer.on_event(event, self.history)

    def _is_stored(self, event: Event) -> bool:
        self.check_held()
        try:
            self.store.append(self.job.id, event, generation=self.generation)
        except StoreUnavailable as error:
            if not self.is_patient:
                raise
            _log.warning("job %s waits for the store: %s", self.job.id, error)
            return False
        return True

    def add_reply(self, reply: Reply) -> None:
        self.append(ReplyAdded(reply=self.history.renamed(reply)))

    def add_result(self, result: ToolResult) -> None:
        self.append(ResultAdded(result=result))

    def begin(self, call: ToolCall, place: str) -> None:
        self.append(CallStarted(call_id=call.id, place=place))

    def notify(self, text: str, reason: str, answer: str = "") -> None:
        """Tell the model something before its next turn, once: the same reason again is nothing.

        `answer` is the one that is sent back by this.
        """
        if all(notice.reason != reason for notice in self.history.last.notices):
            self.append(NoticeAdded(text=text, reason=reason, answer=answer))

    def land(self, text: str, reason: FinishReason, why: str) -> None:
        """Ask the model for the best answer so far: its next reply has no tools and is the last."""
        if self.history.landing is None:
            self.append(NoticeAdded(text=text, reason=reason, landing=reason, why=why))

    def remark(self, text: str) -> None:
        """Tell the person something."""
        self.append(Remarked(text=text))

    def check_cancelled(self) -> None:
        if self.is_cancelled():
            raise Cancelled

    def end(self, stop: Stop) -> None:
        """End the job. When its last turn was asked for already, that is why it ends.

        A job ends once: what comes after that is a remark.
        """
        if self.job.status.is_final:
            self.remark(f"after the end: {stop}")
            return
        notice = self.history.landing
        if notice and stop.reason != notice.landing and not isinstance(stop, Cancelled):
            stop = landed(notice, stop.answer)
        cancelled = isinstance(stop, Cancelled)
        self._close(ResultStatus.CANCELLED if cancelled else ResultStatus.SKIPPED, str(stop))
        reason = FinishReason(stop.reason)
        if reason is FinishReason.ANSWERED:
            end = Ended(status=status_for(reason), finish_reason=reason, answer=stop.answer or None)
        else:
            end = self._failed(status_for(reason), reason, stop.kind, str(stop), stop.answer)
        self.append(end)

    def give_up(self, error: Exception) -> None:
        """End the job because infrastructure failed and trying again did not help."""
        if self.job.status.is_final:
            self.remark(f"after the end: {error}")
            return
        self._close(ResultStatus.SKIPPED, "the job ended before it had a result")
        kind = type(error).__name__
        self.append(self._failed(Status.DEAD, FinishReason.FAILED, kind, str(error)))

    def _failed(
        self, status: Status, reason: FinishReason, kind: str, message: str, answer: str = ""
    ) -> Ended:
        """An end that is no success: without an answer, with the one that was sent back last."""
        if not answer and (answer := self.history.sent_back):
            message += "; the answer is one that was sent back"
        error = JobError(type=kind, message=message)
        return Ended(status=status, finish_reason=reason, answer=answer or None, error=error)

    def _close(self, status: ResultStatus, why: str) -> None:
        """Give every call that was asked for and not run its result."""
        begun = self.history.last.begun
        for call in self.history.last.pending:
            became, said = status, "not run"
            if call.id in begun:
                became, said = _BEGUN.get(status, status), "begun; nobody knows whether it ran"
            text = f"status: {became}  ({said})\n{why}"
            result = ToolResult(call_id=call.id, name=call.name, status=became, text=text)
            self.add_result(result)


class Hook:
    """Does nothing at each moment; a feature overrides what it needs.

    Any method may raise `Stop` (end the job) or `Pause` (leave it), `before_tool` also `SkipCall`.
    After a crash a method may be called again for the same reply or call.
    """

    def before_model(self, run: Run) -> None:
        """The model is about to be asked."""

    def after_model(self, run: Run, reply: Reply) -> None:
        """The model has answered, and the reply is stored. `run.notify` asks it again."""

    def before_tool(self, run: Run, call: ToolCall) -> None:
        """A call is about to be begun for the first time."""

    def after_tool(self, run: Run, call: ToolCall, result: ToolResult) -> None:
        """A call has its result, and the result is stored."""


class Hooks(Hook):
    """Several hooks as one, in their order, failing closed."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = tuple(hooks)

    def before_model(self, run: Run) -> None:
        for hook in self._hooks:
            _guard(hook, hook.before_model, run)

    def after_model(self, run: Run, reply: Reply) -> None:
        for hook in reversed(self._hooks):
            _guard(hook, hook.after_model, run, reply)

    def before_tool(self, run: Run, call: ToolCall) -> None:
        for hook in self._hooks:
            _guard(hook, hook.before_tool, run, call)

    def after_tool(self, run: Run, call: ToolCall, result: ToolResult) -> None:
        for hook in reversed(self._hooks):
            _guard(hook, hook.after_tool, run, call, result)


def landed(notice: NoticeAdded, answer: str, more: str = "") -> Stop:
    """The end of a job that was asked for its best answer; `more` is said of that."""
    reason = notice.landing or FinishReason.BUDGET
    kind = "LoopDetected" if reason is FinishReason.LOOP else "BudgetSpent"
    why = f"{notice.why}; {more}" if more else notice.why
    return Stop(why, reason=reason, kind=kind, answer=answer)


def _guard(hook: Hook, method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    try:
        method(*args, **kwargs)
    except (CaissonError, SandboxUnavailable):
        raise
    except Exception as error:
        name = type(hook).__name__
        raise Stop(f"hook {name} broke: {error!r}", kind="HookFailed") from error
