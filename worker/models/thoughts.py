"""Thoughts that come inside the text of a reply, between tags of a dozen kinds.

What is between them is never shown as the answer, nor run. Only what cannot be anything else is
taken for a thought: at the start of the text, or, further on, a pair of tags on lines of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left

_NAMES = "think|thinking|thought|thoughts|reasoning|reflection|seed:think"
_PAIRS = (
    (rf"<(?P<tag>{_NAMES})>", r"</(?P=tag)>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    ("◁think▷", "◁/think▷"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|channel\|>analysis<\|message\|>", r"<\|end\|>"),
)
_FLAGS = re.DOTALL | re.IGNORECASE
_FIRST = [re.compile(rf"\s*{start}(?P<said>.*?){end}", _FLAGS) for start, end in _PAIRS]
_OPEN = [re.compile(rf"\s*{start}(?P<said>.*)\Z", _FLAGS) for start, _ in _PAIRS]
_LATER = [  # as far as the next beginning, else many of them without an end would take for ever
    re.compile(rf"^[ \t]*{start}(?P<said>(?:(?!{again}).)*?){end}[ \t]*$", _FLAGS | re.MULTILINE)
    for start, end in _PAIRS
    for again in [start.replace("?P<tag>", "?:")]
]
_CLOSE_ONLY = re.compile(  # the template swallowed the opening tag
    r"\A(?P<said>(?:(?!<think|\[THINK\]|◁think).)*?)(?<![`'\"])"
    r"(?:</(?:think|thinking)>|\[/THINK\]|◁/think▷)(?![`'\"])",
    _FLAGS,
)
_FINAL = re.compile(  # what is left of a channel's marks once its thoughts are gone
    r"\A\s*(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)[^<]*<\|message\|>"
    r"|<\|(?:return|end)\|>\s*\Z|<\|begin_of_solution\|>|<\|end_of_solution\|>"
)
_FENCE = re.compile(r"^[ \t]*(```|~~~)", re.MULTILINE)


def split_thought(text: str) -> tuple[str, str]:
    """Split thoughts off a text; one that is begun and never closed is all thought."""
    whole, thoughts, at = text, [], 0
    while found := _first_of(_FIRST, text, at):
        thoughts.append(found["said"])
        at = found.end()
    text = text[at:]
    if found := _first_of(_OPEN, text) or _CLOSE_ONLY.match(text):
        thoughts.append(found["said"])
        text = text[found.end() :]
    text = _without_later(text, thoughts)
    if not thoughts:
        return _FINAL.sub("", whole) if "<|" in whole else whole, ""
    said = _FINAL.sub("", text).strip()
    return said, "\n".join(stripped for t in thoughts if (stripped := t.strip()))


def _first_of(patterns: list[re.Pattern[str]], text: str, at: int = 0) -> re.Match[str] | None:
    return next((found for pattern in patterns if (found := pattern.match(text, at))), None)


def _without_later(text: str, thoughts: list[str]) -> str:
    """Take out pairs of tags on lines of their own, outside of quoted code."""
    for pattern in _LATER:
        fences = [fence.start() for fence in _FENCE.finditer(text)]
        kept, end = [], 0
        for found in pattern.finditer(text):
            before, within = (bisect_left(fences, at) for at in found.span())
            if before % 2 or within != before:
                continue
            thoughts.append(found["said"])
            kept.append(text[end : found.start()])
            end = found.end()
        text = "".join([*kept, text[end:]])
    return text
