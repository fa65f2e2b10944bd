"""Check values against JSON Schema: arguments of tools that are declared so, and answers.

A schema with a rule that would not be enforced is refused at the door, because a rule that is
accepted and has no effect is worse than none: a keyword or a format that is not known, a dialect
that is not known, a reference to what is not in the schema (nothing is ever fetched). Names that
begin with `x-` are remarks.

Patterns are Python's. A pattern may take for ever with a text that was made for it, so a value is
checked in a process of its own, which is ended after a while, where a rule may take long.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, time
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    FormatChecker,
)
from jsonschema.exceptions import ValidationError, best_match, relevance
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY, specification_with

from worker.errors import InputInvalid

Schema = dict[str, Any]
Dialect = Any  # a class of the library; they have no type in common

_OLD = (Draft4Validator, Draft6Validator, Draft7Validator)  # nothing beside $ref is enforced
_DIALECTS: dict[str, Dialect] = {
    dialect.META_SCHEMA["$schema"].rstrip("#"): dialect
    for dialect in (*_OLD, Draft201909Validator, Draft202012Validator)
}

_WORDS = {
    *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$defs", "definitions"),
    *("title", "description"),
    *("default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("then", "else", "minContains", "maxContains"),  # enforced by another keyword's check
}
_ENFORCED = ("date", "email", "ipv4", "ipv6", "regex", "uuid")  # by the library, as it stands
MOST_BYTES = 32 * 1024
CHECK_S = 10.0  # then a value that could not be checked is a fault
_SLOW = ("pattern", "patternProperties", "uniqueItems", "$ref", "$dynamicRef", "$recursiveRef")
_SHOWN = 80  # characters of a value
_TOO_DEEP = "is too deep, or the schema refers to itself without end"


def check_schema(schema: object) -> None:
    """Raise `InputInvalid`, in one line, for a schema that cannot be enforced whole.

    It must be an object.
    """
    if not isinstance(schema, dict):
        raise InputInvalid(f"a JSON Schema is an object, not {_short(schema)}")
    try:
        why = _why_no_text(schema) or _why_not(schema)
    except RecursionError:
        why = "the schema is too deep"
    if why:
        raise InputInvalid(" ".join(why.split()))


def faults(value: Any, schema: Schema) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    """Yield (place, what is wrong) for everything in `value` that the schema does not allow.

    The schema must have passed `check_schema`. It takes at most `CHECK_S`, and a moment longer
    than usual where the schema has rules that may take long.
    """
    text = json.dumps(schema)
    is_slow = any(f'"{word}"' in text for word in _SLOW)
    yield from _in_time(value, schema) if is_slow else _faults_in(value, schema)


def _in_time(value: Any, schema: Schema) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    try:
        asked = json.dumps([value, schema])
    except RecursionError:
        yield "", _TOO_DEEP
        return
    code = "from worker.schema import main; main()"
    command = [sys.executable, "-P", "-c", code]
    try:
        done = subprocess.run(
            command, input=asked, stdout=subprocess.PIPE, timeout=CHECK_S, check=True, text=True
        )
    except subprocess.TimeoutExpired:
        yield "", f"could not be checked within {CHECK_S:g} s: make it simpler"
    else:
        yield from (tuple(fault) for fault in json.loads(done.stdout))


def main() -> None:
    """Print the faults of a value: both are JSON, [value, schema] from standard input."""
    try:
        found = list(_faults_in(*json.load(sys.stdin)))
    except RecursionError:
        found = [("", _TOO_DEEP)]
    sys.stdout.write(json.dumps(found))


def _faults_in(value: Any, schema: Schema) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    seen: set[tuple[str, str]] = set()
    try:
        errors = sorted(_validator(schema).iter_errors(value), key=relevance, reverse=True)
    except RecursionError:
        yield "", _TOO_DEEP
        return
    for error in errors:
        for fault in _faults(best_match([error]) or error):
            if fault not in seen:
                seen.add(fault)
                yield fault


# ---- what a schema may be


def _why_no_text(schema: Schema) -> str | None:
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it has characters that are none in Unicode"
    except (TypeError, ValueError) as error:
        return f"it is not JSON: {error}"
    if b"\\u0000" in text:
        return "it has NUL characters, which no database keeps"
    if len(text) > MOST_BYTES:
        return f"it has {len(text):,} bytes; the model is told it, so {MOST_BYTES:,} are the most"
    return None


def _why_not(schema: Schema) -> str | None:
    dialect = _dialect(schema)
    if dialect is None:
        return f"$schema {_short(schema['$schema'])} is not a dialect that is known"
    judge = dialect(dialect.META_SCHEMA, format_checker=_formats())
    if error := best_match(judge.iter_errors(schema)):
        place = _place(error.absolute_path)
        return f"not a JSON Schema{f' at {place}' if place else ''}: {_message(error)}"
    return next(_unenforced(schema, dialect), None)


def _dialect(schema: Schema) -> Dialect | None:
    named = schema.get("$schema", Draft202012Validator.META_SCHEMA["$schema"])
    return _DIALECTS.get(named.rstrip("#")) if isinstance(named, str) else None


def _unenforced(schema: Schema, dialect: Dialect) -> Iterator[str]:
    """Yield what is wrong with the rules of a schema and of all that are in it."""
    specification = specification_with(dialect.META_SCHEMA["$schema"])
    root = specification.create_resource(schema)
    resolver = Registry().with_resource(root.id() or "", root).resolver(root.id() or "")
    parts: list[tuple[Any, Any]] = [(schema, resolver)]
    while parts:
        part, resolver = parts.pop()
        if not isinstance(part, dict):
            continue
        yield from _unknown(part, dialect)
        for name in ("$ref", "$dynamicRef"):
            try:
                if name in part:
                    resolver.lookup(part[name])
            except (Unresolvable, ValueError):
                yield f"{name} {_short(part[name])} is not in the schema (nothing is fetched)"
        inner = (specification.create_resource(p) for p in specification.subresources_of(part))
        parts += [(one.contents, resolver.in_subresource(one)) for one in inner]


def _unknown(part: Schema, dialect: Dialect) -> Iterator[str]:
    known = dialect.VALIDATORS.keys() | _WORDS
    if dialect in _OLD and "$ref" in part and (beside := part.keys() - _WORDS - {"$ref"}):
        yield f"beside $ref, {min(beside)!r} is not enforced in this dialect"
    for name in part:
        if name not in known and not name.startswith("x-"):
            yield f"the keyword {name!r} is not known, so it would not be enforced"
    if "format" in part and part["format"] not in _formats().checkers:
        names = ", ".join(sorted(_formats().checkers))
        yield f"the format {_short(part['format'])} is not known; known: {names}"


@cache
def _formats() -> FormatChecker:
    """The formats that are enforced, whatever else is installed."""
    checker = FormatChecker(formats=_ENFORCED)
    checks: dict[str, Callable[[str], object]] = {
        "date-time": _check_moment,
        "time": time.fromisoformat,
        "uri": _check_uri,
    }
    for name, check in checks.items():
        checker.checks(name, raises=ValueError)(_of_text(check))
    return checker


def _of_text(check: Callable[[str], object]) -> Callable[[object], bool]:
    def is_fine(value: object) -> bool:
        if isinstance(value, str):
            check(value)
        return True

    return is_fine


def _check_moment(text: str) -> None:
    if datetime.fromisoformat(text).tzinfo is None or text[10:11] not in {"T", "t", " "}:
        raise ValueError("no offset from UTC")


def _check_uri(text: str) -> None:
    if not urlsplit(text).scheme or re.search(r"\s", text):
        raise ValueError("no scheme, or white space")


# ---- what is wrong with a value


def _validator(schema: Schema) -> Any:  # noqa: ANN401 - one of a dialect
    dialect = _dialect(schema) or Draft202012Validator
    return dialect(schema, registry=EMPTY_REGISTRY, format_checker=_formats())


def _faults(error: ValidationError) -> Iterator[tuple[str, str]]:
    place = _place(error.absolute_path)
    rule: Any = error.validator_value
    value: Any = error.instance
    match error.validator:
        case "required":
            for name in rule:
                if name not in value:
                    yield _join(place, name), "missing, required"
        case "additionalProperties" if rule is False:
            for name in _unexpected(error):
                yield _join(place, name), "unknown, not allowed"
        case _:
            yield place, _message(error)


def _unexpected(error: ValidationError) -> list[str]:
    schema: Any = error.schema
    value: Any = error.instance
    patterns = schema.get("patternProperties", {})
    return [
        name
        for name in value
        if name not in schema.get("properties", {})
        and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _message(error: ValidationError) -> str:
    """What the library says, with the value as JSON has it and not longer than a line."""
    said = error.message.removeprefix(repr(error.instance))
    if said == error.message:
        return said if len(said) <= 4 * _SHOWN else f"{said[: 4 * _SHOWN]}…"
    return f"{_short(error.instance)}{said[: 4 * _SHOWN]}"


def _place(path: Any) -> str:  # noqa: ANN401 - a deque of names and numbers
    place = ""
    for part in path:
        place = f"{place}[{part}]" if isinstance(part, int) else _join(place, str(part))
    return place


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
