"""All settings, one typed object, read once at the door.

Later wins: defaults, `caisson.toml` (in the current folder, or named by CAISSON_CONFIG),
OPENAI_API_KEY and OPENAI_BASE_URL, CAISSON_… variables, files named by …_FILE variables (secrets
only), options of the command line. A name that
is not a setting is an error everywhere, because a misspelt limit is a limit that is not there.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from sandbox.types import MIB, Limits, Mount, SandboxSpec
from worker import urls
from worker.endpoints import ModelChoice, ModelEntry, Price, ToolProtocol, no_switch
from worker.errors import InputInvalid, SettingsInvalid
from worker.messages import Budget, Record
from worker.sizes import exact_bytes

PREFIX = "CAISSON_"
CONFIG = "CAISSON_CONFIG"
_FOREIGN = {"OPENAI_API_KEY": "api_key", "OPENAI_BASE_URL": "base_url"}
SECRET_FILES = {
    "OPENAI_API_KEY_FILE": "api_key",
    "CAISSON_DATABASE_URL_FILE": "database_url",
    "CAISSON_BROKER_URL_FILE": "broker_url",
    "CAISSON_RESULT_URL_FILE": "result_url",
}
_LINGER_S = 600.0  # after a job's time, for its last reply and its files
_ENDING_S = 60.0  # after a call's time, which its result may need on a busy machine
_UNITS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_size(value: object) -> object:
    """Bytes of "512m", "1g" or "64MiB" (powers of 1024); anything else is left to pydantic."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("is not a size; write it like 512m, 1g or 64MiB")
    return int(float(match[1]) * 1024 ** _UNITS[match[2].lower()])


def _words(value: object) -> object:
    """Split "a, b" as environment variables and options give it."""
    return [w.strip() for w in value.split(",") if w.strip()] if isinstance(value, str) else value


COMMAND_LINE = "command line"
_LIKE, _TELLING = 0.65, 3  # how alike two names must be, and from how many letters a start tells
_FAULTS = {  # in our words; pydantic's are kept where they say more
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "is not a finite number",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "bool_parsing": "is neither true nor false",
    "bool_type": "is neither true nor false",
    "literal_error": "must be {expected}",
    "string_too_short": "is empty",
    "string_type": "is not text",
    "tuple_type": "is not a list",
    "dict_type": "is not a table",
    "model_type": "is not a table",
    "missing": "is missing",
}
MAX_CALL_S = 86_400  # what `sandbox.types.Limits` takes
MOST = 2**40  # bytes of a sandbox: what a store counts with, so that no sum of them overflows
_MOST_SHARE = 2**46  # bytes; engines count in 64 bits, and say it badly when that overflows
# Known here, because every command reads settings, and loading the tools takes long.
TOOLS = (
    "python_interpreter",
    "shell",
    "calculate",
    "read_file",
    "write_file",
    "search_files",
    "read_output",
)
# What belongs to a job, and goes with it to whichever worker; all else is the worker's own.
JOB_SETTINGS = frozenset(
    {
        *("model", "model_timeout_s", "max_output_tokens", "context_tokens", "temperature"),
        *("fallbacks", "planner_model", "summariser_model", "tool_protocol", "summaries"),
        *("tools", "max_steps", "job_timeout_s", "max_working_s", "max_tokens"),
        *("max_tool_calls", "max_cost", "loop_nudge", "loop_block", "loop_stop"),
        *("loop_error_nudge", "loop_error_stop", "loop_cycle_length", "loop_cycle_repeats"),
        *("loop_text_turns", "loop_poll_factor", "loop_observe", "image", "memory", "cpus", "pids"),
        *("call_timeout_s", "max_call_timeout_s", "max_life_s", "network", "workspace_size"),
        *("tmp_size", "preload", "max_artifacts", "max_artifact_bytes"),
        *("answer_schema", "answer_corrections"),
    }
)
# Of these what nobody has chosen is the worker's; all others are settled when a job is submitted,
# so that what is reserved and shown for it is what it gets.
_WORKERS_OWN = {
    *("model", "model_timeout_s", "max_output_tokens", "context_tokens", "temperature"),
    *("fallbacks", "planner_model", "summariser_model", "tool_protocol", "image"),
}
THE_JOB = "the job"
_SECRETS = {"api_key", "database_url", "broker_url", "result_url"}
_KEYED = _SECRETS | {"base_url", "api_key_env"}  # what a key may stand in, by mistake or not
_ENTRIES: dict[str, type[Record]] = {"models": ModelEntry, "prices": Price}
_SIZES = {
    *("memory", "workspace_size", "tmp_size", "max_artifact_bytes", "share_memory"),
    *("pool_memory", "max_result_bytes"),
}
_TABLES = {  # which are JSON in variables
    "prices": '{"MODEL": {"input": 0.4, "output": 1.6}}',
    "models": '{"NAME": {"model": "m", "base_url": "https://host/v1", "api_key_env": "KEY"}}',
    "answer_schema": '{"type": "object", "properties": {"mean": {"type": "number"}}}',
}
_OPTIONS = {
    "job_timeout_s": "--timeout",
    "call_timeout_s": "--timeout",
    "answer_schema": "--schema",
}
Size = Annotated[int, BeforeValidator(parse_size)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]


