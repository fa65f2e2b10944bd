"""What a failed request means: which error it is, whether to try again, which setting to change.

Endpoints say the same thing in many ways, and a status code alone says little: 400 may be a wrong
key, 404 a model without tools, 429 an empty account or a request that will never fit.
"""

from __future__ import annotations

import html
import json
import re
import socket
import ssl
from collections.abc import Iterator
from http.client import responses
from typing import Any

import httpx2
import openai
from pydantic import SecretStr

from worker.endpoints import ADDED
from worker.errors import (
    ContextTooLong,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    QuotaSpent,
    ToolsUnsupported,
)
from worker.messages import Record
from worker.models.exchange import Moved
from worker.models.waiting import asked_by_headers, asked_by_text
from worker.relaxed import is_deep
from worker.urls import without_password

_QUOTA = re.compile(
    r"insufficient[_ ]quota|exceeded your current quota|billing|insufficient.{0,10}"
    r"(?:balance|funds|credit)|credit balance|payment required|out of credits|"
    r"quota.{0,20}(?:exhausted|used up)",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context_length_exceeded|maximum (?:context|prompt|model) length|"
    r"context[ _](?:length|window|size)|"
    r"prompt is too long|too many (?:input )?tokens|exceeds? the (?:available )?context|"
    r"reduce (?:the|your) (?:length|message size)|max_tokens must be at least 1|"
    r"input (?:length|is too long|token count)|max_model_len|request too large|"
    r"input tokens or output tokens must be reduced|must be <= \d+\. given|too large for model",
    re.IGNORECASE,
)
_NEVER_FITS = re.compile(
    r"request too large|must be reduced|reduce your message size", re.IGNORECASE
)
_WINDOW = re.compile(
    r"(?:maximum (?:context|prompt|model) length (?:is|of)|"
    r"context (?:window|length|size)[^\d]{0,24}|n_ctx[^\d]{0,6}|max_model_len[^\d]{0,4}|"
    r"must be <=|tokens >|limit|tokens allowed|"
    r"input length should be \[\d+,)\s*\(?(\d{3,8})|with (\d{3,8}) maximum context",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"(?:incorrect|invalid|missing|expired|wrong|no) api[ _-]?key|api[ _-]?key.{0,30}"
    r"(?:not valid|invalid|incorrect|expired|required)|invalid_api_key|login fail",
    re.IGNORECASE,
)
_TOOLS = re.compile(
    r"(?:tools?|tool[ _](?:use|calls?|calling|choice)|functions?|function[ _]call(?:s|ing)?)\W{0,3}"
    r"(?: parameter| param| is| are|,)* (?:not|un)[ -]?(?:currently )?"
    r"(?:support|enabled|available|allowed|permitted)|"
    r"(?:not|n't) support\w* (?:the )?.{0,20}(?:tools?|functions?)\b|"
    r"support tool use|enable-auto-tool-choice|tools param requires|"
    r"(?:argument|parameter|field)\w*(?: supplied)?:? [`'\"]?(?:tools|tool_choice)\b(?!\[|\.)|"
    r"[`'\"](?:tools|tool_choice)[`'\"].{0,40}extra inputs|"
    r"roles must alternate|only (?:support )?user(?:,| and) assistant|"
    r"(?:unexpected|unsupported|invalid|unknown) (?:message )?role:? ?[`'\"]?tool",
    re.IGNORECASE | re.DOTALL,
)
_TEMPLATE = re.compile(  # faults of ours that some servers report as theirs
    r"jinja|chat template|roles must alternate|system role not supported|tools param requires",
    re.IGNORECASE,
)
_MISCALLED = re.compile(  # a fault of the model, which may do better the next time
    r"tool_use_failed|failed to (?:call a function|parse tool)|error parsing tool call",
    re.IGNORECASE,
)
_MODEL = re.compile(r"model|deployment|engine", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model_not_found|(?:model|deployment|engine).{0,80}(?:not (?:found|exist|available|a valid)|"
    r"(?:n't|not) exist|is unknown|not have access)|(?:unknown|invalid|no such) model|"
    r"not a valid model|no endpoints found",
    re.IGNORECASE | re.DOTALL,
)
_NO_PATH = re.compile(
    r"unexpected endpoint|unknown request url|invalid url|no route", re.IGNORECASE
)
_PAGE = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml|center|h1)", re.IGNORECASE)
_TITLE = re.compile(r"<(title|h1)[^<>]*>([^<]*)</\1>", re.IGNORECASE | re.DOTALL)
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_LOADING = re.compile(
    r"\bload(?:ing|ed)? (?:the )?model|model.{0,20}(?:is )?loading", re.IGNORECASE
)
_LOADING_S = 5.0
_MEANT = (  # codes in words, of errors that come without a status
    (429, re.compile(r"rate.?limit|too many requests|throttl", re.IGNORECASE)),
    (503, re.compile(r"overloaded|capacity|unavailable", re.IGNORECASE)),
    (401, _KEY),
    (401, re.compile(r"authenticat|unauthori[sz]ed|permission", re.IGNORECASE)),
    (404, re.compile(r"not_found|unexpected endpoint", re.IGNORECASE)),
    (400, re.compile(r"invalid_request|bad.?request|unsupported", re.IGNORECASE)),
)
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
_NO_ANSWER = ("disconnected", "illegal request line")  # which is what a record of TLS begins with
_WANTS_TLS = "the address may need https:// in place of http://"
_PLAIN = re.compile(  # as nginx, Go and Apache tell it, and others like them
    r"plain http request was sent to (?:an )?https|http request to an https server|"
    r"plain http to an (?:ssl|tls)|requires? (?:tls|https)\b",
    re.IGNORECASE,
)
_CODES = {
    *("message", "code", "type", "status", "status_code", "http_code", "object", "error_code"),
    *("request_id", "requestId", "timestamp", "trace_id"),
}
_NOT_THERE = {301, 302, 303, 307, 308, 404, 405, 501}
_LEAST_WINDOW = 512  # a smaller number is another limit
_SHOWN = 300
_MOST_READ = 16 * 1024  # of what is said; a page may be longer
_SECRET_CHARS = 8  # shorter ones are made up for servers that want none, and are words as well


