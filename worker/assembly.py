"""Build an agent and its sandbox from settings, and check what it is given to work on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.base import Sandbox
from sandbox.errors import (
    EngineUnavailable,
    FileRefused,
    LinkLost,
    SandboxUnavailable,
    StaleGeneration,
)
from sandbox.mounts import check_mounts
from sandbox.types import Limits, Mount, SandboxSpec
from worker.answers import AnswerHook, Answers
from worker.budget import BudgetHook
from worker.builtin import Workplace, builtin_tools
from worker.context import Window, WindowHook
from worker.endpoints import ToolProtocol
from worker.errors import InputInvalid
from worker.grounding import GroundingHook
from worker.hooks import Hook, Hooks
from worker.landing import Landing
from worker.loop import Loop
from worker.messages import Message, Record, Role, Wire
from worker.models.base import Model
from worker.models.fallback import Fallback
from worker.models.making import endpoint_model
from worker.models.recorded import RecordedModel, never
from worker.models.recording import RecordingModel
from worker.models.roles import Roles, Summariser
from worker.models.text_calls import Offered
from worker.models.text_protocol import TextProtocol
from worker.prompts import notice, text
from worker.reading import open_plain
from worker.repetition import LoopHook
from worker.replies import ReplyHook
from worker.settings import Settings
from worker.sizes import said_bytes
from worker.tools import Toolbox

if TYPE_CHECKING:
    from sandbox.lending import Borrower

_log = logging.getLogger(__name__)
_HEADER_CHARS = 400
_TABLES = {".csv", ".tsv"}


class InputFile(Record):
    """A file of this host that is copied into the workspace under its own name."""

    path: Path
    name: str
    size: int
    header: str | None = None

    def describe(self) -> str:
        columns = f", first line: {self.header}" if self.header else ""
        return f"- {self.name} ({said_bytes(self.size)}){columns}"


# ---- what it works on


def check_files(paths: Iterable[Path], limits: Limits | None = None) -> tuple[InputFile, ...]:
    """Look at the input files; with `limits` they must fit into the workspace.

    Raises `InputInvalid`, which names the file, for one that cannot be used.
    """
    files = tuple(_check_file(Path(path)) for path in paths)
    names = [file.name for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputInvalid(f"two input files are called {twice}; rename one")
    total = sum(file.size for file in files)
    if limits and total > limits.workspace_size_bytes:
        largest = max(files, key=lambda file: file.size)
        room = said_bytes(limits.workspace_size_bytes)
        raise InputInvalid(
            f"{largest.path}: the input files ({said_bytes(total)}) do not fit into the workspace "
            f"({room}, which is memory); raise memory or workspace_size, or use --mount"
        )
    return files


def _check_file(path: Path) -> InputFile:
    try:
        with open_plain(path) as source:
            size = os.fstat(source.fileno()).st_size
            first = source.readline(4 * _HEADER_CHARS) if path.suffix.lower() in _TABLES else b""
    except OSError as error:
        raise InputInvalid(f"cannot read {path}: {error.strerror}") from error
    header = first.decode("utf-8-sig", "replace").strip()[:_HEADER_CHARS]
    return InputFile(path=path, name=path.name, size=size, header=header or None)


def put_files(sandbox: Sandbox, files: Iterable[InputFile]) -> None:
    """Copy the files into the workspace.

    Raises `FileRefused`, `SandboxUnavailable`, or `InputInvalid` for a file that cannot be read any
    more.
    """
    for file in files:
        try:
            with open_plain(file.path) as source:
                sandbox.write_file(file.name, source)
        except OSError as error:
            raise InputInvalid(f"cannot read {file.path}: {error.strerror or error}") from error


def put_back(sandbox: Sandbox, files: Iterable[InputFile], most_bytes: int) -> tuple[str, ...]:
    """Copy what a job had made into its new sandbox, as far as it can be; returns the names.

    What is refused (a folder is there by now, say), does not fit, or is not to be had is left
    out: the job goes on without it, and can make it again. Raises `SandboxUnavailable`.
    """
    restored: list[str] = []
    for file in files:
        if file.size > most_bytes:
            continue
        try:
            put_files(sandbox, [file])
        except (FileRefused, InputInvalid) as error:
            _log.info("%s is not put back: %s", file.name, error)
            continue
        most_bytes -= file.size
        restored.append(file.name)
    return tuple(restored)


def read_mounts(paths: Iterable[Path], settings: Settings | None = None) -> tuple[Mount, ...]:
    """Check what is to be shown to the sandbox; raises `sandbox.errors.SpecInvalid`."""
    own = [settings.home] if settings else []
    return check_mounts(paths, forbidden=own)


def opening(
    goal: str,
    files: Iterable[InputFile] = (),
    mounts: Iterable[Mount] = (),
    network: str = "none",
    answer_schema: Wire | None = None,
) -> tuple[Message, Message]:
    """The first two messages of a job: the system prompt, and the goal with what there is."""
    parts = [goal.strip()]
    if listed := [file.describe() for file in files]:
        parts.append("\n".join([notice("files"), *listed]))
    if shown := [f"- {mount.target}" for mount in mounts]:
        parts.append("\n".join([notice("mounts"), *shown]))
    if listed or shown:
        parts.append(notice("look_first"))
    if answer_schema is not None:
        schema = json.dumps(answer_schema, ensure_ascii=False)
        parts.append(notice("answer_schema", schema=schema))
    goal_message = Message(role=Role.USER, content="\n\n".join(parts))
    reach = notice("offline" if network == "none" else "online", network=network)
    prompt = text("system.md").replace("{network}", reach)
    return Message(role=Role.SYSTEM, content=prompt), goal_message


# ---- what it is made of


def start_sandbox(settings: Settings, spec: SandboxSpec, spares: Borrower | None = None) -> Sandbox:
    """Take a spare sandbox, or start one with the driver that is set; raises `SandboxError`."""
    if settings.driver == "process":
        from sandbox.process import ProcessSandbox  # noqa: PLC0415 - one driver, not both

        return ProcessSandbox.start(spec, allow_unisolated=settings.allow_unisolated)
    from sandbox.docker import DockerSandbox  # noqa: PLC0415
    from sandbox.owner import owner  # noqa: PLC0415

    spare = spares.take(spec) if spares else None
    return spare or DockerSandbox.start(spec.model_copy(update={"owner": owner()}))


def adopt_sandbox(settings: Settings, spec: SandboxSpec, place: str) -> Sandbox | None:
    """Take over a running sandbox; None if it does not live any more, or is of no use.

    Raises `StaleGeneration` when another worker has it, `EngineUnavailable`, and `LinkLost`.
    """
    if settings.driver == "process":
        return None  # it ended with its host
    from sandbox.docker import DockerSandbox  # noqa: PLC0415

    try:
        return DockerSandbox.adopt(place, spec)
    except (StaleGeneration, EngineUnavailable, LinkLost):
        raise
    except SandboxUnavailable as error:  # it has ended, is stuck, or speaks another version
        _log.info("sandbox %s is not taken over: %s", place, error)
        return None


def furnished(sandbox: Sandbox, files: Iterable[InputFile]) -> Sandbox:
    """Put files into a new sandbox, which is removed if that fails."""
    try:
        put_files(sandbox, files)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def make_model(
    settings: Settings,
    *,
    replay: Path | None = None,
    record: Path | None = None,
    is_cancelled: Callable[[], bool] = never,
) -> Model:
    """The model that the settings name, or a recording in its place.

    Raises `InputInvalid` or `RecordingInvalid` when there is none to be had, `Cancelled` while it
    is waited for.
    """
    if replay and record and _is_same(replay, record):
        raise InputInvalid(f"{record}: cannot be replayed and recorded at once")
    if replay:
        recorded = RecordedModel(replay, is_cancelled)
        return _read(recorded, settings.tool_protocol, record)
    return _roles(settings, _made(settings, record))


def _made(settings: Settings, record: Path | None) -> dict[str, Model]:
    """Each model that a job may ask, by its name."""
    models: dict[str, Model] = {}
    with ExitStack() as made:  # those that could be made, should one of them not be
        for name in settings.asked or ("",):
            model = _asked(settings, name, record)
            models[name] = made.enter_context(closing(model))
        made.pop_all()
    return models


def _roles(settings: Settings, models: Mapping[str, Model]) -> Model:
    usual = (settings.model, *settings.fallbacks)
    worker = _in_turn(models, usual)

    def role(name: str | None) -> Model:
        return _in_turn(models, (name, *usual)) if name else worker

    return Roles(
        worker,
        planner=role(settings.planner_model),
        summariser=role(settings.summariser_model),
    )


def _in_turn(models: Mapping[str, Model], names: Iterable[str]) -> Model:
    """The first of the models, and after it the others should it be down."""
    chosen = [models[name] for name in dict.fromkeys(names)]
    return chosen[0] if len(chosen) == 1 else Fallback(chosen)


def make_summariser(settings: Settings, model: Model) -> Model:
    """A job's `model` as it is asked for summaries: they are no turns, and may be another's.

    Closing it closes `model`.
    """
    return Summariser(model, settings.summariser_model or model.name)


def _asked(settings: Settings, name: str, record: Path | None) -> Model:
    choice = settings.choice(name)
    has_fallback = name != (settings.model, *settings.fallbacks)[-1]
    model = endpoint_model(choice, settings.home / "slots", has_fallback=has_fallback)
    return _read(model, choice.tool_protocol, record)


def _read(model: Model, protocol: ToolProtocol, record: Path | None) -> Model:
    """The model, its replies recorded as they come, and read for calls that are text."""
    if record:
        model = RecordingModel(model, record)
    return model if protocol == "native" else TextProtocol(model, in_text=protocol == "text")


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths are one file, by whatever links."""
    try:
        return one.samefile(other)
    except OSError:  # one is not there, or not to be looked at
        return one.resolve() == other.resolve()


def build(settings: Settings, model: Model, place: Workplace, more: Iterable[Hook] = ()) -> Loop:
    """Put an agent together; the hooks in `more` come last."""
    tools = Toolbox(
        builtin_tools(place, settings.tools),
        place=lambda: place.place,
        network=settings.network,
    )
    limits = settings.loop_limits()
    choice = settings.choice(settings.model)
    answers = Answers(Offered.of(tools.schemas), settings.answer_schema)
    replies = ReplyHook(limits, answers=answers, reply_tokens=choice.max_output_tokens)
    taken = AnswerHook(answers, settings.answer_corrections)
    summariser = make_summariser(settings, model) if settings.summaries else None
    return Loop(
        model=model,
        tools=tools,
        # after a reply they run in reverse: a last turn is an end before anything else is judged
        hooks=Hooks(
            [
                taken,
                BudgetHook(),
                GroundingHook(answers),
                replies,
                LoopHook(limits),
                Landing(answers),
                WindowHook(),
                *more,
            ]
        ),
        window=Window(choice.context_tokens, choice.max_output_tokens, summariser),
        model_timeout_s=settings.model_timeout_s,
    )
