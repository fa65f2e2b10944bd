r"""Read JSON as models write it, from left to right and without a guess.

Beyond JSON are taken: raw control characters in strings; escapes that are none (`\d`), kept as
they are; strings in single quotes, and in triple quotes or backticks, in which nothing is escaped
but their own quotes; quotes that stand in a string in pairs; names without quotes as keys; a comma
before a closing bracket; Python's `True`, `False` and `None`.

Nothing is ever closed that was left open: of a text that was cut off no value is read. For that
the reader never goes back, and takes a quote for the end of a string only where what must follow
a string does follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

DEEPEST = 64  # brackets in each other; what stores and shows a value calls itself for each
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"-?\d[\d.eE+-]*|[A-Za-z]+")
_QUOTES = ('"""', "'''", '"', "'", "`")
_RAW_QUOTES = {'"""', "'''", "`"}
_TOO_DEEP = "too many brackets in each other"
_RAW = "raw control characters in strings were escaped"
_UNUSUAL = {
    **dict.fromkeys(('"""', "'''"), "triple-quoted strings were escaped"),
    "'": "single quotes were read as double ones",
    "`": "strings in backticks were escaped",
}
_WORDS = {"True": True, "False": False, "None": None}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'`"}
_SUM = re.compile(r"""(["'`])\s*\+\s*\1""")  # strings that are added up are no string
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPES = {
    **{sign: sign for sign in "\"'`\\/"},
    **dict(zip("bfnrt", "\b\f\n\r\t", strict=True)),
}
_KEY = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_]\w*)\s*:"""
_FOLLOWS = {  # what must follow a string, for its quote to be the end of it
    "key": re.compile(r"\s*:"),
    "member": re.compile(r"\s*(?:\}|,\s*(?:\}|" + _KEY + "))", re.DOTALL),
    "item": re.compile(r"\s*[,\]]"),
}
_STRICT = json.JSONDecoder()
_WITH_RAW = json.JSONDecoder(strict=False)


class Unreadable(ValueError):
    """No value can be read: why, and where in the text."""

    def __init__(self, why: str, text: str, place: int) -> None:
        super().__init__(why)
        self.why = why
        self.text = text
        self.place = place


class Value(NamedTuple):
    """A value, where it ends in the text, and what of it was not JSON."""

    value: Any
    end: int
    notes: tuple[str, ...] = ()


def read_value(text: str, start: int = 0) -> Value:
    """Read the one value that begins at `start`, after white space. Raises `Unreadable`."""
    start = _skip(text, start)
    found = _json(text, start) or _Reader(text).read(start)
    if is_deep(found.value):
        raise Unreadable(_TOO_DEEP, text, start)
    return found


def is_deep(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether a value has more brackets in each other than anything here reads or keeps."""
    return any(depth > DEEPEST for depth, _ in enumerate(levels_of(value)))


def levels_of(value: Any) -> Iterator[list[Any]]:  # noqa: ANN401 - JSON
    """Everything in a value: itself, what is in it, what is in that, and so on."""
    level = [value]
    while level:
        yield level
        level = [inner for item in level for inner in _inside(item)]