class Again(ModelUnavailable):
    """Worth another try, after `wait_s` where the endpoint named a time."""

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class NameUnknown(ModelRefused):
    """The endpoint has no model of that name; it may say which it has."""


class Endpoint(Record):
    """Where a model is, and what to set for another, for messages about it."""

    url: str
    model: str
    api_key: SecretStr = SecretStr("")
    key_name: str = "OPENAI_API_KEY"
    url_name: str = "OPENAI_BASE_URL"
    model_name: str = "CAISSON_MODEL"
    protocol_name: str = "CAISSON_TOOL_PROTOCOL"
    reasoning_name: str = "CAISSON_SEND_REASONING"

    def led_to(self, url: httpx2.URL) -> Endpoint:
        """The endpoint that really was asked: that one, or where it sent us."""
        asked = httpx2.URL(self.url)
        if (url.scheme, url.host, url.port) == (asked.scheme, asked.host, asked.port):
            return self
        named = f"{self.url_name}, because {self.place} leads to this address"
        return self.model_copy(update={"url": _base(url), "url_name": named})

    @property
    def place(self) -> str:
        """The address as it may be shown."""
        return without_password(self.url)

    def without_key(self, text: str) -> str:
        """The text without our key, which some servers and libraries quote in what they say."""
        key = self.api_key.get_secret_value()
        return text.replace(key, "***") if len(key) >= _SECRET_CHARS else text

    def shown(self, told: str) -> str:
        """What was said in one short line, without our key; of a page its title."""
        told = self.without_key(told)[:_MOST_READ]
        if _PAGE.match(told):
            title = _TITLE.search(told)
            named = re.sub(r"<[^<>]*>", " ", title[2] if title else told)
            told = f"a page, not JSON: {html.unescape(named)}"
        return " ".join("".join(c if c.isprintable() else " " for c in told).split())[:_SHOWN]


# ---- answers


def from_status(error: openai.APIStatusError, endpoint: Endpoint) -> ModelUnavailable:
    """The meaning of an answer that is not a success."""
    there = endpoint.led_to(error.response.url)
    if there is not endpoint and error.status_code not in _AGAIN:  # no key was sent there
        told = endpoint.shown(error.response.text)
        return ModelRefused(f"{_moved(endpoint, error.response.url)}: {error.status_code} {told}")
    endpoint = there
    body = None if is_deep(error.body) else error.body
    told = told_by(body) or error.response.text.strip()
    wait_s = asked_by_headers(error.response.headers)
    return _meaning(error.status_code, told, said_by(body), endpoint, wait_s)


def _moved(endpoint: Endpoint, url: httpx2.URL) -> str:
    """What to set for an endpoint that sends us elsewhere."""
    there = endpoint.shown(without_password(_base(url)))
    return f"{endpoint.place} leads to {there}; set {endpoint.url_name} to the address there"


def _base(url: httpx2.URL) -> str:
    """The address of an endpoint one of whose paths that is."""
    return str(url.copy_with(query=None, fragment=None)).removesuffix(ADDED)


def from_error(error: Any, endpoint: Endpoint) -> ModelUnavailable:  # noqa: ANN401 - any JSON
    """The meaning of an error that came with a success, or in the middle of a stream."""
    return _meaning(_status_of(error), told_by(error) or str(error), said_by(error), endpoint)


