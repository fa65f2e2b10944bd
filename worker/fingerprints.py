"""What makes two calls, two outcomes or two errors the same.

Calls are the same when the tool and its canonical arguments are: order, white space, comments and
the time limit do not count. Outcomes are the same when they tell the model the same: what differs
in every run (addresses, times of day, durations, process ids, temporary names) does not count.
Counters and percentages do, because they show that something moves.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from functools import cache, lru_cache

from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid
from worker.history import Turn
from worker.messages import ResultStatus, ToolCall, ToolResult
from worker.prompts import notice

_SHOWN_CALL, _SHOWN_TEXT = 100, 120  # characters
_END = 4000  # characters of an outcome in which is looked for what differs in every run
_NOISE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER)
_MOST_CODE = 20_000  # characters that are taken apart; the lines of more are compared
_COMMENT = re.compile(r"(?:^|(?<=\s))#")
_DIGIT = re.compile(r"[0-9]")
_UNIT = r"(?:ns|µs|μs|us|ms|s|sec|secs|seconds?|min|mins|minutes?)"
_VOLATILE = (
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "0x"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|\s?[+-]\d\d:?\d\d)?\b"
        ),
        "<time>",
    ),
    (re.compile(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b\d+m\d+[.,]\d+s\b"), "<duration>"),
    (re.compile(rf"\b\d+(?:[.,]\d+)?(?:e-?\d+)?\s?{_UNIT}\b"), "<duration>"),
    (re.compile(r"(?<=/tmp/)tmp[.\w-]*"), "<temporary>"),
    (re.compile(r"\b(pid|PID)(\W{1,3})\d+\b"), r"\1\2<pid>"),
    (re.compile(r"\b([Pp]rocess)(\W{1,2})\d{3,7}\b(?!\s*(?:of\b|/))"), r"\1\2<pid>"),
    (re.compile(r"(?m)^(\[\d+\][+-]?\s+)\d{3,7}\s*$"), r"\1<pid>"),
    (re.compile(r"(line \d+:\s+)\d+( (?:Killed|Terminated|Aborted|Segmentation))"), r"\1<pid>\2"),
)
_PARTICULAR = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|\d+")
_LINE = re.compile(r"\bline \d+")


# ---- calls


def same_call(call: ToolCall) -> str:
    """Return a text that is equal for calls that do the same."""
    return canonical(call.name, call.arguments)


@lru_cache(maxsize=1024)  # a call is looked at again for the others of its turn
def canonical(name: str, text: str) -> str:
    """Return the text of `same_call` for a tool and the text of its arguments."""
    try:
        arguments, _ = read_arguments(text)
    except ArgumentsInvalid:
        return f"{name} {' '.join(text.split())}"
    arguments.pop("timeout_s", None)
    if isinstance(code := arguments.get("code"), str):
        arguments["code"] = _bare_python(code)
    if isinstance(command := arguments.get("command"), str):
        arguments["command"] = _bare_text(command)
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def _bare_python(code: str) -> str:
    if len(code) > _MOST_CODE:
        return _bare_text(code)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return _bare_text(code)
    names = {tokenize.INDENT: "{", tokenize.DEDENT: "}"}
    return " ".join(names.get(t.type, t.string) for t in tokens if t.type not in _NOISE)


def _bare_text(text: str) -> str:
    """Lines without comments and needless space."""
    return "\n".join(filter(None, map(_bare_line, text.split("\n"))))


def _bare_line(line: str) -> str:
    """A `#` before a quote may be in a string, and begins no comment."""
    found = _COMMENT.search(line, max(line.rfind("'"), line.rfind('"')) + 1)
    return " ".join(line[: found.start() if found else len(line)].split())


# ---- outcomes


def same_outcome(result: ToolResult) -> str:
    """Return a text that is equal for outcomes that tell the model the same."""
    if (done := result.execution) is None:
        return lasting(_told(result))
    error = f"{done.error.type}: {done.error.message}" if done.error else ""
    return lasting(f"{done.outcome} {done.exit_code} {error}\n{done.value}\n{done.output}")


def lasting(text: str) -> str:
    """The text without what differs in every run; the middle of a long one is taken as it is."""
    if len(text) > 2 * _END:
        return lasting(text[:_END]) + text[_END:-_END] + lasting(text[-_END:])
    if not _DIGIT.search(text):
        return text
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    return text


def is_ours(result: ToolResult) -> bool:
    """Whether loop detection itself said that the call is not to be run."""
    told = _told(result)
    return result.status is ResultStatus.SKIPPED and told.startswith(_our_words())


def error_of(turn: Turn) -> str | None:
    """The error that a step ended with, whichever code led to it."""
    for result in reversed(turn.results.values()):
        if (error := _error(result)) is not None:
            return error
    return None


def _error(result: ToolResult) -> str | None:
    done = result.execution
    if done and done.error:
        return lasting(f"{done.error.type}: {done.error.message}")
    if result.status is ResultStatus.ERROR:
        said = done.output.strip() if done else _told(result)
        return lasting(_LINE.sub("line", said.splitlines()[-1] if done else said)) if said else None
    if result.status is ResultStatus.REFUSED:  # what was wrong, without what stood there
        return _PARTICULAR.sub("…", "\n".join(_told(result).splitlines()[:2]))
    if result.status is ResultStatus.SKIPPED and not is_ours(result):
        return lasting(_told(result))
    return None


def _told(result: ToolResult) -> str:
    """What the model was told of a call, without the line that has its number."""
    first, _, rest = result.text.partition("\n")
    return rest if first.startswith("status:") else result.text


@cache
def _our_words() -> tuple[str, ...]:
    """How what we say of calls that are not to be run begins."""
    said = notice("blocked", count="\0", earlier=""), notice("twice", number="\0")
    return tuple(text.partition("\0")[0] for text in said)


# ---- for people


def shown_call(call: ToolCall) -> str:
    """A call in a few words, to be quoted."""
    try:
        arguments, _ = read_arguments(call.arguments)
    except ArgumentsInvalid:
        return f"{call.name}({shown(call.arguments, _SHOWN_CALL)})"
    main = arguments.get("code") or arguments.get("command") or arguments
    text = main if isinstance(main, str) else json.dumps(main, ensure_ascii=False)
    return f"{call.name}({shown(text, _SHOWN_CALL)})"


def shown_outcome(result: ToolResult) -> str:
    """What came of a call in a few words: its error, else the end of what it gave."""
    if (done := result.execution) is None:
        return shown(_told(result) or result.status)
    if done.error:
        return shown(f"{done.error.type}: {done.error.message}")
    said = (done.value or done.output).strip().splitlines()
    return shown(said[-1] if said else f"{done.outcome}, no output")


def shown(text: str, most: int = _SHOWN_TEXT) -> str:
    """One line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