def _known_tools(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in TOOLS:
            near = nearest(name, TOOLS)
            raise ValueError(f"there is no tool {name!r}{near}; known: {', '.join(TOOLS)}")
    return names


def _enforceable(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is not None:
        from worker.schema import check_schema  # noqa: PLC0415 - the library loads slowly

        try:
            check_schema(schema)
        except InputInvalid as error:
            raise ValueError(str(error)) from None
    return schema


def _module_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a module")
    return names


def _can_be_folder(path: Path | None) -> Path | None:
    """Refuse where no folder can be made, before a job has worked for nothing."""
    if path is None:
        return None
    whole = path.absolute()
    there = next(p for p in (whole, *whole.parents) if os.path.lexists(p))
    if not there.is_dir():
        raise ValueError(f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"nothing may be written in {there}")
    return path


def _checked(check: Callable[[str], str]) -> Callable[[SecretStr | None], SecretStr | None]:
    return lambda url: None if url is None else SecretStr(check(url.get_secret_value()))


_database = _checked(urls.check_database)
_broker = _checked(urls.check_broker)
_results = _checked(urls.check_results)


class LoopLimits(Record):
    """When the same thing again becomes a nudge, a refusal, an end. Counted in steps."""

    nudge: int = Field(2, ge=2)
    block: int = Field(4, ge=2)
    stop: int = Field(6, ge=3)
    error_nudge: int = Field(4, ge=2)
    error_stop: int = Field(8, ge=3)
    cycle_length: int = Field(5, ge=2)
    cycle_repeats: int = Field(3, ge=2)
    text_turns: int = Field(3, ge=1)
    poll_factor: int = Field(3, ge=1)
    observe: bool = False


class Settings(BaseSettings):
    """What is in force. Sizes are bytes ("512m" is accepted), `_s` are seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the given values alone: `load_settings` reads the layers, to know their origin."""
        return (init_settings,)

    # the model
    model: str = Field(
        "", description="of the table models, or as the endpoint knows it; needed unless replaying"
    )
    fallbacks: Words = Field((), description="models that are asked in turn when one is down")
    planner_model: str | None = Field(
        None, min_length=1, description="gives a job's first reply, which sets its course"
    )
    summariser_model: str | None = Field(
        None, min_length=1, description="sums up what no longer fits into the window"
    )
    models: dict[str, ModelEntry] = Field(
        default_factory=dict, description="models by names of one's own, each with its endpoint"
    )
    base_url: str | None = Field(None, description="OpenAI-compatible endpoint (OPENAI_BASE_URL)")
    api_key: SecretStr | None = Field(None, description="OPENAI_API_KEY")
    model_timeout_s: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="one reply, all retries included"
    )
    max_output_tokens: int = Field(4096, ge=16, description="of one reply")
    context_tokens: int = Field(32_768, ge=1024, description="the model's window")
    summaries: bool = Field(
        default=True, description="sum up old steps that no longer fit into the window"
    )
    temperature: float | None = Field(None, ge=0, le=2)
    send_reasoning: bool = Field(
        default=False, description="send reasoning_content back to the endpoint"
    )
    stream: bool = Field(default=False, description="ask for replies in pieces")
    tool_protocol: ToolProtocol = Field(
        "auto", description="calls: native; text, for models that cannot; auto: as it works"
    )
    max_concurrent: int | None = Field(
        None, ge=1, le=1024, description="requests at a time to an endpoint, from all of this host"
    )
    prices: dict[str, Price] = Field(default_factory=dict, description="per million tokens")

    # the agent
    tools: Annotated[Words, AfterValidator(_known_tools)] = Field(
        TOOLS, description="what the model may call"
    )
    answer_schema: Annotated[dict[str, Any] | None, AfterValidator(_enforceable)] = Field(
        None, description="a JSON Schema that the answer must fit, as JSON"
    )
    answer_corrections: int = Field(
        2, ge=0, le=100, description="how often an answer that does not fit is sent back"
    )

    # what a job may use
    max_steps: int = Field(30, ge=1)
    job_timeout_s: float = Field(
        3600.0, gt=0, allow_inf_nan=False, description="wall time of a job"
    )
    max_working_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = Field(None, ge=1)
    max_cost: float | None = Field(None, gt=0, allow_inf_nan=False)

    # loop detection
    loop_nudge: int = Field(2, ge=2)
    loop_block: int = Field(4, ge=2)
    loop_stop: int = Field(6, ge=3)
    loop_error_nudge: int = Field(4, ge=2)
    loop_error_stop: int = Field(8, ge=3)
    loop_cycle_length: int = Field(5, ge=2)
    loop_cycle_repeats: int = Field(3, ge=2)
    loop_text_turns: int = Field(3, ge=1)
    loop_poll_factor: int = Field(3, ge=1)
    loop_observe: bool = Field(default=False, description="report loops, do nothing about them")

    # the sandbox
    driver: Literal["docker", "process"] = "docker"
    allow_unisolated: bool = Field(
        default=False, description="let the process driver run: no isolation"
    )
    image: str = Field("caisson-sandbox:latest", min_length=1)
    memory: Size = Field(
        512 * MIB, ge=64 * MIB, le=MOST, description="of a container, swap included"
    )
    cpus: float = Field(1.0, gt=0, allow_inf_nan=False, le=1024)
    pids: int = Field(64, ge=8, le=32768)
    call_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, le=MAX_CALL_S, description="one call, unless it asks"
    )
    max_call_timeout_s: float = Field(
        300.0, gt=0, allow_inf_nan=False, le=MAX_CALL_S, description="the most it may ask"
    )
    max_life_s: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="a container ends itself after this; default: job_timeout_s and ten minutes",
    )
    network: str = Field("none", min_length=1)
    runtime: str | None = None
    workspace_size: Size | None = Field(None, ge=MIB, le=MOST)
    tmp_size: Size | None = Field(None, ge=MIB, le=MOST)
    preload: Annotated[Words, AfterValidator(_module_names)] = ()

    max_artifacts: int = Field(100, ge=0)
    max_artifact_bytes: Size = Field(256 * MIB, ge=0, description="all artefacts of a job")

    # this host
    data_dir: Annotated[Path | None, AfterValidator(_can_be_folder)] = Field(
        None, description="database, broker, files; default: the user's data directory"
    )
    database_url: Annotated[SecretStr | None, AfterValidator(_database)] = Field(
        None, description="postgresql://…; default: SQLite in data_dir"
    )
    broker_url: Annotated[SecretStr | None, AfterValidator(_broker)] = Field(
        None, description="redis://… or amqp://…; default: one of its own in data_dir"
    )
    result_url: Annotated[SecretStr | None, AfterValidator(_results)] = Field(
        None, description="where pipelines find results; default: a Redis broker, or the database"
    )

    # the queue
    lease_s: float = Field(
        45.0, ge=1, le=3600, allow_inf_nan=False, description="a lost worker is missed after this"
    )
    sweep_s: float = Field(
        5.0, ge=0.2, le=3600, allow_inf_nan=False, description="how often what waits is looked for"
    )
    linger_s: float = Field(
        900.0,
        ge=0,
        le=MAX_CALL_S,
        allow_inf_nan=False,
        description="a queued job's sandbox waits so long for another worker",
    )
    max_losses: int = Field(
        3, ge=1, le=1000, description="workers lost in a row before a job is dead"
    )
    engine_wait_s: float = Field(
        60.0, ge=0, le=3600, allow_inf_nan=False, description="for an engine that is away"
    )
    concurrency: int | None = Field(
        None, ge=1, le=1024, description="jobs at a time of a worker; default: its CPUs"
    )
    share_memory: Size | None = Field(
        None, ge=64 * MIB, le=_MOST_SHARE, description="of this host, for sandboxes; default: 3/4"
    )
    share_cpus: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="for sandboxes; default: twice those there are"
    )
    pool_memory: Size | None = Field(
        None,
        ge=0,
        le=_MOST_SHARE,
        description="for spare sandboxes; 0: keep none; default: 96 MiB for each slot and one more",
    )
    max_result_bytes: Size = Field(
        64 * 1024, ge=1024, le=16 * MIB, description="what a pipeline is given at most"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_switch(cls, value: object, info: ValidationInfo) -> object:
        """Refuse `cpus = true`, which pydantic takes for 1."""
        is_switch = cls.model_fields[info.field_name or ""].annotation is bool
        return value if is_switch else no_switch(value)

    @model_validator(mode="after")
    def _agrees(self) -> Settings:
        free = next((name for name in self.asked if self.choice(name).price is None), None)
        if self.max_cost is not None and free is not None:
            raise ValueError(
                f"max_cost needs a price for {free!r}; set [prices.{json.dumps(free)}] in "
                f"caisson.toml or {PREFIX}PRICES"
            )
        if not self.loop_nudge <= self.loop_block <= self.loop_stop:
            raise ValueError("loop_nudge <= loop_block <= loop_stop must hold")
        if self.loop_error_nudge > self.loop_error_stop:
            raise ValueError("loop_error_nudge <= loop_error_stop must hold")
        if self.call_timeout_s > self.max_call_timeout_s:
            raise ValueError(
                f"call_timeout_s ({self.call_timeout_s:g}) is more than max_call_timeout_s "
                f"({self.max_call_timeout_s:g}); raise that one too"
            )
        if self.max_life_s is not None and self.max_life_s < self.call_timeout_s:
            raise ValueError(
                f"max_life_s ({self.max_life_s:g}) is less than call_timeout_s "
                f"({self.call_timeout_s:g}): the container would end before its call"
            )
        self.limits()
        return self

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of all models that a job may ask."""
        if not self.model:
            return ()
        names = (self.model, *self.fallbacks, self.planner_model, self.summariser_model)
        return tuple(dict.fromkeys(name for name in names if name))

    def choice(self, name: str) -> ModelChoice:
        """The model of that name: of the table, or the endpoint's own name for it."""
        entry = self.models.get(name, ModelEntry())
        place, model = f"models.{name}", entry.model or name
        own = {
            field: getattr(self if getattr(entry, field) is None else entry, field)
            for field in ModelChoice.model_fields.keys() & ModelEntry.model_fields.keys()
        }
        names = {"model_name": f"{place}.model" if name in self.models else self._named_by(name)}
        named = {
            "url_name": "base_url",
            "protocol_name": "tool_protocol",
            "reasoning_name": "send_reasoning",
        }
        for name_of, field in named.items():
            if getattr(entry, field) is not None:
                names[name_of] = f"{place}.{field}"
        if (entry.base_url, entry.api_key, entry.api_key_env) != (None, None, None):
            own["api_key"] = entry.api_key  # never that of another address
            own["lacks_key"] = entry.api_key is None and entry.api_key_env is not None
            names["key_name"] = entry.api_key_env or f"{place}.api_key"
        price = self.prices.get(name) or self.prices.get(model)
        return ModelChoice(name=name, price=price, **{**own, **names, "model": model})

    def _named_by(self, name: str) -> str:
        """The variable that names this model."""
        given = {
            "model": self.model,
            "planner_model": self.planner_model,
            "summariser_model": self.summariser_model,
        }
        setting = next((key for key, value in given.items() if value == name), "fallbacks")
        return f"{PREFIX}{setting.upper()}"

    @property
    def home(self) -> Path:
        """Where the database, the broker and the files of queued jobs are."""
        return self.data_dir.absolute() if self.data_dir else user_data_path("caisson")

    @property
    def database(self) -> str:
        """The address of the database, with its password."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.home / 'caisson.db'}"

    def overlaid(self, options: Mapping[str, object]) -> Settings:
        """These settings with those that a job brings. Raises `SettingsInvalid`."""
        foreign = next((name for name in options if name not in JOB_SETTINGS), None)
        if foreign is not None:
            raise SettingsInvalid(
                f"{foreign} is no setting that a job may bring{nearest(foreign, JOB_SETTINGS)}"
            )
        own = {name: getattr(self, name) for name in self.model_fields_set}
        try:
            return Settings(**{**own, **options})
        except ValidationError as error:
            origins = {**dict.fromkeys(own, "the worker"), **dict.fromkeys(options, THE_JOB)}
            raise SettingsInvalid(_explain(error, {**own, **options}, origins)) from None

    def settled(self) -> dict[str, Any]:
        """What a job may use, as it goes with it in JSON."""
        return self.model_dump(mode="json", include=set(JOB_SETTINGS - _WORKERS_OWN))

    def limits(self) -> Limits:
        life_s = max(self.job_timeout_s + _LINGER_S, self.call_timeout_s + _ENDING_S)
        return Limits(
            memory_bytes=self.memory,
            cpus=self.cpus,
            pids=self.pids,
            timeout_s=self.call_timeout_s,
            max_life_s=self.max_life_s or life_s,
            workspace_bytes=self.workspace_size,
            tmp_bytes=self.tmp_size,
        )

    def spec(self, job: str = "adhoc", mounts: tuple[Mount, ...] = ()) -> SandboxSpec:
        """What a driver needs to start the sandbox of `job`."""
        return SandboxSpec(
            image=self.image,
            limits=self.limits(),
            network=self.network,
            runtime=self.runtime,
            preload=self.preload,
            mounts=mounts,
            job=job,
        )

    def budget(self) -> Budget:
        return Budget(
            max_steps=self.max_steps,
            timeout_s=self.job_timeout_s,
            max_working_s=self.max_working_s,
            max_tokens=self.max_tokens,
            max_tool_calls=self.max_tool_calls,
            max_cost=self.max_cost,
        )

    def loop_limits(self) -> LoopLimits:
        return LoopLimits(**{n: getattr(self, f"loop_{n}") for n in LoopLimits.model_fields})


class Loaded(Record):
    """The settings in force, and where each of them came from."""

    settings: Settings
    origins: dict[str, str]

    def chosen(self) -> dict[str, Any]:
        """The settings of a job that somebody has set, as they go with it in JSON."""
        names = JOB_SETTINGS & self.origins.keys()
        return self.settings.model_dump(mode="json", include=set(names))

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield name, value as JSON has it, and origin of every setting; secrets are masked."""
        for name in Settings.model_fields:
            value = _plain(name, getattr(self.settings, name))
            yield name, value, self.origins.get(name, "default")

    def said_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the same for people: sizes with their unit, and what an unset value comes to."""
        limits = self.settings.limits()
        unset = {
            "workspace_size": f"{exact_bytes(limits.workspace_size_bytes)} (3/8 of memory)",
            "tmp_size": f"{exact_bytes(limits.tmp_size_bytes)} (1/8 of memory)",
            "max_life_s": f"{limits.max_life_s:g} (as long as job and calls may take)",
            "data_dir": f"{self.settings.home} (caisson run: ./caisson-out)",
            "database_url": f"{self.settings.database} (SQLite)",
            "broker_url": "none (a worker starts its own)",
            "result_url": "none (the broker, or the database)",
            "concurrency": "none (as many as CPUs)",
            "share_memory": "none (3/4 of the host's)",
            "share_cpus": "none (twice the host's)",
            "pool_memory": "none (96 MiB for each slot and one more)",
        }
        for name, shown, origin in self.rows():
            value = getattr(self.settings, name)
            is_unset = value is None or value in ("", (), {})
            said = str(shown) if name in _SECRETS | {"base_url"} else _said(name, value)
            yield name, unset.get(name, "none") if is_unset else said, origin


def _plain(name: str, value: object) -> object:
    """A value as JSON has it. Sizes are bytes; nothing of a secret is left."""
    match value:
        case SecretStr():
            is_url = name.endswith("_url")
            return urls.without_password(value.get_secret_value()) if is_url else str(value)
        case Path():
            return str(value)
        case tuple():
            return list(value)
        case dict() if name != "answer_schema":
            return {name: _table(entry) for name, entry in value.items()}
    return urls.without_password(str(value)) if name == "base_url" and value else value


def _table(entry: Record) -> dict[str, Any]:
    """An entry of a table as JSON has it; of a key there are only stars."""
    said = entry.model_dump(mode="json", exclude_none=True)
    if "base_url" in said:
        said["base_url"] = urls.without_password(said["base_url"])
    return said


def _said(name: str, value: object) -> str:
    """A value as a person would write it."""
    if name in _SIZES and isinstance(value, int):
        return exact_bytes(value)
    if name == "answer_schema":
        value = json.dumps(value, ensure_ascii=False)
    match value:
        case bool():
            return str(value).lower()
        case float():
            return str(value).removesuffix(".0")
        case tuple():
            return ", ".join(value)
        case dict():
            tables = ((key, _table(entry).items()) for key, entry in value.items())
            rows = ((key, ", ".join(f"{k} {_said('', v)}" for k, v in row)) for key, row in tables)
            return ", ".join(f"{key} ({row})" if row else key for key, row in rows)
    return str(value)


def load_settings(
    options: Mapping[str, object] | None = None, defaults: Mapping[str, object] | None = None
) -> Loaded:
    """Read the settings from everywhere; `options` are those of the command line that were given.

    `defaults` are what a command takes for a setting that nobody has set.
    Raises `SettingsInvalid`, whose text is one line with the setting, its value and the remedy.
    """
    given = {k: v for k, v in (options or {}).items() if v is not None}
    layers = [*_file_layers(), *_environment_layers(), ({**given}, COMMAND_LINE)]
    values: dict[str, Any] = {**(defaults or {})}
    origins: dict[str, str] = {}
    for layer, origin in layers:
        _refuse_unknown(layer, origin)
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsInvalid(_explain(error, values, origins)) from None
    models = {name: _with_key(entry) for name, entry in settings.models.items()}
    kept = settings.model_copy(update={"models": models}) if models else settings
    return Loaded(settings=kept, origins=origins)


def _with_key(entry: ModelEntry) -> ModelEntry:
    """Read an entry's key from its variable; where there is none, whoever needs it says so."""
    if (variable := entry.api_key_env) is None:
        return entry
    file = f"{variable}_FILE"
    key = _secret(file) if os.environ.get(file) else os.environ.get(variable)
    return entry.with_key(key) if key else entry


def _file_layers() -> list[tuple[dict[str, Any], str]]:
    named = os.environ.get(CONFIG)
    path = Path(named or "caisson.toml")
    if not named and not path.exists():
        return []
    try:
        return [(tomllib.loads(path.read_text(encoding="utf-8")), str(path))]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why: object = error
        if isinstance(error, OSError):
            why = error.strerror
        elif isinstance(error, UnicodeDecodeError):
            why = "it is not UTF-8 text"
        asked = f" (named by {CONFIG})" if named else ""
        raise SettingsInvalid(f"cannot read {path}{asked}: {why}") from error


def _environment_layers() -> list[tuple[dict[str, Any], str]]:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG, *SECRET_FILES}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            bare = name.upper().removeprefix(PREFIX)
            near = nearest(bare, Settings.model_fields, PREFIX)
            raise SettingsInvalid(f"{name}: no such setting{near}")
    foreign = {key: os.environ[var] for var, key in _FOREIGN.items() if os.environ.get(var)}
    try:
        own = EnvSettingsSource(Settings, env_ignore_empty=True)()
    except SettingsError as error:
        raise SettingsInvalid(_no_json()) from error
    layers = [({key: foreign[key]}, var) for var, key in _FOREIGN.items() if key in foreign]
    layers += [({key: own[key]}, f"{PREFIX}{key.upper()}") for key in own]
    named = ((var, key) for var, key in SECRET_FILES.items() if os.environ.get(var))
    return layers + [({key: _secret(var)}, var) for var, key in named]