def _meaning(
    status: int, told: str, said: str, endpoint: Endpoint, wait_s: float | None = None
) -> ModelUnavailable:
    """The meaning of a status code and all that was told with it, in the words that are for us."""
    told = told[:_MOST_READ]
    wait_s = asked_by_text(told) if wait_s is None else wait_s
    short = endpoint.shown(said or told)
    if short in {"", str(status)}:
        short = responses.get(status, "without a word")
    if _is_quota(status, told, wait_s):
        return QuotaSpent(f"{endpoint.place}: the account has no quota left: {short}")
    if _is_too_long(status, told):
        return ContextTooLong(short, window=_window_in(told))
    is_theirs = status in _AGAIN or status > 501  # noqa: PLR2004 - server errors
    if _MISCALLED.search(told) or (is_theirs and not _TEMPLATE.search(told)):
        if wait_s is None and _LOADING.search(told):
            wait_s = _LOADING_S
        return Again(f"{endpoint.place} answered {status}: {short}", wait_s=wait_s)
    return _refused(status, told, short, endpoint)


def _is_quota(status: int, told: str, wait_s: float | None) -> bool:
    """Whether the account is empty, as opposed to a limit that begins anew when they say."""
    if "insufficient_quota" in told or status == 402:  # noqa: PLR2004 - payment required
        return True
    return status in {403, 429} and wait_s is None and bool(_QUOTA.search(told))


def _is_too_long(status: int, told: str) -> bool:
    if status == 413:  # noqa: PLR2004 - the body is too large, whoever says so
        return True
    words = _NEVER_FITS if status == 429 else _CONTEXT  # noqa: PLR2004 - a rate limit, mostly
    return status in {400, 422, 429, 500} and bool(words.search(told))


def _window_in(told: str) -> int | None:
    found = _WINDOW.search(told)
    tokens = int(found[1] or found[2]) if found else 0
    return tokens if tokens >= _LEAST_WINDOW else None


def _refused(status: int, told: str, short: str, endpoint: Endpoint) -> ModelRefused:
    place = endpoint.place
    if status in {400, 404, 422, 500, 501} and _TOOLS.search(told):
        return ToolsUnsupported(
            f"{endpoint.model!r} cannot call tools natively; set {endpoint.protocol_name}=text or "
            f"choose another model: {short}",
            told=told,
        )
    if status != 401 and not _KEY.search(told) and _NO_MODEL.search(told):  # noqa: PLR2004
        return NameUnknown(
            f"{place} does not know the model {endpoint.model!r}; check {endpoint.model_name}: "
            f"{short}",
            told=told,
        )
    return ModelRefused(f"{_complaint(status, told, endpoint)}: {short}", told=told)


def _complaint(status: int, told: str, endpoint: Endpoint) -> str:
    """What is wrong with a request, and the setting that may mend it."""
    place = endpoint.place
    if elsewhere := _not_an_endpoint(status, told, endpoint):
        return elsewhere
    if status in {401, 403} or _KEY.search(told):
        return f"{place} refuses the key; check {endpoint.key_name}"
    if status == 407:  # noqa: PLR2004 - of a proxy
        return f"the proxy on the way to {place} wants a password (HTTPS_PROXY)"
    if status in _NOT_THERE or _NO_PATH.search(told):
        has_version = re.search(r"/v\d|/openai|/api", endpoint.url)
        missing = "" if has_version else ", which mostly ends in /v1"
        also = f" (or {endpoint.model_name})" if _MODEL.search(told) else ""
        return f"there is no {place}/chat/completions; check {endpoint.url_name}{missing}{also}"
    if "reasoning_content" in told and "passed back" in told:
        return f"set {endpoint.reasoning_name}=true for {endpoint.model!r}"
    return f"{place} refused the request ({status})"


def _not_an_endpoint(status: int, told: str, endpoint: Endpoint) -> str:
    """What shows that something else answers than the endpoint; empty for nothing."""
    place = endpoint.place
    if endpoint.url.startswith("http:") and _PLAIN.search(told):
        return f"{place} does not take plain HTTP; check {endpoint.url_name}: {_WANTS_TLS}"
    if _PAGE.match(told) and status not in {401, 407, *_NOT_THERE}:
        return (
            f"a page ({status}) answers in place of the endpoint {place}, of a proxy or a firewall "
            f"perhaps; check {endpoint.url_name} and HTTPS_PROXY"
        )
    return ""


