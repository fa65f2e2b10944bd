"""One execution, as the rules for hints look at it."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from sandbox.types import Execution
from worker.prompts import hint_text
from worker.sizes import said_bytes

_MAX_NAMES, _MAX_CHARS = 40, 600
_MOST_MENDED = 300  # characters of a line that is shown as it should be
_MOST_CODE = 2000  # characters of a call that is shown as it should be
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:.*\n)*?"
    r"(?:^ +(?P<source>\S.*)\n(?:^ +[\^~ ]+\n)?)?"
    r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?\Z",
    re.MULTILINE,
)
_TAIL = 4000


@dataclass(frozen=True)
class Case:
    """An execution, the code that ran, and what else is known.

    A script that a command has run tells of its error in the output alone; that counts as well.
    """

    execution: Execution
    code: str
    lost_names: tuple[str, ...]
    network: str
    more_time: str

    @property
    def type(self) -> str:
        """The class name of the error, without its module."""
        return self._error[0].rsplit(".", 1)[-1]

    @property
    def message(self) -> str:
        return self._error[1]

    @property
    def source(self) -> str:
        """The failing line."""
        return self._error[2]

    @cached_property
    def told(self) -> str:
        """What the failure says of itself: the error, or the end of a command's output."""
        return f"{self.type}: {self.message}" if self.type else self.execution.output[-_TAIL:]

    @cached_property
    def _error(self) -> tuple[str, str, str]:
        if error := self.execution.error:
            return error.type, error.message, (error.source or "").strip()
        output = self.execution.output[-_TAIL:].rstrip()
        start = output.rfind("Traceback (most recent call last):\n")
        found = _TRACEBACK.match(output[start:]) if start >= 0 else None
        return (
            (found["type"], found["message"] or "", found["source"] or "") if found else ("",) * 3
        )

    @property
    def peak(self) -> str:
        return said_bytes(self.execution.peak_memory_bytes)

    def fact(self, name: str) -> tuple[str, ...]:
        return self.facts.get(name, ())

    @property
    def facts(self) -> dict[str, tuple[str, ...]]:
        """What the guest knew beside the error."""
        return self.execution.error.facts if self.execution.error else {}


class Advice(NamedTuple):
    """What to do, and where that is certain what to write in place of the line `old`."""

    text: str
    old: str = ""
    new: str = ""

    @property
    def said(self) -> str:
        """The advice as one line; where a line is to be put before another, its text says so."""
        is_line = self.new and "\n" not in self.new
        return self.text + (hint_text("mended", line=self.new) if is_line else "")

    def mended(self, code: str) -> str:
        """The code with its line mended; empty when that cannot be done, or would be long."""
        lines = code.splitlines()
        at = [number for number, line in enumerate(lines) if line.strip() == self.old]
        if not self.new or len(at) != 1 or "```" in code or len(code) > _MOST_CODE:
            return ""
        indent = lines[at[0]].partition(self.old)[0]
        lines[at[0]] = "\n".join(indent + line for line in self.new.split("\n"))
        return "\n".join(lines)


Rule = Callable[[Case], Advice | str | None]


def listing(key: str, wanted: list[str], names: tuple[str, ...]) -> str:
    """The hint `key`: which names there are, and which of them may be meant."""
    shown = said_names(names)
    if close := closest(wanted, names):
        return hint_text(f"{key}_closest", names=shown, closest=said_names(close))
    return hint_text(key, names=shown)


def mended(text: str, old: str, new: str) -> Advice:
    """Advice to write a line as `new`, unless it is no other line or long."""
    return Advice(text) if old == new or len(new) > _MOST_MENDED else Advice(text, old, new)


def said_names(names: Iterable[str]) -> str:
    """Names in a row, as many as are read; quoted where their ends would not be seen."""
    names = tuple(names)
    plain = (name and name == name.strip() and name.isprintable() for name in names)
    shown = [name if is_plain else repr(name) for name, is_plain in zip(names, plain, strict=True)]
    ends = list(accumulate(len(name) + 2 for name in shown))
    count = min(_MAX_NAMES, max(1, bisect_right(ends, _MAX_CHARS)))
    return ", ".join(shown[:count]) + (" …" if len(names) > count else "")


def closest(wanted: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names nearest to the wanted ones: by spelling without case, or by containment."""
    plain = {_plain(name): name for name in reversed(names)}
    found: dict[str, None] = {}
    for want in map(_plain, wanted):
        near = difflib.get_close_matches(want, plain, n=1, cutoff=0.6)
        near += [name for name in plain if _is_within(want, name) or _is_within(name, want)]
        found.update(dict.fromkeys(plain[name] for name in near[:2]))
    return tuple(found)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip()).lower()


def _is_within(short: str, long: str) -> bool:
    """Whether one is a part of the other that says something."""
    return len(short) >= 3 and short in long  # noqa: PLR2004 - "id" is in half of all words
