"""What an endpoint's counts of tokens tell: how large a character is, and what was cut unseen.

Some servers cut a prompt that is too long and say nothing (Ollama at `num_ctx`; llama.cpp and
LM Studio when they shift the context). It shows in their count, which is then far too low.
"""

from __future__ import annotations

from worker.messages import Reply

_SURE = 0.3  # tokens in a character; some texts have more, so it is no sign if there are fewer
_LOW = 0.55  # of what is expected; texts differ, but by less than that
_LEAST = 200  # tokens of a request in which anything can be seen


def density(reply: Reply) -> float:
    """How many tokens a character of the request was."""
    return reply.usage.input_tokens / reply.request_chars


def expected_tokens(chars: int, known: Reply | None) -> float:
    """How many tokens a request must have at about least, by one whose count was believed."""
    return chars * min(_SURE, density(known) if known else _SURE)


def is_low(reply: Reply, known: Reply | None) -> bool:
    """Whether the count is too low for all of the request to have been read."""
    counted, expected = reply.usage.input_tokens, expected_tokens(reply.request_chars, known)
    return 0 < counted < _LOW * expected and expected > _LEAST


def is_rest(reply: Reply, before: Reply | None, known: Reply | None) -> bool:
    """Whether only what is new since the request before was counted, as some caches do."""
    if before is None or reply.request_chars <= before.request_chars:
        return False
    new = expected_tokens(reply.request_chars - before.request_chars, known)
    return 0.7 * new < reply.usage.input_tokens < 1.4 * new