def _no_json() -> str:
    """What to say of the first of the tables that is no JSON; the models' may have keys in it."""
    for name, example in _TABLES.items():
        variable = f"{PREFIX}{name.upper()}"
        given = os.environ.get(variable, "")
        try:
            if given:
                json.loads(given)
        except ValueError:
            shown = "" if name == "models" else f" = {given!r}"
            return f"{variable}{shown}: is not JSON; write it like {example}"
    raise AssertionError("only tables are read as JSON")


def _secret(variable: str) -> str:
    """The text of the file that a variable names: how secrets come into containers."""
    path = os.environ[variable]
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SettingsInvalid(f"{variable} = {path!r}: cannot be read: {why}") from error


def _refuse_unknown(layer: Mapping[str, Any], origin: str) -> None:
    for name in layer:
        if name not in Settings.model_fields:
            near = nearest(name, Settings.model_fields)
            raise SettingsInvalid(f"{name} ({origin}): no such setting{near}")


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Ask whether a name was meant that is really like it; with a prefix it is a variable's."""
    bare, names = name.lower(), list(known)
    close = [k for k in names if len(bare) >= _TELLING and k.startswith(bare)]
    close += difflib.get_close_matches(bare, names, n=1, cutoff=_LIKE)
    if not close:
        return ""
    return f"; did you mean {prefix + close[0].upper() if prefix else close[0]}?"


