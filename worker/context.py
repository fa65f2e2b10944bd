"""What the model is sent: the history, made to fit its window, and valid.

The system prompt and the goal always stay, and a call and its result are never parted. What does
not fit is summed up (`worker.summing`), and made smaller by `worker.fitting`. How large the window
really is, endpoints tell by refusing a request or by counting too few tokens; that is stored, and
holds for the rest of the job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from worker.conversation import Conversation
from worker.counting import density, is_rest
from worker.errors import ContextTooLong, Stop
from worker.fitting import fit
from worker.history import History
from worker.hooks import Hook, Run
from worker.messages import Reply, WindowLearnt, Wire
from worker.models.base import TOKENS_PER_CHAR, Model, Request
from worker.summing import Room, sum_up

_log = logging.getLogger(__name__)
_TRIES = 4
_LEAST_REPLY = 16  # tokens that a reply may take, however full the window is
_LEAST_WINDOW = 1000  # tokens; who counts fewer does not cut, but counts otherwise
_REMEDY = "Raise its window (Ollama: num_ctx in a Modelfile) or set context_tokens to {tokens}"


def tokens_per_char(history: History) -> float:
    """How many tokens a character is, by what the endpoint last counted for a known request."""
    if (reply := history.counts.believed) is None:
        return TOKENS_PER_CHAR
    return min(1.5, max(0.15, 1.05 * density(reply)))


@dataclass(frozen=True, slots=True)
class Window:
    """The model's window in tokens, and how much of it a reply may take.

    `summariser` sums up the steps that no longer fit; without one they are left out.
    """

    tokens: int = 32_768
    reply_tokens: int = 4096
    summariser: Model | None = None

    def ask(self, run: Run, model: Model, tools: Sequence[Wire], timeout_s: float) -> Reply:
        """Ask `model` with as much of the history as fits.

        Where steps must be left out, they are summed up first, in half of the time at most. An
        endpoint that finds the request too long makes it shorter a few times, then ends the job
        (`Stop`) with the numbers; all of that within `timeout_s`. Raises what `Model.reply` raises.
        """
        deadline = time.monotonic() + timeout_s
        refused, most = 0, 0
        for _ in range(_TRIES):
            self._sum_up(run, tools, deadline)
            request, chars = self._sized(run.history, tools)
            if refused and chars >= refused and request.max_output_tokens >= most:
                break
            left_s = max(0.0, deadline - time.monotonic())
            try:
                reply = model.reply(request, timeout_s=left_s, is_cancelled=run.is_cancelled)
            except ContextTooLong as error:
                _log.warning("request of %d characters is too long: %s", chars, error)
                self._learn(run, request, chars, error)
                refused, most = chars, request.max_output_tokens
            else:
                # a model that has written the request anew knows better how large it was
                return reply.model_copy(update={"request_chars": reply.request_chars or chars})
        tokens = int(refused * tokens_per_char(run.history))
        raise Stop(
            f"the context cannot be made small enough: {refused} characters (about {tokens} "
            f"tokens) were refused, with a window of {self.tokens} tokens (context_tokens)",
            kind="ContextTooSmall",
        )

    def request(self, history: History, tools: Sequence[Wire]) -> Request:
        """Build the next request; raises `RequestInvalid` if it is not one (a fault of ours)."""
        return self._sized(history, tools)[0]

    def _room(self, history: History) -> tuple[int, int]:
        """The tokens that there are for a request, and those for its reply."""
        tokens = min(self.tokens, history.window_tokens or self.tokens)
        reply_tokens = min(self.reply_tokens, tokens // 3)
        return tokens - reply_tokens, reply_tokens

    def _sized(self, history: History, tools: Sequence[Wire]) -> tuple[Request, int]:
        """Build the next request; returns it with its size in characters."""
        room, reply_tokens = self._room(history)
        rate = tokens_per_char(history)
        said = history.view(Conversation)
        said.grow(history)
        tools_chars = said.tools_chars(tools)
        fitted = fit(said, int(room / rate) - tools_chars)
        chars = fitted.chars + tools_chars
        beyond = max(0, ceil(chars * rate) - room)
        request = Request(
            messages=fitted.messages,
            tools=tuple(tools),
            max_output_tokens=max(_LEAST_REPLY, reply_tokens - beyond),
            turn=len(history.turns) - 1,
        )
        return request, chars

    def _sum_up(self, run: Run, tools: Sequence[Wire], deadline: float) -> None:
        """Have the steps summed up that do not fit any more, once between two replies."""
        if self.summariser is None or run.history.landing or run.history.last.is_summed_up:
            return
        tokens, reply_tokens = self._room(run.history)
        said = run.history.view(Conversation)
        said.grow(run.history)
        chars = int(tokens / tokens_per_char(run.history))
        room = Room(chars, chars - said.tools_chars(tools), reply_tokens)
        sum_up(run, self.summariser, room, (deadline - time.monotonic()) / 2)

    def _learn(self, run: Run, request: Request, chars: int, error: ContextTooLong) -> None:
        """Keep in mind what an endpoint takes that has found a request too long."""
        asked = ceil(chars * tokens_per_char(run.history)) + request.max_output_tokens
        is_told = error.window is not None and error.window < asked
        tokens = error.window if is_told and error.window else max(1, asked * 2 // 3)
        why = f"a request of about {asked} tokens was too long ({error}); from now on they are kept"
        run.append(WindowLearnt(tokens=tokens, why=f"{why} within {tokens}"))


class WindowHook(Hook):
    """Notices an endpoint that cuts prompts without a word, and what it leaves of them."""

    def after_model(self, run: Run, reply: Reply) -> None:
        history, counts = run.history, run.history.counts
        if counts.low is not reply:
            return
        counted = reply.usage.input_tokens
        expected = round(counts.expected(reply.request_chars))
        before = history.turns[-2].reply
        told = (
            f"the endpoint counted {counted} tokens for a request of about {expected}: it probably "
            f"cut the prompt"
        )
        if counted < _LEAST_WINDOW or is_rest(reply, before, counts.believed):
            if counts.lows == 1 and history.window_tokens is None:
                run.remark(f"{told}, or counts a part of it. {_REMEDY.format(tokens='its size')}")
        elif counted < (history.window_tokens or counted + 1):
            why = f"{told}. From now on it is sent no more. {_REMEDY.format(tokens=counted)}"
            run.append(WindowLearnt(tokens=counted, why=why))
