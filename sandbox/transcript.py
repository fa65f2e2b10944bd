r"""From the bytes that a program printed to text that a model, a person and a database can take.

The one place where output is cut. What a terminal would act on is acted on or removed: escape
sequences go, a progress bar becomes its last state, backspaces take effect. What would stay
unseen is shown: a byte order mark in a column's name becomes the six characters `\ufeff`, and so
do direction marks, zero-width characters and tags, in which text can be hidden from people.
NUL and other control characters become U+FFFD, and no lone surrogate can come out, so the result
can be stored and sent anywhere.

Everything here takes time linear in its input: the input was made by somebody else.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

MAX_LINE_CHARS = 65_536
_KEPT_REPEATS = 3
_KEPT_UNREADABLE = 8
_KEPT_INVISIBLE = 4
_NOTE_CHARS = 128  # room for the note in a text that is cut

# Possessive quantifiers (`*+`): no input can make these go back over what they have read. An
# escape that is never ended takes the rest of its line and no more.
_ESCAPE = re.compile(
    r"""
      (?: \x1b\[ | \x9b ) [0-?]*+ [ -/]*+ [@-~]         # CSI: colours, cursor
    | (?: \x1b\] | \x9d ) [^\x07\x1b\x9c\n]*+ (?: \x07 | \x1b\\ | \x9c )?   # OSC: titles, links
    | (?: \x1b[PX^_] | [\x90\x98\x9e\x9f] ) [^\x1b\x9c\n]*+ (?: \x1b\\ | \x9c )?
    | \x1b [ -/]*+ [0-~]                                # the short ones
    """,
    re.VERBOSE,
)
_UNREADABLE = re.compile(rf"\ufffd{{{_KEPT_UNREADABLE + 1},}}+")
# Joiners are letters' business in Persian, Hindi and emoji, so one between two characters of
# such scripts stays.
_SCRIPT = "\u0300-\u1fff\u2190-\ud7ff\uf900-\ufefe\U00010000-\U000dffff"
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(
    f"[{_UNSEEN}][{_UNSEEN}\u200c\u200d]*+"
    f"|(?<![{_SCRIPT}])[\u200c\u200d]++|[\u200c\u200d]++(?![{_SCRIPT}])|[\u200c\u200d]{{2,}}+"
)

_CONTROLS: dict[int, str | None] = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)], "\ufffd"),
    **dict.fromkeys([0x0B, 0x0C, 0x85, 0x2028, 0x2029], "\n"),
    **dict.fromkeys([0x07, 0x0E, 0x0F], None),  # bell, shift out and in: nothing to see
    0x09: "\t",
    0x0A: "\n",
}


class Transcript(NamedTuple):
    """Text fit for a reader; `truncated` when part of what was printed is not in it."""

    text: str
    truncated: bool


def render(head: bytes, tail: bytes, total_bytes: int, *, where: str | None) -> Transcript:
    """Turn the first and the last bytes of an output into text.

    Args:
        head: The first bytes.
        tail: The last bytes that are not in `head`.
        total_bytes: How many were written; more than `head` and `tail` hold means that the
            middle is missing, and the text says so at that place.
        where: Where to find what is missing, for that note ("full text in …"); None if nowhere.
    """
    if not total_bytes:
        return Transcript("", truncated=False)
    missing = total_bytes - len(head) - len(tail)
    where = f"; {where}" if where else ""
    if missing <= 0:
        return _tidy((head + tail).decode(errors="replace"), where)
    first = _tidy(_without_cut_end(head), where).text
    last = _tidy(_without_cut_start(tail), where).text
    joint = "" if not first or first.endswith("\n") else "\n"
    note = f"[... {missing} bytes omitted{where}]\n"
    return Transcript(f"{first}{joint}{note}{last}", truncated=True)


def clean(text: str, max_chars: int) -> str:
    """Make a value, message or name that came from a guest safe to store and show.

    Same characters as `render`; the middle is cut so that no more than `max_chars` are left.
    """
    return _cut(_visible(text), max_chars)


def _tidy(text: str, where: str) -> Transcript:
    if len(text) <= MAX_LINE_CHARS and text.isascii() and text.isprintable():  # most values
        return Transcript(text, truncated=False)
    lines = list(_collapse_repeats(_visible(text).split("\n")))
    kept = [_cut(line, MAX_LINE_CHARS, where) for line in lines]
    return Transcript("\n".join(kept), truncated=kept != lines)


def _without_cut_end(head: bytes) -> str:
    """Decode, without the first half of a character whose second half is missing."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(head)


def _without_cut_start(tail: bytes) -> str:
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:  # noqa: PLR2004
        start += 1
    return tail[start:].decode(errors="replace")


def _visible(text: str) -> str:
    """Act on what a terminal acts on, and show what would not be seen."""
    text = _ESCAPE.sub("", text)
    if "\r" in text or "\b" in text:
        text = "\n".join(map(_last_state, text.split("\n")))
    text = text.translate(_CONTROLS)
    text = _UNREADABLE.sub(_count_unreadable, text)
    return _INVISIBLE.sub(_spell_out, text)


def _last_state(line: str) -> str:
    r"""Return what a line shows in the end: after the last `\r` that something follows."""
    states = (state for state in reversed(line.split("\r")) if state)
    state = next(states, "")
    return _backspaced(state) if "\b" in state else state


def _backspaced(line: str) -> str:
    shown: list[str] = []
    for char in line:
        if char != "\b":
            shown.append(char)
        elif shown:
            shown.pop()
    return "".join(shown)


def _count_unreadable(run: re.Match[str]) -> str:
    more = len(run[0]) - _KEPT_UNREADABLE
    return f"{run[0][:_KEPT_UNREADABLE]}[{more} more unreadable characters]"


def _spell_out(run: re.Match[str]) -> str:
    shown = run[0][:_KEPT_INVISIBLE].encode("ascii", "backslashreplace").decode()
    more = len(run[0]) - _KEPT_INVISIBLE
    return f"{shown}[{more} more invisible characters]" if more > 0 else shown


def _collapse_repeats(lines: Iterable[str]) -> Iterator[str]:
    for line, run in groupby(lines):
        repeats = sum(1 for _ in run) - 1
        if repeats > _KEPT_REPEATS:
            yield line
            yield f"[previous line repeated {repeats} times]"
        else:
            yield from [line] * (repeats + 1)


def _cut(text: str, max_chars: int, where: str = "") -> str:
    if len(text) <= max_chars:
        return text
    kept = (max_chars - _NOTE_CHARS - len(where)) // 2
    if kept <= 0:
        return text[:max_chars]
    note = f" [... {len(text) - 2 * kept} characters omitted{where}] "
    return f"{text[:kept]}{note}{text[-kept:]}"
