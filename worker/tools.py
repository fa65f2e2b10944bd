"""Tools: typed functions that a model may call, and the one door through which it does.

A tool never raises into the loop: what it says, what it refuses and what breaks in it become the
text of a result. Only infrastructure failure and signals pass, because the model cannot help.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import re
import time
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.types import Execution, FileInfo, Outcome
from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid, CaissonError, InputInvalid, ToolError
from worker.feedback import Observation, render
from worker.history import History
from worker.hooks import Run
from worker.messages import CallStarted, Record, ResultStatus, ToolCall, ToolResult, Wire
from worker.names import bare, known_name
from worker.prompts import notice
from worker.signatures import describe

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class Resume(Enum):
    """What may be done about a call that was begun before a crash and has no result."""

    NEVER = "never"  # it has effects that we cannot look up: the model is told so
    REPEAT = "repeat"  # it has none, or the same ones again
    BY_ID = "by id"  # the sandbox knows the id and will not run it twice


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a tool may know of the call that it serves."""

    number: int
    execution_id: str
    history: History
    time_left_s: float
    is_cancelled: Callable[[], bool]


class Said(Record):
    """What a tool has to say when that is more than a text."""

    text: str
    files: tuple[FileInfo, ...] = ()


Value = str | Said | Execution


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may call. Made by `tool` or `schema_tool`."""

    name: str
    description: str
    parameters: Wire
    validate: Callable[[Wire], Wire]
    run: Callable[[CallContext, Wire], Value]
    resume: Resume = Resume.NEVER
    recall: Callable[[CallContext], Execution | None] | None = None

    @property
    def schema(self) -> Wire:
        """The tool as an endpoint wants to be told of it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def tool(
    function: Callable[..., Value],
    *,
    name: str | None = None,
    resume: Resume = Resume.NEVER,
    recall: Callable[[CallContext], Execution | None] | None = None,
) -> Tool:
    """Make a tool of a function with annotated parameters; its docstring is the description.

    A first parameter of type `CallContext` is not the model's: it is filled in for each call.
    """
    form = _form(function, name or function.__name__)

    def run(context: CallContext, arguments: Wire) -> Value:
        return function(context, **arguments) if form.wants_context else function(**arguments)

    description = inspect.cleandoc(function.__doc__ or "")
    return Tool(form.name, description, form.parameters, form.validate, run, resume, recall)


@dataclass(frozen=True, slots=True)
class _Form:
    """The parameters of a function, as a model may fill them in."""

    name: str
    fields: tuple[str, ...]
    wants_context: bool
    model: type[BaseModel]
    parameters: Wire

    def validate(self, arguments: Wire) -> Wire:
        try:
            read = self.model.model_validate(arguments)
        except ValidationError as error:
            wrong = [(_place(e["loc"]), _fault(e)) for e in error.errors(include_url=False)]
            raise ArgumentsInvalid(_complaint(self.name, wrong, self.parameters)) from None
        return {key: getattr(read, key) for key in self.fields}


# By the code of their functions, with everything else that a form is made of.
_forms: WeakKeyDictionary[CodeType, tuple[Wire, tuple[object, ...], _Form]] = WeakKeyDictionary()


def _form(function: Callable[..., Value], name: str) -> _Form:
    """The form of a function, made once: each job has the same functions, over its own sandbox."""
    if not isinstance(function, FunctionType):
        return _made_form(function, name)
    given = name, function.__annotations__, function.__defaults__, function.__kwdefaults__
    names, earlier, form = _forms.get(function.__code__, (None, None, None))
    if form is None or names is not function.__globals__ or earlier != given:
        form = _made_form(function, name)
        _forms[function.__code__] = function.__globals__, given, form
    return form


def _made_form(function: Callable[..., Value], name: str) -> _Form:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    wants_context = False
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is CallContext:
            wants_context = True
            continue
        empty = parameter.default is inspect.Parameter.empty
        fields[parameter.name] = (hints[parameter.name], ... if empty else parameter.default)
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return _Form(name, tuple(fields), wants_context, model, _tidy(model.model_json_schema()))