def told_by(body: object) -> str:
    """What an error says, whichever shape it has; all of it, because any part may tell."""
    if isinstance(body, list) and body:
        return told_by(body[0])
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            first = [inner.get(key) for key in ("code", "type", "message")]
            rest = {k: v for k, v in inner.items() if k not in {"code", "type", "message"} and v}
            parts = [str(part) for part in first if part]
            return " ".join([*parts, json.dumps(rest, default=str)] if rest else parts)
        return str(inner)
    return body if isinstance(body, str) else ""


def said_by(body: object) -> str:
    """What an error says in words: its message, and what tells more than that; empty for none.

    Codes, kinds and numbers of requests are for programs, which have read all of them by now.
    """
    if isinstance(body, list) and body:
        return said_by(body[0])
    if not isinstance(body, dict):
        return ""
    inner = body.get("error", body)
    if not isinstance(inner, dict):
        return ""
    message = str(inner.get("message") or "")
    rest = {k: v for k, v in inner.items() if k not in _CODES and v and str(v) not in message}
    texts = list(rest.values())
    more = texts[0] if len(texts) == 1 and isinstance(texts[0], str) else ""
    more = more or (json.dumps(rest, ensure_ascii=False, default=str) if rest else "")
    return f"{message} {more}".strip()


def _status_of(error: Any) -> int:  # noqa: ANN401 - any JSON
    """The status that an error without one would have had."""
    given = error if isinstance(error, dict) else {}
    for key in ("code", "status", "status_code", "http_code"):
        code = str(given.get(key, ""))
        if re.fullmatch(r"[45]\d\d", code):
            return int(code)
    told = told_by(error) or str(error)
    return next((status for status, words in _MEANT if words.search(told)), 500)


# ---- connections


def too_late(timeout_s: float, endpoint: Endpoint) -> ModelTimeout:
    """The meaning of time that is over, which all the tries of a request had together."""
    return ModelTimeout(
        f"{endpoint.place} gave no complete reply within {timeout_s:.3g} s; raise model_timeout_s, "
        "or the time of the job where that is less"
    )


def from_connection(error: BaseException, endpoint: Endpoint) -> ModelUnavailable:
    """The meaning of an exchange that did not come about, or broke."""
    causes = list(_causes(error))
    endpoint = _asked(causes, endpoint)
    place, url_name = endpoint.place, endpoint.url_name
    if any(isinstance(cause, httpx2.TimeoutException) for cause in causes):
        return ModelTimeout(f"{place}: no reply in time ({url_name})")
    if refused := next((told for cause in causes if (told := _hopeless(cause, endpoint))), None):
        return ModelRefused(refused)
    if (unknown := next((c for c in causes if isinstance(c, socket.gaierror)), None)) is not None:
        host = httpx2.URL(endpoint.url).host
        return Again(f"cannot find the host {host} ({url_name}): {unknown.strerror}")
    last = endpoint.shown(str(causes[-1]) or type(causes[-1]).__name__)
    hint = f"; {_WANTS_TLS}" if _may_want_tls(error, endpoint) else ""
    return Again(f"cannot reach {place} ({url_name}{hint}): {last}")


def _asked(causes: list[BaseException], endpoint: Endpoint) -> Endpoint:
    """The endpoint, or where it led to, which is what the innermost request was sent to."""
    for cause in reversed(causes):
        if isinstance(cause, httpx2.RequestError) and getattr(cause, "_request", None) is not None:
            return endpoint.led_to(cause.request.url)
    return endpoint


def _may_want_tls(error: BaseException, endpoint: Endpoint) -> bool:
    """Whether what ended before any answer may be a port that was to be spoken to in TLS."""
    if not endpoint.url.startswith("http:") or not isinstance(error, openai.APIConnectionError):
        return False
    for cause in _causes(error):
        if isinstance(cause, httpx2.RemoteProtocolError):
            return any(words in str(cause) for words in _NO_ANSWER)
        if isinstance(cause, httpx2.ReadError | httpx2.WriteError):
            return True
    return False


def _hopeless(cause: BaseException, endpoint: Endpoint) -> str:
    """What is wrong with a connection that no other try will mend; empty for all others."""
    place, url_name = endpoint.place, endpoint.url_name
    match cause:
        case ssl.SSLCertVerificationError():
            return (
                f"the certificate of {place} is not trusted ({cause.verify_message}); check "
                f"{url_name}, or name the file of its authority in SSL_CERT_FILE"
            )
        case ssl.SSLError() if cause.reason in _NO_TLS:
            return f"{place} does not speak TLS; check {url_name} (http:// in place of https://?)"
        case Moved():
            return _moved(endpoint, cause.url)
        case httpx2.TooManyRedirects():
            return f"{place} redirects in circles; check {url_name}"
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return f"{place} is no address of an endpoint; check {url_name}"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__  # which the client's layers hide, not drop
