"""What a failed request means: which error it is, and whether to try again."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import openai
from pydantic import SecretStr

from worker.errors import ContextTooLong, ModelRefused, ModelUnavailable, QuotaSpent
from worker.messages import Record

_QUOTA = re.compile(
    r"insufficient_quota|exceeded your current quota|billing|insufficient.{0,10}balance|"
    r"credit balance|payment required",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context_length_exceeded|maximum context length|context (?:length|window|size)|"
    r"prompt is too long|too many (?:input )?tokens|exceeds? the (?:available )?context|"
    r"reduce the length|max_tokens must be at least 1|input is too long",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:maximum context length is|context (?:window|length|size)[^\d]{0,24}|n_ctx[^\d]{0,6})"
    r"\s*(\d{3,8})",
    re.IGNORECASE,
)
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_SHOWN = 300
_SECRET_CHARS = 8  # shorter ones are made up for servers that want none, and are words as well


class Again(ModelUnavailable):
    """Worth another try, after `wait_s` where the endpoint named a time."""

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Endpoint(Record):
    """Where a model is, for messages about it."""

    url: str
    model: str
    api_key: SecretStr = SecretStr("")

    def without_key(self, text: str) -> str:
        """The text without our key, which some servers and libraries quote in what they say."""
        key = self.api_key.get_secret_value()
        return text.replace(key, "***") if len(key) >= _SECRET_CHARS else text


def from_status(error: openai.APIStatusError, endpoint: Endpoint) -> ModelUnavailable:
    """The meaning of an answer that is not a success."""
    told = _told(error.body) or error.response.text.strip()
    return from_text(error.status_code, told, endpoint, retry_after(error.response.headers))


def from_text(
    status: int, told: str, endpoint: Endpoint, wait_s: float | None = None
) -> ModelUnavailable:
    """The meaning of a status code and what was said with it."""
    short = " ".join(endpoint.without_key(told).split())[:_SHOWN]
    if status in {402, 403, 429} and _QUOTA.search(told):
        return QuotaSpent(f"{endpoint.url}: the account has no quota left: {short}")
    if status in {400, 413, 422, 500} and _CONTEXT.search(told):
        found = _WINDOW.search(told)
        return ContextTooLong(short, window=int(found[1]) if found else None)
    if status in _AGAIN or status > 500:  # noqa: PLR2004 - every kind of server error
        return Again(f"{endpoint.url} answered {status}: {short}", wait_s=wait_s)
    return _refused(status, short, endpoint)


def _refused(status: int, short: str, endpoint: Endpoint) -> ModelRefused:
    if status in {401, 403}:
        return ModelRefused(f"{endpoint.url} refuses the key; check OPENAI_API_KEY: {short}")
    if status == 404:  # noqa: PLR2004 - not found
        return ModelRefused(
            f"{endpoint.url} does not know the model {endpoint.model!r} or the path; check "
            f"CAISSON_MODEL and OPENAI_BASE_URL: {short}"
        )
    if "reasoning_content" in short and "passed back" in short:
        return ModelRefused(f"set CAISSON_SEND_REASONING=true for {endpoint.model!r}: {short}")
    if re.search(r"tools? .{0,40}not support|does not support .{0,20}tools?", short):
        return ModelRefused(f"{endpoint.model!r} cannot call tools; choose another: {short}")
    return ModelRefused(f"{endpoint.url} refused the request ({status}): {short}")


def retry_after(headers: Any) -> float | None:  # noqa: ANN401 - any mapping of headers
    """Seconds that the endpoint asks us to wait, in each of the ways in which they say it."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            return max(0.0, float(value) * unit)
        except ValueError:
            pass
        try:
            until = parsedate_to_datetime(value)
        except ValueError:
            continue
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    return None


def _told(body: object) -> str:
    """What an error body says, whichever shape it has."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            parts = [inner.get("code"), inner.get("type"), inner.get("message")]
            return " ".join(str(part) for part in parts if part) or str(inner)
        return str(inner)
    return body if isinstance(body, str) else ""
