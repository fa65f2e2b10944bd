"""Models behind the OpenAI chat API: OpenAI, DeepSeek, Qwen, vLLM, Ollama, llama.cpp.

This is the one owner of retries, and one deadline covers all of them: tries, what is waited for in
between, and learning how the endpoint wants to be asked.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import httpx2
import openai
from pydantic import SecretStr

from worker.arguments import clean
from worker.delays import DELAYS
from worker.endpoints import ModelChoice
from worker.errors import ModelRefused, ModelTimeout, ModelUnavailable
from worker.messages import Finish, Message, Record, Reply, Role, Usage, Wire
from worker.models.answers import MOST_BYTES, TooLarge, read_answer
from worker.models.base import TOKENS_PER_CHAR, Request
from worker.models.dialect import Dialect
from worker.models.exchange import Line, Moved
from worker.models.failures import (
    Again,
    Endpoint,
    NameUnknown,
    from_connection,
    from_error,
    from_status,
    too_late,
)
from worker.models.normal import chosen_of, is_interrupted, normal_finish, normal_message
from worker.models.sendable import sendable_call
from worker.models.slots import Slots
from worker.models.streaming import Broken, Pulse
from worker.models.waiting import Patience
from worker.settings import nearest

_log = logging.getLogger(__name__)
_delays = logging.getLogger(DELAYS)
_MOST_COUNTED = 2**40  # tokens; what is more is no count
_NAMES_S = 5.0
_MOST_NAMES = 2000
_NAME_CHARS = 200
_NAMES_TOLD, _NAME_TOLD_CHARS = 5, 60


class Retries(Record):
    """How often a request is tried, and how long to wait between tries when nobody says."""

    tries: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    longest_asked_s: float = float("inf")  # an endpoint that asks for more is down
    idle_s: float = 60.0  # between two pieces of a stream

    def wait_s(self, tries: int) -> float:
        backoff = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (tries - 1))
        return backoff * random.uniform(0.75, 1.25)  # noqa: S311 - spreads retries, hides nothing


class OpenAIChat:
    """See `worker.models.base.Model`."""

    def __init__(
        self,
        choice: ModelChoice,
        *,
        retries: Retries | None = None,
        slots: Slots | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.name = choice.model
        self._choice = choice
        self._retries = retries or Retries()
        self._slots = slots
        self._most_bytes = most_bytes
        self._line = Line()
        key = choice.api_key.get_secret_value() if choice.api_key else ""
        # Servers on one's own machine want no key, but the SDK insists on some text.
        self._client = openai.OpenAI(
            base_url=choice.base_url,
            api_key=key or "none",
            http_client=self._line.client,
            max_retries=0,
        )
        self._endpoint = Endpoint(
            url=str(self._client.base_url).rstrip("/"),
            model=choice.model,
            api_key=SecretStr(key),
            **{name: getattr(choice, name) for name in Endpoint.model_fields if "_name" in name},
        )
        self._dialect = Dialect(send_reasoning=choice.send_reasoning)
        self._sent: dict[int, tuple[Message, bytes]] = {}  # of the last request, by their ids

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        patience = Patience(timeout_s, is_cancelled)
        before = ""
        for tries in range(1, self._retries.tries + 1):
            try:
                reply = self._try(request, patience)
            except Again as error:
                self._wait(tries, error, patience)
                before = f" (try {tries + 1}; the one before: {error})"
            except ModelTimeout as error:
                raise ModelTimeout(f"{error}{before}") from error
            else:
                times = {"duration_s": patience.spent_s, "waited_s": patience.waited_s}
                return reply.model_copy(update=times)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._line.close()

    def _wait(self, tries: int, error: Again, patience: Patience) -> None:
        """Wait for the next try; raises `ModelUnavailable` when there is none."""
        wait_s = error.wait_s or self._retries.wait_s(tries)  # at once is what nobody means
        is_too_long = wait_s >= patience.left_s or wait_s > self._retries.longest_asked_s
        if tries == self._retries.tries or is_too_long:
            asked = f", asks to wait {error.wait_s:.0f} s" if error.wait_s else ""
            if wait_s >= patience.left_s and tries < self._retries.tries:
                asked += f"; model_timeout_s leaves {patience.left_s:.0f} s for another try"
            often = "once" if tries == 1 else f"{tries} times"
            raise ModelUnavailable(f"{error} (tried {often}{asked})") from error
        told = "try %d of %d: %s; again in %.1f s"
        _delays.warning(told, tries, self._retries.tries, error, wait_s)
        patience.wait(wait_s)

    def _try(self, request: Request, patience: Patience) -> Reply:
        """Ask once; again at once when what the endpoint refuses is how we ask."""
        while True:
            body = self._body(request)
            try:
                return self._exchange(request, body, patience)
            except ModelRefused as error:
                dialect = self._dialect.after(error.told)
                if dialect is None:
                    raise self._with_near_names(error, patience) from error
                self._dialect, self._sent = dialect, {}
                if self._body(request) == body:  # it is about something else
                    raise
                _log.info("%s: asks otherwise: %s", self._endpoint.place, error)

    def _exchange(self, request: Request, body: bytes, patience: Patience) -> Reply:
        pulse = Pulse(self._retries.idle_s if self._is_streamed else None)

        def is_over() -> bool:
            pulse.check()
            return patience.is_cancelled()

        with self._slots.held(patience) if self._slots else nullcontext():
            timeout_s = patience.left_s
            try:
                answer = self._run(lambda: self._post(body, timeout_s, pulse), timeout_s, is_over)
            except ModelTimeout as error:  # of this try, which had what others left of the time
                raise too_late(patience.timeout_s, self._endpoint) from error
        return self._read(answer, request, body)

    def _run(
        self, exchange: Callable[[], Any], timeout_s: float, is_over: Callable[[], bool]
    ) -> Any:  # noqa: ANN401 - whatever came
        try:
            return self._line.run(exchange, timeout_s=timeout_s, is_cancelled=is_over)
        except openai.APIStatusError as error:
            raise from_status(error, self._endpoint) from error
        except (openai.APIConnectionError, httpx2.HTTPError, httpx2.InvalidURL, Moved) as error:
            raise from_connection(error, self._endpoint) from error
        except TooLarge as error:
            raise ModelUnavailable(
                f"{self._endpoint.place} sent {error}, which is not read; check "
                f"{self._endpoint.url_name}, or lower max_output_tokens if the model wrote that"
            ) from error
        except Broken as error:
            raise Again(f"{self._endpoint.place}: {error}") from error

    def _post(self, body: bytes, timeout_s: float, pulse: Pulse) -> Any:  # noqa: ANN401
        # Not `chat.completions.create`: it goes through every message of every request again,
        # which after a hundred steps takes longer than all the rest of a step together.
        response = self._client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=body,
            options={"timeout": timeout_s, "security": {"bearer_auth": True}},
            stream=True,  # only here: it is read as it comes, within bounds
            stream_cls=openai.Stream[Any],
        )
        with closing(response):
            return read_answer(response, pulse, self._most_bytes)  # type: ignore[arg-type]

    # ---- what is sent

    @property
    def _is_streamed(self) -> bool:
        return self._choice.stream and self._dialect.takes_stream

    def _body(self, request: Request) -> bytes:
        body: Wire = {"model": self._choice.model, self._dialect.limit: self._most(request)}
        if request.tools:
            body["tools"] = request.tools
        if self._choice.temperature is not None and self._dialect.takes_temperature:
            body["temperature"] = self._choice.temperature
        if self._is_streamed:
            body["stream"] = True
            if self._dialect.takes_stream_options:
                body["stream_options"] = {"include_usage": True}
        start = _encoded(body)[:-1]  # without its closing brace
        return b"".join((start, b',"messages":[', b",".join(self._encoded(request)), b"]}"))

    def _most(self, request: Request) -> int:
        """How many tokens the reply may have."""
        most = (self._choice.max_output_tokens, self._dialect.most_output_tokens)
        return min(request.max_output_tokens, *(limit for limit in most if limit is not None))

    def _encoded(self, request: Request) -> Iterator[bytes]:
        """The messages of a request; those of the last one are not encoded again."""
        known, self._sent = self._sent, {}
        for message in _openings_joined(request.messages, self._dialect):
            seen = known.get(id(message)) or (message, _encoded(self._wire(message)))
            self._sent[id(message)] = seen  # which keeps the message, so that its id is its own
            yield seen[1]

    def _wire(self, message: Message) -> Wire:
        """A message as every endpoint takes it: no field that only some of them know."""
        wire = message.to_wire()
        if message.role is not Role.ASSISTANT:
            return wire
        known = {"role", "content", "tool_calls"}
        if self._dialect.send_reasoning:
            known.add("reasoning_content")
        empty = None if self._dialect.takes_null else ""
        wire = {"content": empty, **{k: v for k, v in wire.items() if k in known}}
        wire["content"] = empty if wire["content"] is None else wire["content"]
        if calls := wire.get("tool_calls"):
            wire["tool_calls"] = [sendable_call(call) for call in calls]
        return wire

    # ---- what comes back

    def _read(self, answer: Any, request: Request, body: bytes) -> Reply:  # noqa: ANN401
        place = self._endpoint.place
        if not isinstance(answer, dict):
            shown = self._endpoint.shown(str(answer))[:100]
            raise Again(
                f"{place} did not answer with JSON (a proxy's page? check "
                f"{self._endpoint.url_name}): {shown!r}"
            )
        choice = chosen_of(answer)
        if choice is None:
            raise self._without_choices(answer)
        if is_interrupted(choice):
            raise Again(f"{place} broke the reply off: {choice.get('finish_reason')}")
        try:
            message = normal_message(choice.get("message"))
        except ModelUnavailable as error:
            raise Again(f"{place}: {error}") from error
        usage = self._usage(answer.get("usage"), body, message)
        told = answer.get("usage")
        return Reply(
            message=message,
            finish=self._finish(choice.get("finish_reason"), message, told, request),
            usage=usage,
            model=clean(str(answer.get("model") or self.name)[:_NAME_CHARS]),
        )

    def _finish(self, said: object, message: Message, told: Any, request: Request) -> Finish:  # noqa: ANN401
        """Why it ended; whoever used all that was allowed was cut off, whatever is said."""
        finish = normal_finish(said)
        used = _count(told.get("completion_tokens")) if isinstance(told, dict) else 0
        if finish is Finish.STOP and message.tool_calls and used >= self._most(request):
            return Finish.LENGTH
        return finish

    def _without_choices(self, answer: Wire) -> ModelUnavailable:
        if error := answer.get("error"):  # some gateways send errors with status 200
            return from_error(error, self._endpoint)
        told = self._endpoint.shown(json.dumps(answer, ensure_ascii=False))[:100]
        return Again(f"{self._endpoint.place} answered without choices: {told}")

    def _usage(self, told: Any, body: bytes, message: Message) -> Usage:  # noqa: ANN401 - whatever came
        told = told if isinstance(told, dict) else {}
        used = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
        if not any(used):  # not counted by the endpoint: a guess keeps budgets working
            sizes = len(body), len(_encoded(message.to_wire()))
            used = int(sizes[0] * TOKENS_PER_CHAR), int(sizes[1] * TOKENS_PER_CHAR)
        usage = Usage(input_tokens=used[0], output_tokens=used[1])
        price = self._choice.price
        return usage.model_copy(update={"cost": price.of(usage) if price else None})

    def _with_near_names(self, error: ModelRefused, patience: Patience) -> ModelRefused:
        """The refusal of a name, with the one that was meant, where the endpoint lists them."""
        if not isinstance(error, NameUnknown):
            return error
        timeout_s = min(_NAMES_S, patience.left_s)
        try:
            answer = self._run(lambda: self._get(timeout_s), timeout_s, patience.is_cancelled)
        except ModelUnavailable:  # which says nothing of the model
            return error
        listed = answer.get("data") if isinstance(answer, dict) else None
        listed = listed if isinstance(listed, list) else []
        found = [m.get("id") for m in listed if isinstance(m, dict)]
        names = [n for n in found[:_MOST_NAMES] if isinstance(n, str) and n.isprintable()]
        near = nearest(self._choice.model, names)
        return NameUnknown(f"{error}{near or self._some_of(names)}")

    def _some_of(self, names: list[str]) -> str:
        """The first of the names that the endpoint has."""
        first = [self._endpoint.without_key(name) for name in names[:_NAMES_TOLD]]
        if not first:
            return ""
        cut = [f"{n[:_NAME_TOLD_CHARS]}…" if len(n) > _NAME_TOLD_CHARS else n for n in first]
        more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
        return f"; it has {', '.join(cut)}{more}"

    def _get(self, timeout_s: float) -> Any:  # noqa: ANN401 - whatever came
        response = self._client.get(
            "/models",
            cast_to=httpx2.Response,
            options={"timeout": timeout_s, "security": {"bearer_auth": True}},
            stream=True,
            stream_cls=openai.Stream[Any],
        )
        with closing(response):
            return read_answer(response, Pulse(None), self._most_bytes)  # type: ignore[arg-type]


def _openings_joined(messages: tuple[Message, ...], dialect: Dialect) -> tuple[Message, ...]:
    """The messages, the system prompt put into the goal where there is no such role."""
    if dialect.takes_system or len(messages) < 2 or messages[0].role is not Role.SYSTEM:  # noqa: PLR2004
        return messages
    prompt, goal, *rest = messages
    both = goal.model_copy(update={"content": f"{prompt.text}\n\n{goal.text}"})
    return (both, *rest)


def _encoded(value: Wire) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _count(value: object) -> int:
    """Tokens as an endpoint counted them; 0 for what is no count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 < value < _MOST_COUNTED else 0
