"""Which models there are: where each of them is, how it is to be asked, and what it costs."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from worker.messages import Record, Usage

ToolProtocol = Literal["auto", "native", "text"]
_ADDRESS = re.compile(
    r"https?://(?:[^/\s@]*@)?(?:\[[0-9a-f:.]+\]|[^/\s:@\[\]?#%]+)(?::\d{1,5})?(?:/\S*)?",
    re.IGNORECASE,
)
ADDED = "/chat/completions"
# In capitals, as such variables are named, because most keys have other letters: a key that was
# written here by mistake would be shown as a name is.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def no_switch(value: object) -> object:
    """Refuse `true` where a number is wanted, which pydantic takes for 1."""
    if isinstance(value, bool):
        raise ValueError("is not a number")  # noqa: TRY004 - pydantic wants a ValueError
    return value


def address_fault(url: str) -> str:
    """What keeps it from being the address of an endpoint; empty where nothing does."""
    if _ADDRESS.fullmatch(url) is None or not _has_port(url):
        return "is no http(s) address; write it like http://localhost:8000/v1"
    if "?" in url or "#" in url:
        return "has a ? or a #; leave out what begins there: a path is added to it"
    if url.rstrip("/").endswith(ADDED):
        return f"ends in {ADDED}, which is added to it; leave that out"
    return ""


def _has_port(url: str) -> bool:
    """Whether the port that is written, if any, is one that a server can have."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class Price(Record):
    """What a million tokens cost."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)

    _numbers = field_validator("*", mode="before")(no_switch)

    def of(self, usage: Usage) -> float:
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / 1_000_000


class ModelEntry(Record):
    """A table `[models.NAME]`: a model by a name of one's own.

    What is unset is as in the settings of the same names, but an entry with an address of its own
    is never sent the key that belongs to another address.
    """

    model: str | None = Field(None, min_length=1, description="at the endpoint; default: NAME")
    base_url: str | None = None
    api_key: SecretStr | None = None
    api_key_env: str | None = Field(
        None, min_length=1, description="the variable that has the key, or, with _FILE, its file"
    )
    context_tokens: int | None = Field(None, ge=1024)
    max_output_tokens: int | None = Field(None, ge=16)
    temperature: float | None = Field(None, ge=0, le=2)
    send_reasoning: bool | None = None
    stream: bool | None = None
    tool_protocol: ToolProtocol | None = None
    max_concurrent: int | None = Field(None, ge=1, le=1024)

    _numbers = field_validator(
        "context_tokens", "max_output_tokens", "temperature", "max_concurrent", mode="before"
    )(no_switch)

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None and (fault := address_fault(url)):
            raise ValueError(fault)
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_variable(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "is no name of a variable, in capitals like MY_API_KEY; "
                "the key itself would be api_key"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _has_one_key(cls, given: object) -> object:
        if isinstance(given, dict) and {"api_key", "api_key_env"} <= given.keys():
            raise ValueError("has api_key and api_key_env; leave one of them out")
        return given

    def with_key(self, key: str) -> ModelEntry:
        """The entry as it is asked, its key read from where it is kept."""
        return self.model_copy(update={"api_key": SecretStr(key)})


class ModelChoice(Record):
    """A model with everything that is needed to ask it; what is not said is the endpoint's own."""

    name: str = Field(description="in our settings")
    model: str = Field(description="at the endpoint")
    base_url: str | None = None
    api_key: SecretStr | None = None
    lacks_key: bool = Field(default=False, description="the variable that should have it is empty")
    model_name: str = Field("CAISSON_MODEL", description="what to set for another model")
    key_name: str = Field("OPENAI_API_KEY", description="what to set for another key")
    url_name: str = Field("OPENAI_BASE_URL", description="what to set for another address")
    protocol_name: str = Field("CAISSON_TOOL_PROTOCOL", description="what to set for tools")
    reasoning_name: str = Field("CAISSON_SEND_REASONING", description="what to set for reasoning")
    context_tokens: int = 32_768
    max_output_tokens: int = 4096
    temperature: float | None = None
    send_reasoning: bool = False
    stream: bool = False
    tool_protocol: ToolProtocol = "auto"
    max_concurrent: int | None = None
    price: Price | None = None
