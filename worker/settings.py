"""All settings, one typed object, read once at the door.

Later wins: defaults, `caisson.toml` (in the current folder, or named by CAISSON_CONFIG),
OPENAI_API_KEY and OPENAI_BASE_URL, CAISSON_… variables, options of the command line. A name that
is not a setting is an error everywhere, because a misspelt limit is a limit that is not there.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from sandbox.types import GIB, MIB, Limits, Mount, SandboxSpec
from worker.errors import SettingsInvalid
from worker.messages import Budget, Record, Usage

PREFIX = "CAISSON_"
CONFIG = "CAISSON_CONFIG"
_FOREIGN = {"OPENAI_API_KEY": "api_key", "OPENAI_BASE_URL": "base_url"}
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


MAX_CALL_S = 86_400  # what `sandbox.types.Limits` takes
MOST = 2**46  # bytes; engines count in 64 bits, and say it badly when that overflows
_SIZES = {"memory", "workspace_size", "tmp_size"}
Size = Annotated[int, BeforeValidator(parse_size)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]


class Price(Record):
    """What a million tokens cost."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)

    def of(self, usage: Usage) -> float:
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / 1_000_000


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
    model: str = Field("", description="name that the endpoint knows; needed unless replaying")
    base_url: str | None = Field(None, description="OpenAI-compatible endpoint (OPENAI_BASE_URL)")
    api_key: SecretStr | None = Field(None, description="OPENAI_API_KEY")
    model_timeout_s: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="one reply, all retries included"
    )
    max_output_tokens: int = Field(4096, ge=16, description="of one reply")
    context_tokens: int = Field(32_768, ge=1024, description="the model's window")
    temperature: float | None = Field(None, ge=0, le=2)
    send_reasoning: bool = Field(
        default=False, description="send reasoning_content back to the endpoint"
    )
    text_calls: bool = Field(
        default=True, description="take a reply that is a call in text as a call"
    )
    prices: dict[str, Price] = Field(default_factory=dict, description="per million tokens")

    # the agent
    tools: Words = Field(
        (
            "python_interpreter",
            "shell",
            "calculate",
            "read_file",
            "write_file",
            "search_files",
            "read_output",
        ),
        description="what the model may call",
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
    preload: Words = ()

    # this host
    data_dir: Path | None = Field(None, description="artefacts; default ./caisson-out")
    max_artifacts: int = Field(100, ge=0)
    max_artifact_bytes: Size = Field(256 * MIB, ge=0, description="all artefacts of a job")

    @model_validator(mode="after")
    def _agrees(self) -> Settings:
        if self.max_cost is not None and self.model and self.model not in self.prices:
            raise ValueError(f"max_cost needs a price for {self.model!r} in the table [prices]")
        if not self.loop_nudge <= self.loop_block <= self.loop_stop:
            raise ValueError("loop_nudge <= loop_block <= loop_stop must hold")
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

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, value and origin of every setting; secrets are masked."""
        for name in Settings.model_fields:
            value = getattr(self.settings, name)
            if isinstance(value, tuple):
                value = ",".join(value)
            yield name, "" if value is None else str(value), self.origins.get(name, "default")


def load_settings(
    options: Mapping[str, object] | None = None, defaults: Mapping[str, object] | None = None
) -> Loaded:
    """Read the settings from everywhere; `options` are those of the command line that were given.

    `defaults` are what a command takes for a setting that nobody has set.
    Raises `SettingsInvalid`, whose text is one line with the setting, its value and the remedy.
    """
    given = {k: v for k, v in (options or {}).items() if v is not None}
    layers = [*_file_layers(), *_environment_layers(), ({**given}, "command line")]
    values: dict[str, Any] = {**(defaults or {})}
    origins: dict[str, str] = {}
    for layer, origin in layers:
        _refuse_unknown(layer, origin)
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    try:
        return Loaded(settings=Settings(**values), origins=origins)
    except ValidationError as error:
        raise SettingsInvalid(_explain(error, values, origins)) from None


def _file_layers() -> list[tuple[dict[str, Any], str]]:
    named = os.environ.get(CONFIG)
    path = Path(named or "caisson.toml")
    if not named and not path.exists():
        return []
    try:
        return [(tomllib.loads(path.read_text(encoding="utf-8")), str(path))]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        asked = f" (named by {CONFIG})" if named else ""
        raise SettingsInvalid(f"cannot read {path}{asked}: {why}") from error


def _environment_layers() -> list[tuple[dict[str, Any], str]]:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise SettingsInvalid(f"{name}: no such setting{_nearest(name, known)}")
    foreign = {key: os.environ[var] for var, key in _FOREIGN.items() if os.environ.get(var)}
    try:
        own = EnvSettingsSource(Settings, env_ignore_empty=True)()
    except SettingsError as error:
        raise SettingsInvalid(f"{error}: {error.__cause__}; write it as JSON") from error
    layers = [({key: foreign[key]}, var) for var, key in _FOREIGN.items() if key in foreign]
    return layers + [({key: own[key]}, f"{PREFIX}{key.upper()}") for key in own]


def _refuse_unknown(layer: Mapping[str, Any], origin: str) -> None:
    for name in layer:
        if name not in Settings.model_fields:
            nearest = _nearest(name, Settings.model_fields)
            raise SettingsInvalid(f"{name} ({origin}): no such setting{nearest}")


def _nearest(name: str, known: Any) -> str:  # noqa: ANN401 - any collection of names
    close = difflib.get_close_matches(name.upper(), [k.upper() for k in known], n=1, cutoff=0.5)
    names = {k.upper(): k for k in known}
    return f"; did you mean {names[close[0]]}?" if close else ""


def _explain(error: ValidationError, values: dict[str, Any], origins: dict[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    why = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return f"settings do not agree: {why}"
    name = str(first["loc"][0])
    place = ".".join(str(part) for part in first["loc"])
    origin = origins.get(name, "default")
    why = why[0].lower() + why[1:]
    if (least := first.get("ctx", {}).get("ge")) and name in _SIZES:
        why = f"is less than {least // MIB} MiB"
    if (most := first.get("ctx", {}).get("le")) and name in _SIZES:
        why = f"is more than {most // GIB} GiB"
    return f"{place} = {_shown(name, values)} ({origin}): {why}; {_remedy(name)}"


def _shown(name: str, values: dict[str, Any]) -> str:
    return "***" if name == "api_key" else repr(values.get(name))


def _remedy(name: str) -> str:
    field = Settings.model_fields.get(name)
    default = field.get_default(call_default_factory=True) if field else None
    example = f" (default {default})" if default not in (None, "", {}, ()) else ""
    return f"set {PREFIX}{name.upper()} or {name} in caisson.toml{example}"
