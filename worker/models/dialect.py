"""How one endpoint wants to be asked, learnt from what it refuses.

Each rule applies once: a refusal that it cannot mend is the end of the request.
"""

from __future__ import annotations

import re
from typing import Any

from worker.messages import Record

_FLAGS = re.IGNORECASE | re.DOTALL
_REFUSES = (
    r"(?:unsupported|not support|not permitted|not allowed|unrecogni[sz]ed|unknown|unexpected|"
    r"extra inputs|only the default|deprecated|invalid|not a valid|not available|forbidden)"
)
_MOST = re.compile(
    r"max_(?:completion_)?tokens.{0,120}?(?:at most|less than or equal to|"
    r"range of max_tokens is \[\d+,|\d+ >|must be <=|"
    r"maximum(?: value)?(?: is| of)?:?)\s*`?(\d{2,7})",
    _FLAGS,
)


def _about(name: str) -> re.Pattern[str]:
    """A refusal that names a field, before or after it says so."""
    return re.compile(rf"\b{name}\b.{{0,80}}{_REFUSES}|{_REFUSES}.{{0,80}}\b{name}\b", _FLAGS)


class Dialect(Record):
    """What an endpoint takes."""

    limit: str = "max_tokens"  # newer models of OpenAI want max_completion_tokens
    most_output_tokens: int | None = None
    takes_temperature: bool = True  # some reasoning models have but one
    takes_stream: bool = True
    takes_stream_options: bool = True
    takes_system: bool = True  # some chat templates know no such role
    takes_null: bool = True  # as the content beside calls
    send_reasoning: bool = False
    learnt: frozenset[str] = frozenset()  # fields that were changed, each of them once

    def after(self, told: str) -> Dialect | None:
        """How to ask after such a refusal; None when it is not about how we ask."""
        for pattern, change in _RULES:
            if pattern.search(told) and self._is_new(change):
                return self._changed(change)
        found = _MOST.search(told)
        change = {"most_output_tokens": int(found[1])} if found else {}
        return self._changed(change) if self._is_new(change) else None

    def _is_new(self, change: dict[str, Any]) -> bool:
        differs = any(getattr(self, field) != value for field, value in change.items())
        return differs and not change.keys() & self.learnt

    def _changed(self, change: dict[str, Any]) -> Dialect:
        return self.model_copy(update={**change, "learnt": self.learnt | change.keys()})


_RULES: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = (
    (re.compile(r"max_completion_tokens.{0,20}instead"), {"limit": "max_completion_tokens"}),
    (
        re.compile(rf"{_REFUSES}.{{0,60}}\bmax_tokens\b.*max_completion_tokens", _FLAGS),
        {"limit": "max_completion_tokens"},
    ),
    (_about("temperature"), {"takes_temperature": False}),
    (_about("(?:stream_options|include_usage)"), {"takes_stream_options": False}),
    (_about("stream(?:ing)?"), {"takes_stream": False}),
    (
        re.compile(r"reasoning_content.{0,80}(?:passed back|missing|required)", _FLAGS),
        {"send_reasoning": True},
    ),
    (_about("reasoning_content"), {"send_reasoning": False}),
    (
        re.compile(
            r"system (?:role|message|prompt|instruction)s?.{0,30}not (?:support|enabled|allowed)|"
            r"not support.{0,20}system",
            _FLAGS,
        ),
        {"takes_system": False},
    ),
    (
        re.compile(
            r"content\b.{0,60}(?:null|\bnone\b|must be a string|valid string|expected a string|"
            r"required|missing)",
            _FLAGS,
        ),
        {"takes_null": False},
    ),
)
