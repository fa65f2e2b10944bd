"""What an endpoint's counts of tokens tell: how large a character is, and what was cut unseen.

Some servers cut a prompt that is too long and say nothing (Ollama at `num_ctx`; llama.cpp and
LM Studio when they shift the context). It shows in their counts: far too low for so much text, or
no higher than for much less of it.
"""

from __future__ import annotations

from worker.messages import Reply

_SURE = 0.3  # tokens in a character; some texts have more, so it is no sign if there are fewer
_LOW = 0.55  # of what is expected; texts differ, but by less than that
_LEAST = 200  # tokens of a request in which anything can be seen
_GROWN = 1.15  # so much larger than another, a request has more tokens
_STALLED = 1.01  # a count that is no higher than this is the same again
_LEAST_STALLED = 1000  # tokens; no server has a smaller window


class Counts:
    """What is known from the counts of a job's replies, in their order.

    `believed` is the reply to reckon with: the last one whose count can be right, or, once one
    could not, that whose request had the most tokens for its size. `low` is the last one whose
    count cannot be right, and `lows` how many such there were.
    """

    def __init__(self) -> None:
        self.believed: Reply | None = None
        self.low: Reply | None = None
        self.lows = 0
        self._densest: Reply | None = None
        self._highest: Reply | None = None  # of the model that has answered last

    def add(self, reply: Reply) -> None:
        if not (reply.request_chars and reply.usage.input_tokens):
            return
        if is_low(reply, self._densest) or is_stalled(reply, self._highest):
            self.low, self.lows = reply, self.lows + 1
        else:
            self._believe(reply)
        self.believed = self._densest if self.lows else reply

    def expected(self, chars: int) -> float:
        """How many tokens a request of that size must have at about least."""
        return expected_tokens(chars, self._densest)

    def _believe(self, reply: Reply) -> None:
        if self._densest is None or density(reply) > density(self._densest):
            self._densest = reply
        highest = self._highest
        is_other = highest is None or highest.model != reply.model
        if is_other or (highest and reply.usage.input_tokens > highest.usage.input_tokens):
            self._highest = reply


def density(reply: Reply) -> float:
    """How many tokens a character of the request was."""
    return reply.usage.input_tokens / reply.request_chars


def expected_tokens(chars: int, known: Reply | None) -> float:
    """How many tokens a request must have at about least, by one whose count was believed."""
    return chars * min(_SURE, density(known) if known else _SURE)


def is_low(reply: Reply, known: Reply | None) -> bool:
    """Whether the count is too low for all of the request to have been read."""
    expected = expected_tokens(reply.request_chars, known)
    return reply.usage.input_tokens < _LOW * expected and expected > _LEAST


def is_stalled(reply: Reply, highest: Reply | None) -> bool:
    """Whether the request has grown since the one with the highest count, and the count has not."""
    if highest is None or highest.model != reply.model:
        return False
    has_grown = reply.request_chars >= _GROWN * highest.request_chars
    most = _STALLED * highest.usage.input_tokens
    return has_grown and _LEAST_STALLED <= reply.usage.input_tokens <= most


def is_rest(reply: Reply, before: Reply | None, known: Reply | None) -> bool:
    """Whether only what is new since the request before was counted, as some caches do."""
    if before is None or reply.request_chars <= before.request_chars:
        return False
    new = expected_tokens(reply.request_chars - before.request_chars, known)
    return 0.7 * new < reply.usage.input_tokens < 1.4 * new
