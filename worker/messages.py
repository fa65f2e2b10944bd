"""The records of a job: what was said, what was done, and how it ended.

A message keeps everything an OpenAI-compatible endpoint sent, so that it can be sent back as it
was: `Message.from_wire(m).to_wire() == m` for every valid message. A job's history is a list of
events that only grows; nothing here is ever changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.types import Execution, FileInfo

Wire = dict[str, Any]  # one JSON object as an endpoint sends or takes it


class Record(BaseModel):
    """A frozen value: no field can be changed, and none that is not declared can be given."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---- what is said


class ToolCall(Record):
    """A call that a model asks for. `arguments` is the text that the model wrote, unparsed."""

    id: str
    name: str
    arguments: str = "{}"
    repaired: str | None = Field(None, description="what we had to mend to read it as a call")
    is_text: bool = Field(default=False, description="it was part of what the model said")
    extra: Wire = Field(default_factory=dict, description="other fields of the wire, kept")

    @classmethod
    def from_wire(cls, wire: Wire) -> ToolCall:
        function = wire["function"]
        extra = {k: v for k, v in wire.items() if k not in {"id", "type", "function"}}
        return cls(
            id=wire["id"], name=function["name"], arguments=function["arguments"], extra=extra
        )

    def to_wire(self) -> Wire:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Message(Record):
    """One chat message. `extra` keeps fields that we do not interpret (reasoning, refusal …)."""

    role: Role
    content: str | tuple[Wire, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    extra: Wire = Field(default_factory=dict)

    @classmethod
    def from_wire(cls, wire: Wire) -> Message:
        """Read a valid message of the wire. What endpoints send first passes `models.normal`."""
        known = {"role", "content", "tool_calls", "tool_call_id"}
        extra = {k: v for k, v in wire.items() if k not in known}
        for name in ("content", "tool_calls"):  # absent and null are told apart
            if name in wire and not wire[name]:
                extra[name] = wire[name]
        content = wire.get("content")
        return cls(
            role=Role(wire["role"]),
            content=tuple(content) if isinstance(content, list) else content,
            tool_calls=tuple(ToolCall.from_wire(c) for c in wire.get("tool_calls") or ()),
            tool_call_id=wire.get("tool_call_id"),
            extra=extra,
        )

    def to_wire(self) -> Wire:
        wire: Wire = {"role": self.role.value}
        if isinstance(self.content, tuple):
            wire["content"] = list(self.content)
        elif self.content or "content" in self.extra or not self.tool_calls:
            wire["content"] = self.content
        if self.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in self.tool_calls]
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        return {**wire, **self.extra}

    @property
    def text(self) -> str:
        """The text of the message, whatever shape its content has."""
        if isinstance(self.content, tuple):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class Usage(Record):
    """Tokens as the endpoint counted them; `cost` is None when no price is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        known = self.cost is not None and other.cost is not None
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=(self.cost or 0.0) + (other.cost or 0.0) if known else None,
        )

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Finish(StrEnum):
    """Why a reply ended."""

    STOP = "stop"  # the model was done, with or without calls
    LENGTH = "length"  # cut off: nothing of it may be run
    FILTER = "content_filter"


class Reply(Record):
    """One answer of a model, paid for. Reasoning is in `message.extra`, never in its content."""

    message: Message
    finish: Finish = Finish.STOP
    usage: Usage = Usage()
    model: str = ""
    duration_s: float = 0.0
    is_last: bool = Field(default=False, description="of a recording, which has none after it")
    waited_s: float = Field(0.0, description="part of the duration that was waiting to try again")
    remarks: tuple[str, ...] = Field((), description="what a person should know of how it came")
    request_chars: int = Field(
        0, description="size of the request (`worker.cutting.size_of`), to calibrate estimates"
    )

    @property
    def text(self) -> str:
        return self.message.text.strip()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls

    @property
    def reasoning(self) -> str:
        """What the model thought, where the endpoint shows it."""
        found = self.message.extra.get("reasoning_content") or self.message.extra.get("reasoning")
        return found if isinstance(found, str) else ""


class ResultStatus(StrEnum):
    """What became of a call."""

    OK = "ok"
    ERROR = "error"  # it ran and failed
    REFUSED = "refused"  # not run: unknown tool, arguments that cannot be used
    SKIPPED = "skipped"  # not run: a hook said no
    CANCELLED = "cancelled"  # not run, or ended early, because the job was cancelled
    UNKNOWN = "unknown"  # begun before a crash; nobody can say whether it ran


class ToolResult(Record):
    """The one result of a call. `text` is the observation: exactly what the model is shown."""

    call_id: str
    name: str
    status: ResultStatus
    text: str
    execution: Execution | None = None
    hint: str | None = None
    repaired: str | None = None
    files: tuple[FileInfo, ...] = ()
    duration_s: float = 0.0

    def to_message(self) -> Message:
        return Message(role=Role.TOOL, content=self.text, tool_call_id=self.call_id)


# ---- what a job is


class Status(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"  # nobody works on it
    RUNNING = "running"  # a worker drives it
    WAITING = "waiting"  # a person must decide first
    SUCCEEDED = "succeeded"  # answered
    FAILED = "failed"  # ended without an answer of its own accord: see the finish reason
    CANCELLED = "cancelled"  # ended because somebody asked for it
    DEAD = "dead"  # infrastructure failed and retries did not help

    @property
    def is_final(self) -> bool:
        return self in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.DEAD}


class FinishReason(StrEnum):
    """Why a job ended."""

    ANSWERED = "answered"
    BUDGET = "budget"
    LOOP = "loop"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Budget(Record):
    """What a job may use. None: no limit."""

    max_steps: int | None = Field(None, ge=1, description="replies of the model")
    timeout_s: float | None = Field(None, gt=0, description="wall time, all waiting counted")
    max_working_s: float | None = Field(None, gt=0, description="time without waiting for others")
    max_tokens: int | None = Field(None, ge=1, description="input and output, all replies")
    max_tool_calls: int | None = Field(None, ge=1)
    max_cost: float | None = Field(None, gt=0, description="in the currency of the price table")


class Artifact(Record):
    """A file that a job made, as it lies on this host."""

    name: str
    size: int
    mime: str
    path: str
    source: str = Field("", description="its name in the workspace")
    sha256: str = Field("", description="names its content among the blobs; empty: not there")


class JobError(Record):
    """Why a job did not succeed: a class name for programs, a line for people."""

    type: str
    message: str


class Job(Record):
    """One goal being worked on. The part that changes is folded from the events."""

    id: str
    goal: str
    model: str = ""
    tools: tuple[str, ...] = ()
    budget: Budget = Budget()
    status: Status = Status.QUEUED
    finish_reason: FinishReason | None = None
    answer: str | None = None
    steps: int = 0
    usage: Usage = Usage()
    artifacts: tuple[Artifact, ...] = ()
    error: JobError | None = None

    def summary(self) -> Wire:
        """The job as programs are given it; these keys are fixed."""
        keys = {"id", "status", "finish_reason", "answer", "steps", "usage", "error"}
        files = {"artifacts": {"__all__": {"name", "size", "mime", "path"}}}
        return self.model_dump(mode="json", include={**dict.fromkeys(keys, True), **files})


# ---- what was asked


class Input(Record):
    """A file that somebody gave to a job, kept among the blobs."""

    name: str
    size: int
    sha256: str
    header: str | None = Field(None, description="first line of a table")


class Order(Record):
    """What a worker must know to build a job's agent and sandbox; goes with the job."""

    options: Wire = Field(default_factory=dict, description="settings that the submitter chose")
    inputs: tuple[Input, ...] = ()
    mounts: tuple[str, ...] = Field((), description="paths of the worker's host")
    replay: str | None = Field(None, description="sha256 of a recording in place of a model")
    key: str | None = Field(None, description="a second submission with it is the same job")
    priority: int = Field(0, ge=-100, le=100, description="higher is sooner")
    memory_bytes: int = Field(0, ge=0, description="what its sandbox reserves")
    cpus: float = Field(0.0, ge=0)
    deliver: Wire | None = Field(None, description="whom a pipeline wants told of the end")