def schema_tool(
    name: str,
    description: str,
    parameters: Wire,
    function: Callable[[Wire], Value],
    *,
    resume: Resume = Resume.NEVER,
) -> Tool:
    """Make a tool of a JSON Schema and a function that takes the checked arguments.

    Raises `InputInvalid` for a schema with rules that would not be enforced.
    """
    from worker.schema import check_schema, faults  # noqa: PLC0415 - the library loads slowly

    try:
        check_schema(parameters)
    except InputInvalid as error:
        raise InputInvalid(f"tool {name}: {error}") from error
    whole = _closed(parameters)

    def validate(arguments: Wire) -> Wire:
        if wrong := list(faults(arguments, whole)):
            raise ArgumentsInvalid(_complaint(name, wrong, parameters))
        return arguments

    def run(context: CallContext, arguments: Wire) -> Value:
        del context
        return function(arguments)

    return Tool(name, description, parameters, validate, run, resume)


def _closed(parameters: Wire) -> Wire:
    """Refuse arguments that are not declared, where nothing says that there may be others."""
    elsewhere = {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas"}
    rest = {} if elsewhere & parameters.keys() else {"additionalProperties": False}
    return {"type": "object", **rest, **parameters}


class Toolbox:
    """The tools of one agent. A name is registered once."""

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        place: Callable[[], str] = lambda: "",
        network: str = "none",
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._place = place
        self._network = network
        self.schemas: tuple[Wire, ...] = ()
        for item in tools:
            self.add(item)

    def add(self, item: Tool) -> None:
        if not _NAME.fullmatch(item.name):
            raise InputInvalid(f"{item.name!r} cannot be the name of a tool")
        if item.name in self._tools:
            raise InputInvalid(f"there is a tool {item.name} already")
        self._tools[item.name] = item
        self.schemas = (*self.schemas, item.schema)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    @property
    def place(self) -> str:
        """Names the sandbox in which calls run now: another one has never heard of their ids."""
        return self._place()

    def run(self, call: ToolCall, run: Run, begun: CallStarted | None = None) -> ToolResult:
        """Run a call; with `begun`, finish one that was begun before a crash.

        Raises `SandboxUnavailable`, `Infrastructure` and signals; all else is in the result.
        """
        started = time.monotonic()
        number = run.history.number(call.id)
        try:
            item, arguments, repaired = self._read(call)
        except ArgumentsInvalid as error:
            return _result(call, ResultStatus.REFUSED, Observation(number, text=str(error)))
        context = CallContext(
            number=number,
            execution_id=f"{run.job.id}.{call.id}",
            history=run.history,
            time_left_s=run.time_left_s,
            is_cancelled=run.is_cancelled,
        )
        seen = self._observe(item, context, arguments, begun)
        seen.repaired = repaired
        seen.code = next((v for k in ("code", "command") if (v := arguments.get(k))), None)
        return _result(call, seen.status, seen, time.monotonic() - started)

    def _observe(
        self, item: Tool, context: CallContext, arguments: Wire, begun: CallStarted | None
    ) -> Observation:
        seen = Observation(context.number, status=ResultStatus.OK, network=self._network)
        seen.lost_names = context.history.lost_names
        try:
            value = self._value(item, context, arguments, begun)
        except ToolError as error:
            seen.status, seen.text, seen.hint = ResultStatus.ERROR, str(error), error.hint
        except (CaissonError, SandboxUnavailable):
            raise
        except SandboxError as error:  # the request cannot be: a name, a size
            seen.status, seen.text = ResultStatus.ERROR, str(error)
        except Exception as error:  # noqa: BLE001 - a tool may break in any way
            _log.exception("tool %s broke", item.name)
            seen.status = ResultStatus.ERROR
            seen.text = f"the tool itself broke: {type(error).__name__}: {error}"
        else:
            _take(value, seen)
        return seen

    def _value(
        self, item: Tool, context: CallContext, arguments: Wire, begun: CallStarted | None
    ) -> Value | None:
        here = begun is not None and begun.place == self.place
        if begun is None or item.resume is Resume.REPEAT or (here and item.resume is Resume.BY_ID):
            return item.run(context, arguments)
        return item.recall(context) if item.recall else None

    def _read(self, call: ToolCall) -> tuple[Tool, Wire, str | None]:
        name, renamed = self._known_name(call.name)
        item = self._tools[name]
        arguments, mended = read_arguments(call.arguments)
        notes = [note for note in (call.repaired, renamed, mended) if note]
        return item, item.validate(arguments), "; ".join(notes) or None

    def _known_name(self, name: str) -> tuple[str, str | None]:
        if name in self._tools:
            return name, None
        if meant := known_name(name, self._tools):
            return meant, f"the tool's name was {name[:80]!r}"
        raise ArgumentsInvalid(
            f"there is no tool {name[:80]!r}{nearest(bare(name), self._tools)}; "
            f"all tools: {', '.join(self._tools)}"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are near to one that is not, or nothing."""
    known = list(known)
    near = [k for k in known if name and (k.startswith(name.lower()) or name.startswith(k))]
    near += difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; closest: {', '.join(list(dict.fromkeys(near))[:3])}" if near else ""


def shown_arguments(call: ToolCall) -> dict[str, str] | str:
    """The arguments of a call for a person to read; their text as it is when unreadable."""
    try:
        arguments, _ = read_arguments(call.arguments)
    except ArgumentsInvalid:
        return call.arguments
    return {key: str(value) for key, value in arguments.items()}


def _take(value: Value | None, seen: Observation) -> None:
    if value is None:
        seen.status, seen.text = ResultStatus.UNKNOWN, notice("unknown_call")
    elif isinstance(value, Execution):
        seen.execution = value
        seen.files = value.files
        seen.status = ResultStatus.OK if value.outcome is Outcome.OK else ResultStatus.ERROR
    elif isinstance(value, Said):
        seen.text, seen.files = value.text, value.files
    else:
        seen.text = value


def _result(
    call: ToolCall, status: ResultStatus, seen: Observation, duration_s: float = 0.0
) -> ToolResult:
    seen.status = status
    text, hint = render(seen)
    return ToolResult(
        call_id=call.id,
        name=call.name,
        status=status,
        text=text,
        execution=seen.execution,
        hint=hint,
        repaired=seen.repaired,
        files=seen.files,
        duration_s=round(duration_s, 6),
    )


def _complaint(name: str, wrong: list[tuple[str, str]], parameters: Wire) -> str:
    known = list(parameters.get("properties", {}))
    lines = [f"the arguments of {name} are not valid:"]
    for place, fault in wrong:
        near = difflib.get_close_matches(place, known, n=1) if "unknown" in fault else []
        lines.append(f"  {place or 'all'}: {fault}" + (f"; closest: {near[0]}" if near else ""))
    return "\n".join([*lines, f"expected: {describe(parameters)}"])


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc)


def _fault(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    if error["type"] == "missing":
        return "missing, required"
    if error["type"] == "extra_forbidden":
        return "unknown argument"
    given = repr(error["input"])
    return f"{error['msg']}, got {given[:60]}"


def _tidy(schema: Wire) -> Wire:
    """Leave out what costs tokens and says nothing: titles, and null beside a default of null."""
    tidy = {key: value for key, value in schema.items() if key != "title"}
    for name, part in tidy.get("properties", {}).items():
        part.pop("title", None)
        kinds = [p for p in part.get("anyOf", ()) if p != {"type": "null"}]
        if part.get("default", "") is None and len(kinds) == 1:
            del part["anyOf"], part["default"]
            tidy["properties"][name] = {**kinds[0], **part}
    return tidy
