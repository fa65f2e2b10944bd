"""Models behind the OpenAI chat API: OpenAI, DeepSeek, Qwen, vLLM, Ollama, llama.cpp.

This is the one owner of retries, and one deadline covers all of them. Replies are taken whole, not
streamed: nothing can be run from half a reply, and parallel calls cannot be glued together.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
from pydantic import SecretStr

from worker.endpoints import Price
from worker.errors import Cancelled, ModelRefused, ModelTimeout, ModelUnavailable
from worker.messages import Message, Record, Reply, Role, Usage, Wire
from worker.models.base import TOKENS_PER_CHAR, Request
from worker.models.exchange import Line
from worker.models.failures import Again, Endpoint, from_status, from_text
from worker.models.normal import normal_finish, normal_message

_log = logging.getLogger(__name__)
_POLL_S = 0.1


class Retries(Record):
    """How often a request is tried, and how long to wait between tries when nobody says."""

    tries: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0

    def wait_s(self, tries: int) -> float:
        backoff = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (tries - 1))
        return backoff * random.uniform(0.75, 1.25)  # noqa: S311 - spreads retries, hides nothing


class OpenAIChat:
    """See `worker.models.base.Model`."""

    def __init__(  # noqa: PLR0913 - one argument per setting
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        price: Price | None = None,
        temperature: float | None = None,
        send_reasoning: bool = False,
        retries: Retries | None = None,
    ) -> None:
        self.name = name
        self._line = Line()
        # Servers on one's own machine want no key, but the SDK insists on some text.
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key or "none",
            http_client=self._line.client,
            max_retries=0,
        )
        self._endpoint = Endpoint(
            url=str(self._client.base_url).rstrip("/"), model=name, api_key=SecretStr(api_key or "")
        )
        self._price = price
        self._temperature = temperature
        self._send_reasoning = send_reasoning
        self._retries = retries or Retries()
        self._sent: dict[int, tuple[Message, bytes]] = {}  # of the last request, by their ids
        self._limit = "max_tokens"  # newer models of OpenAI want max_completion_tokens

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        started = time.monotonic()
        deadline, waited = started + timeout_s, 0.0
        for tries in range(1, self._retries.tries + 1):
            try:
                reply = self._try(request, deadline, is_cancelled)
            except Again as error:
                _log.warning("try %d of %d: %s", tries, self._retries.tries, error)
                wait_s = self._retries.wait_s(tries) if error.wait_s is None else error.wait_s
                if tries == self._retries.tries or time.monotonic() + wait_s >= deadline:
                    raise ModelUnavailable(f"{error} (tried {tries} times)") from error
                _sleep(wait_s, is_cancelled)
                waited += wait_s
            else:
                duration_s = time.monotonic() - started
                return reply.model_copy(update={"duration_s": duration_s, "waited_s": waited})
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._line.close()

    def _try(self, request: Request, deadline: float, is_cancelled: Callable[[], bool]) -> Reply:
        try:
            return self._exchange(request, deadline, is_cancelled)
        except ModelRefused as error:
            if self._limit not in str(error) or "max_completion_tokens" not in str(error):
                raise
            self._limit = "max_completion_tokens"
            return self._exchange(request, deadline, is_cancelled)

    def _exchange(
        self, request: Request, deadline: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        timeout_s = max(0.0, deadline - time.monotonic())
        body = self._body(request)
        try:
            answer = self._line.run(
                lambda: self._post(body, timeout_s),
                timeout_s=timeout_s,
                is_cancelled=is_cancelled,
            )
        except openai.APIStatusError as error:
            raise from_status(error, self._endpoint) from error
        except openai.APITimeoutError as error:
            raise ModelTimeout(f"{self._endpoint.url}: no reply in {timeout_s:.0f} s") from error
        except openai.APIConnectionError as error:
            why = self._endpoint.without_key(str(error.__cause__ or error))
            raise Again(f"cannot reach {self._endpoint.url} (OPENAI_BASE_URL): {why}") from error
        return self._read(answer.text, body)

    def _post(self, body: bytes, timeout_s: float) -> httpx2.Response:
        # Not `chat.completions.create`: it goes through every message of every request again,
        # which after a hundred steps takes longer than all the rest of a step together.
        return self._client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=body,
            options={"timeout": timeout_s, "security": {"bearer_auth": True}},
        )

    def _body(self, request: Request) -> bytes:
        body: Wire = {"model": self.name, self._limit: request.max_output_tokens}
        if request.tools:
            body["tools"] = request.tools
        if self._temperature is not None:
            body["temperature"] = self._temperature
        start = _encoded(body)[:-1]  # without its closing brace
        return b"".join((start, b',"messages":[', b",".join(self._encoded(request)), b"]}"))

    def _encoded(self, request: Request) -> Iterator[bytes]:
        """The messages of a request; those of the last one are not encoded again."""
        known, self._sent = self._sent, {}
        for message in request.messages:
            seen = known.get(id(message)) or (message, _encoded(self._wire(message)))
            self._sent[id(message)] = seen  # which keeps the message, so that its id is its own
            yield seen[1]

    def _wire(self, message: Message) -> Wire:
        """A message as every endpoint takes it: no field that only some of them know."""
        wire = message.to_wire()
        if message.role is not Role.ASSISTANT:
            return wire
        known = {"role", "content", "tool_calls"}
        if self._send_reasoning:
            known.add("reasoning_content")
        wire = {"content": None, **{k: v for k, v in wire.items() if k in known}}
        for call in wire.get("tool_calls", ()):
            for field in call.keys() - {"id", "type", "function", "extra_content"}:
                del call[field]
        return wire

    def _read(self, text: str, body: bytes) -> Reply:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            start = " ".join(self._endpoint.without_key(text).split())[:80]
            raise Again(
                f"{self._endpoint.url} did not answer with JSON (a proxy's page? check "
                f"OPENAI_BASE_URL): {start!r}"
            )
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise self._without_choices(answer)
        message = normal_message(choices[0].get("message"))
        return Reply(
            message=message,
            finish=normal_finish(choices[0].get("finish_reason")),
            usage=self._usage(answer.get("usage"), body, message),
            model=str(answer.get("model") or self.name),
        )

    def _without_choices(self, answer: Wire) -> ModelUnavailable:
        error = answer.get("error")
        if error:  # some gateways send errors with status 200
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) else 500
            return from_text(status, json.dumps(error), self._endpoint)
        return Again(f"{self._endpoint.url} answered without choices")

    def _usage(self, told: Any, body: bytes, message: Message) -> Usage:  # noqa: ANN401 - whatever came
        told = told if isinstance(told, dict) else {}
        used = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
        if not any(used):  # not counted by the endpoint: a guess keeps budgets working
            sizes = len(body), len(_encoded(message.to_wire()))
            used = int(sizes[0] * TOKENS_PER_CHAR), int(sizes[1] * TOKENS_PER_CHAR)
        usage = Usage(input_tokens=used[0], output_tokens=used[1])
        return usage.model_copy(update={"cost": self._price.of(usage) if self._price else None})


def _encoded(value: Wire) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _sleep(seconds: float, is_cancelled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if is_cancelled():
            raise Cancelled
        time.sleep(min(_POLL_S, left))