# ---- what happens: the append-only log


class Happening(Record):
    """Base of the events. `at` is the time in seconds since 1970."""

    at: float = 0.0


class MessageAdded(Happening):
    """The system prompt or the goal."""

    kind: Literal["message"] = "message"
    message: Message


class ReplyAdded(Happening):
    """The model answered."""

    kind: Literal["reply"] = "reply"
    reply: Reply


class CallStarted(Happening):
    """A call is about to run. `place` names the sandbox in which it will."""

    kind: Literal["call"] = "call"
    call_id: str
    place: str = ""


class ResultAdded(Happening):
    """A call has its one result."""

    kind: Literal["result"] = "result"
    result: ToolResult


class NoticeAdded(Happening):
    """Something that we tell the model between its turns: a nudge, or that its time is up.

    With `landing` the next reply is the last, gets no tools, and ends the job for that reason.
    `answer` is one that it sends back; it counts if the job ends before there is another.
    """

    kind: Literal["notice"] = "notice"
    text: str
    reason: str
    answer: str = ""
    landing: FinishReason | None = None
    why: str = Field("", description="of a landing, for people: the limit that was met")


class Remarked(Happening):
    """Something that a person should know and the model need not."""

    kind: Literal["remark"] = "remark"
    text: str


class SummaryAdded(Happening):
    """The oldest steps were summed up; from now on the model is sent this in their place.

    An attempt that came to nothing is one too, because it may have been paid for: it has a `fault`
    and no text, and replaces nothing.
    """

    kind: Literal["summary"] = "summary"
    text: str = ""
    steps: int = Field(0, ge=0, description="the summary stands for so many of the oldest steps")
    usage: Usage = Usage()
    model: str = ""
    fault: str = ""


class WindowLearnt(Happening):
    """The model's window was found to be smaller than it was taken to be."""

    kind: Literal["window"] = "window"
    tokens: int = Field(ge=1, description="what the model takes, from now on")
    why: str = Field("", description="for people: how it showed, and the remedy")


class SandboxOpened(Happening):
    """The job's calls run in this sandbox from now on."""

    kind: Literal["opened"] = "opened"
    place: str
    engine: str = Field("", description="identity of the engine on which it lives")


class SandboxReplaced(Happening):
    """The sandbox was lost and a new one made; its files (but inputs) and variables are gone."""

    kind: Literal["sandbox"] = "sandbox"
    why: str


class ArtifactsAdded(Happening):
    """Files were taken out of the sandbox; one of the same name takes the place of an older.

    Before them, those that the job itself has removed from its workspace are left out.
    """

    kind: Literal["artifacts"] = "artifacts"
    artifacts: tuple[Artifact, ...]
    gone: tuple[str, ...] = Field((), description="names in the workspace")


class Ended(Happening):
    """The job is over. There is exactly one, and only artefacts may follow it."""

    kind: Literal["ended"] = "ended"
    status: Status
    finish_reason: FinishReason
    answer: str | None = None
    error: JobError | None = None


Event = Annotated[
    MessageAdded
    | ReplyAdded
    | CallStarted
    | ResultAdded
    | NoticeAdded
    | Remarked
    | SummaryAdded
    | WindowLearnt
    | SandboxOpened
    | SandboxReplaced
    | ArtifactsAdded
    | Ended,
    Field(discriminator="kind"),
]
