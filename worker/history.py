"""A job as its events tell it: everything that the loop, hooks and tools derive from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandbox.types import Execution, FileInfo
from worker.counting import Counts
from worker.messages import (
    Artifact,
    ArtifactsAdded,
    CallStarted,
    Ended,
    Event,
    FinishReason,
    Job,
    Message,
    MessageAdded,
    NoticeAdded,
    Reply,
    ReplyAdded,
    ResultAdded,
    ResultStatus,
    SandboxOpened,
    SandboxReplaced,
    Status,
    SummaryAdded,
    ToolCall,
    ToolResult,
    WindowLearnt,
)

T = TypeVar("T")

MOST_CALLS = 128  # of one reply: OpenAI's endpoints take no message back that has more
_WHOLE = {ResultStatus.OK, ResultStatus.ERROR}  # the call has run to its end


@dataclass(slots=True)
class Turn:
    """One reply, its calls, and what we told the model after it. The first turn has no reply."""

    reply: Reply | None = None
    begun: dict[str, CallStarted] = field(default_factory=dict)
    results: dict[str, ToolResult] = field(default_factory=dict)
    notices: list[NoticeAdded] = field(default_factory=list)
    is_summed_up: bool = False  # or it was tried to, after it and before the next one

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.reply.calls if self.reply else ()

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """The calls that have no result yet, in the order in which they were asked for."""
        return tuple(call for call in self.calls if call.id not in self.results)

    @property
    def is_open(self) -> bool:
        """Something must still be done about the reply: run its calls, or take it as the answer."""
        return self.reply is not None and bool(
            self.pending if self.calls else not self.notices,
        )


class History:
    """The job and its events. Only `add` changes it, and only by one more event.

    Sums are kept as events come, so that a step costs the same however long the job has gone on.
    They follow from the events: a history that is read again has the same ones.

    `place` names the sandbox it is in, `is_moved` says that it had another before. `uncollected`
    are the files that calls have reported as new or changed since they were last taken out;
    `collected_bytes` counts each version that was. `latest` are the artefacts by their names in
    the workspace, the one that was taken last at the end. `tool_calls` were begun; `lost_names` are
    the variables that went with an interpreter. `counts` are the tokens that the endpoint has
    counted. `summary` stands for the oldest steps; `failed_summaries` came to nothing since the
    last one that did not, the last of them when there were `last_failed` turns. `window_tokens` is
    what the model was found to take.
    """

    def __init__(self, job: Job, events: Iterable[Event] = ()) -> None:
        self.job = job
        self.opening: list[Message] = []
        self.turns = [Turn()]
        self.losses_in_a_row = 0
        self.is_moved = False
        self.place = ""
        self.uncollected: dict[str, FileInfo] = {}
        self.latest: dict[str, Artifact] = {}
        self.collected_bytes = 0
        self.started_at: float | None = None
        self.waited_s = 0.0
        self.tool_calls = 0
        self.lost_names: tuple[str, ...] = ()
        self.counts = Counts()
        self.summary: SummaryAdded | None = None
        self.failed_summaries = 0
        self.last_failed = 0
        self.window_tokens: int | None = None
        self._spilled: set[str] = set()
        self._calls: dict[str, ToolCall] = {}
        self._numbers: dict[str, int] = {}
        self._results: dict[int, ToolResult] = {}
        self._views: dict[Callable[[], Any], Any] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        if self.started_at is None:
            self.started_at = event.at
        match event:
            case MessageAdded():
                self.opening.append(event.message)
            case ReplyAdded():
                self._add_reply(event.reply)
            case CallStarted():
                self.tool_calls += event.call_id not in self.turns[-1].begun
                self.turns[-1].begun[event.call_id] = event
            case ResultAdded():
                self._add_result(event.result)
            case NoticeAdded():
                self.turns[-1].notices.append(event)
            case SummaryAdded() | WindowLearnt():
                self._add_limit(event)
            case SandboxOpened() | SandboxReplaced():
                self._add_sandbox(event)
            case ArtifactsAdded():
                self._add_artifacts(event)
        self.job = fold(self.job, event)

    def _add_reply(self, reply: Reply) -> None:
        self.turns.append(Turn(reply))
        self.waited_s += reply.waited_s
        self.counts.add(reply)
        for call in reply.calls:
            self._calls[call.id] = call
            self._numbers[call.id] = len(self._numbers) + 1

    def _add_limit(self, event: SummaryAdded | WindowLearnt) -> None:
        if isinstance(event, WindowLearnt):
            self.window_tokens = min(event.tokens, self.window_tokens or event.tokens)
            return
        self.last.is_summed_up = True
        if event.fault:
            self.failed_summaries += 1
            self.last_failed = len(self.turns)
        else:
            self.summary, self.failed_summaries = event, 0

    def _add_sandbox(self, event: SandboxOpened | SandboxReplaced) -> None:
        if isinstance(event, SandboxOpened):
            self.place = event.place
        else:
            self.losses_in_a_row += 1
            self.is_moved = True

    def _add_result(self, result: ToolResult) -> None:
        self.turns[-1].results[result.call_id] = result
        self._results[self._numbers[result.call_id]] = result
        if done := result.execution:
            self._add_execution(done, is_whole=result.status in _WHOLE)
        made = {file.name: file for file in result.files if file.name not in self._spilled}
        self.uncollected.update(made)

    def _add_execution(self, done: Execution, *, is_whole: bool) -> None:
        if done.output_file:  # not made by the job
            self._spilled.add(done.output_file)
        if done.lost_names:
            self.lost_names = tuple(dict.fromkeys((*self.lost_names, *done.lost_names)))
        if is_whole:
            self.losses_in_a_row = 0

    def _add_artifacts(self, event: ArtifactsAdded) -> None:
        for name in event.gone:
            self.uncollected.pop(name, None)
            self.latest.pop(name, None)
        for artifact in event.artifacts:
            self.uncollected.pop(artifact.source, None)
            self.latest.pop(artifact.source, None)
            self.latest[artifact.source] = artifact
            self.collected_bytes += artifact.size

    @property
    def steps(self) -> list[Turn]:
        """The turns that have a reply."""
        return self.turns[1:]

    @property
    def last(self) -> Turn:
        return self.turns[-1]

    @property
    def landing(self) -> NoticeAdded | None:
        """The notice that made the next (or the last) reply the final one."""
        notices = (n for turn in self.turns[-2:] for n in turn.notices if n.landing)
        return next(notices, None)

    @property
    def sent_back(self) -> str:
        """The latest answer that was sent back, if there is one."""
        notices = (n for turn in reversed(self.turns) for n in reversed(turn.notices) if n.answer)
        return next((notice.answer for notice in notices), "")

    def number(self, call_id: str) -> int:
        """The number of a call, as the model is told it: 1 is the first of the job."""
        return self._numbers[call_id]

    def call(self, call_id: str) -> ToolCall:
        """The call of that id. Raises `KeyError`."""
        return self._calls[call_id]

    def result(self, number: int) -> ToolResult | None:
        """The result of the call of that number, if it has one."""
        return self._results.get(number)

    def results(self) -> Iterator[tuple[int, ToolResult]]:
        """Every result with the number of its call, oldest first."""
        yield from self._results.items()

    def view(self, kind: Callable[[], T]) -> T:
        """The one `kind` of this history, which is given the history and grows with it.

        What it says must follow from the events alone, for it is not stored.
        """
        if kind not in self._views:
            self._views[kind] = kind()
        found: T = self._views[kind]
        return found

    def renamed(self, reply: Reply) -> Reply:
        """Give the calls of a new reply ids of our own.

        Those of endpoints are missing, repeated or too long. Nine letters and digits are what
        the strictest of them (Mistral's) takes; all others take them too. Of more calls than
        anybody makes the first are kept.
        """
        first = len(self._numbers) + 1
        calls = tuple(
            call.model_copy(update={"id": f"c{first + i:08d}"})
            for i, call in enumerate(_first_of(reply.calls))
        )
        message = reply.message.model_copy(update={"tool_calls": calls})
        return reply.model_copy(update={"message": message})

    def elapsed_s(self, now: float) -> float:
        return max(0.0, now - self.started_at) if self.started_at is not None else 0.0

    def time_left_s(self, now: float) -> float:
        """Seconds until the job's time budget is spent (infinite without one)."""
        elapsed, budget = self.elapsed_s(now), self.job.budget
        left = float("inf") if budget.timeout_s is None else budget.timeout_s - elapsed
        if budget.max_working_s is not None:
            left = min(left, budget.max_working_s - (elapsed - self.waited_s))
        return left


def _first_of(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """As many calls as one reply may have; the last of them says how many were dropped."""
    if len(calls) <= MOST_CALLS:
        return calls
    last = calls[MOST_CALLS - 1]
    why = f"{len(calls) - MOST_CALLS} calls behind this one were dropped, {MOST_CALLS} are the most"
    repaired = f"{last.repaired}; {why}" if last.repaired else why
    return (*calls[: MOST_CALLS - 1], last.model_copy(update={"repaired": repaired}))


def fold(job: Job, event: Event) -> Job:
    """Fold one event into the job's record."""
    match event:
        case ReplyAdded():
            change = {"steps": job.steps + 1, "usage": job.usage + event.reply.usage}
            return job.model_copy(update=change)
        case SummaryAdded():
            return job.model_copy(update={"usage": job.usage + event.usage})
        case ArtifactsAdded():
            return job.model_copy(update={"artifacts": _merged(job.artifacts, event)})
        case Ended():
            names = ("status", "finish_reason", "answer", "error")
            return job.model_copy(update={name: getattr(event, name) for name in names})
        case MessageAdded() if job.status is Status.QUEUED:
            return job.model_copy(update={"status": Status.RUNNING})
    return job


def _merged(old: tuple[Artifact, ...], event: ArtifactsAdded) -> tuple[Artifact, ...]:
    gone = set(event.gone)
    left = (artifact for artifact in old if artifact.source not in gone)
    by_name = {artifact.name: artifact for artifact in (*left, *event.artifacts)}
    return tuple(by_name.values())


def status_for(reason: FinishReason) -> Status:
    """The status of a job that ended with `reason`."""
    ends = {
        FinishReason.ANSWERED: Status.SUCCEEDED,
        FinishReason.CANCELLED: Status.CANCELLED,
    }
    return ends.get(reason, Status.FAILED)