def _explain(error: ValidationError, values: dict[str, Any], origins: dict[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return f"settings do not agree: {first['msg'].removeprefix('Value error, ')}"
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return _no_such_key(first["loc"], origins.get(name, "default"))
    why = _why(first, is_size=name in _SIZES)
    if (origin := origins.get(name, "default")) == COMMAND_LINE:
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        given = "***" if name in _SECRETS else values[name]
        return f"{option} {given!r}: {why}" if given == "" else f"{option} {given}: {why}"
    place, shown = _place(first["loc"], values)
    return f"{place}{shown} ({origin}): {why}; {_remedy(name)}"


def _no_such_key(loc: tuple[int | str, ...], origin: str) -> str:
    """What to say of a key that an entry of a table cannot have."""
    known = _ENTRIES[str(loc[0])].model_fields
    near = nearest(str(loc[-1]), known) or f"; there are {', '.join(known)}"
    return f"{'.'.join(map(str, loc))} ({origin}): no such key{near}"


def _place(loc: tuple[int | str, ...], values: dict[str, Any]) -> tuple[str, str]:
    """The name of what is wrong, and its value where it has one that may be shown."""
    value: Any = values
    for depth, part in enumerate(loc):
        if not isinstance(value, dict):  # a word of a list
            return ".".join(map(str, loc[:depth])), f" = {value!r}"
        if part not in value:
            return ".".join(map(str, loc)), ""
        value = value[part]
    return ".".join(map(str, loc)), f" = {value!r}" if _may_be_shown(loc) else " = ***"


def _may_be_shown(loc: tuple[int | str, ...]) -> bool:
    """Whether what stands there cannot have a secret in it, not even by mistake."""
    if loc[0] == "models":
        return loc[-1] in ModelEntry.model_fields.keys() - _KEYED
    return loc[0] not in _KEYED


def _why(error: ErrorDetails, *, is_size: bool) -> str:
    if error["type"] in _FAULTS:
        limits = error.get("ctx", {}).items()
        said = {k: exact_bytes(v) if is_size else _said("", v) for k, v in limits}
        return _FAULTS[error["type"]].format(**said)
    why = error["msg"].removeprefix("Value error, ")
    return why[0].lower() + why[1:]


def _remedy(name: str) -> str:
    field = Settings.model_fields.get(name)
    default = field.get_default(call_default_factory=True) if field else None
    example = f" (default {_said(name, default)})" if default not in (None, "", {}, ()) else ""
    return f"set {PREFIX}{name.upper()} or {name} in caisson.toml{example}"