def _inside(value: Any) -> Iterable[Any]:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _json(text: str, start: int) -> Value | None:
    """The value that is JSON but for raw control characters; None for one that is not."""
    for decoder, notes in ((_STRICT, ()), (_WITH_RAW, (_RAW,))):
        try:
            return Value(*decoder.raw_decode(text, start), notes)
        except json.JSONDecodeError:
            continue
        except (RecursionError, ValueError) as error:  # depth; a number of thousands of digits
            raise Unreadable(str(error), text, start) from error
    return None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._notes: dict[str, None] = {}

    def read(self, start: int) -> Value:
        self._at = start
        if not self._text.startswith(("{", "["), start):
            raise self._unreadable("Expecting value")
        value = self._value("", 0)
        return Value(value, self._at, tuple(self._notes))

    def _value(self, follows: str, depth: int) -> Any:  # noqa: ANN401 - JSON
        if depth > DEEPEST:
            raise self._unreadable(_TOO_DEEP)
        self._space()
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"' | "'" | "`":
                return self._string(follows)
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._at += 1
        while not self._closes("}"):
            key = self._key()
            self._expect(":")
            members[key] = self._value("member", depth + 1)
            self._separate("}")
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._at += 1
        while not self._closes("]"):
            items.append(self._value("item", depth + 1))
            self._separate("]")
        return items

    def _key(self) -> str:
        if found := _NAME.match(self._text, self._at):
            self._note("names without quotes were read as keys")
            self._at = found.end()
            return found[0]
        if not self._text.startswith(('"', "'"), self._at):
            raise self._unreadable("Expecting a name in double quotes")
        return self._string("key")

    def _closes(self, bracket: str) -> bool:
        self._space()
        if not self._text.startswith(bracket, self._at):
            return False
        self._at += 1
        return True

    def _separate(self, bracket: str) -> None:
        self._space()
        if self._text.startswith(bracket, self._at):
            return
        self._expect(",")
        self._space()
        if self._text.startswith(bracket, self._at):
            self._note("a comma before a closing bracket was dropped")

    def _word(self) -> Any:  # noqa: ANN401 - JSON
        found = _WORD.match(self._text, self._at)
        word = found[0] if found else ""
        try:
            value = _WORDS[word] if word in _WORDS else json.loads(word)
        except ValueError:
            raise self._unreadable("Expecting value") from None
        if word in _WORDS:
            self._note(f"{word} is no word of JSON")
        self._at += len(word)
        return value

    def _string(self, follows: str) -> str:
        quote = next(q for q in _QUOTES if self._text.startswith(q, self._at))
        begin, parts, inner = self._at, list[str](), 0
        self._at += len(quote)
        while not self._ends(quote, follows):
            if self._at >= len(self._text):
                raise self._unreadable("a string that begins here is not closed", begin)
            is_quote = self._text.startswith(quote, self._at)
            parts.append(self._part(quote))
            inner += is_quote and parts[-1] == quote
        if inner % 2 or (inner and (follows == "key" or _SUM.search("".join(parts)))):
            raise self._unreadable("quotes in the string that begins here are not escaped", begin)
        self._at += len(quote)
        self._note(_UNUSUAL.get(quote))
        self._note("quotes in a string were escaped" if inner else None)
        return "".join(parts)

    def _ends(self, quote: str, follows: str) -> bool:
        if not self._text.startswith(quote, self._at):
            return False
        return bool(_FOLLOWS[follows].match(self._text, self._at + len(quote)))

    def _part(self, quote: str) -> str:
        """Take some more of a string, up to where it may end."""
        if self._text.startswith("\\", self._at):
            return self._escape(quote)
        if self._text.startswith(quote, self._at):
            # of four quotes in a row the first belongs to the code
            is_more = self._text.startswith(quote[0], self._at + len(quote))
            return self._take(1 if is_more else len(quote))
        found = _PLAIN[quote[0]].match(self._text, self._at)
        part = self._take(len(found[0]) if found and found[0] else 1)
        self._note(_RAW if quote not in _RAW_QUOTES and _CONTROL.search(part) else None)
        return part

    def _escape(self, quote: str) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        if quote in _RAW_QUOTES:
            if self._text.startswith(quote, self._at + 1):
                self._at += 1
                return self._take(len(quote))
            return self._take(2)
        if following == "u" and _HEX.match(self._text, self._at + 2):
            return self._unicode()
        if following in _ESCAPES:
            self._at += 2
            return _ESCAPES[following]
        self._note("escapes that are none in JSON were kept as they are")
        return self._take(2)

    def _unicode(self) -> str:
        """Take one code point: an escape, or two that are halves of a pair."""
        found = _PAIR.match(self._text, self._at)
        escaped = self._take(12 if found else 6)
        value: str = json.loads(f'"{escaped}"')
        return value

    def _take(self, count: int) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += count
        return taken

    def _expect(self, sign: str) -> None:
        self._space()
        if not self._text.startswith(sign, self._at):
            raise self._unreadable(f"Expecting {sign!r}")
        self._at += 1

    def _space(self) -> None:
        self._at = _skip(self._text, self._at)

    def _note(self, note: str | None) -> None:
        if note:
            self._notes[note] = None

    def _unreadable(self, why: str, place: int | None = None) -> Unreadable:
        place = self._at if place is None else place
        return Unreadable(why, self._text, min(place, len(self._text)))


def _skip(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start
