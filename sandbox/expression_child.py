"""The inside of an evaluation: runs in a process of its own, which `sandbox.expression` kills.

Reads the text from stdin, answers with one JSON object on stdout, and ends. RestrictedPython
rewrites the text so that every attribute, item, iteration and assignment goes through a function
here, and each of those admits known plain types only: not the attributes that are known to be
dangerous are refused, but all attributes of all objects that are not on a short list. Modules,
functions, generators, frames and exceptions have no attributes at all.

Under that lies the process: no environment, no file descriptor to be had, no child processes, a
limit on memory and CPU time.

What is imported here is paid for by every evaluation, so `dataclasses` (8 ms) and our own
regular expressions are not.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import datetime as dt
import decimal
import fractions
import io
import json
import math
import operator
import os
import resource
import statistics
import sys
import textwrap
import time
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from RestrictedPython.compile import (
    CompileResult,
    compile_restricted_eval,
    compile_restricted_exec,
)
from RestrictedPython.Guards import guarded_iter_unpack_sequence, guarded_unpack_sequence
from RestrictedPython.transformer import RestrictingNodeTransformer

READY = b"\n"
MAX_VALUE_CHARS = 8_000
MAX_OUTPUT_CHARS = 8_000
MAX_MESSAGE_CHARS = 1_000
MAX_DIGITS = 100_000
FILENAME = "<expression>"
NOBODY = 65534

Answer = dict[str, Any]


class NotAllowed(Exception):
    """The text asks for something that an expression may not do."""


# ---- what there is ------------------------------------------------------------------------


class Names:
    """Chosen members of a module; stands where the text says `math`, and is no module."""

    def __init__(
        self,
        name: str,
        members: Mapping[str, object],
        make: Callable[..., object] | None = None,
    ) -> None:
        self.name = name
        self.members = members
        self.make = make

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self.make is None:
            raise TypeError(f"{self.name!r} is not callable")
        return self.make(*args, **kwargs)


def _members(module: object, names: str) -> dict[str, object]:
    return {name: getattr(module, name) for name in names.split()}


_MATH = {name: getattr(math, name) for name in dir(math) if not name.startswith("_")}
_STATISTICS = _members(
    statistics,
    "mean fmean geometric_mean harmonic_mean median median_low median_high mode multimode "
    "quantiles stdev pstdev variance pvariance covariance correlation",
)
_DECIMAL = _members(
    decimal,
    "Decimal ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN ROUND_HALF_EVEN "
    "ROUND_HALF_UP ROUND_UP",
)
_FRACTIONS = {"Fraction": fractions.Fraction}
_DATES = _members(dt, "date datetime time timedelta timezone")
# `datetime` is a module to some and a class to others; this is both.
_DATETIME = Names(
    "datetime",
    _members(dt.datetime, "now combine fromisoformat fromtimestamp strptime min max") | _DATES,
    make=dt.datetime,
)
_MODULES: dict[str, Mapping[str, object]] = {
    "math": _MATH,
    "statistics": _STATISTICS,
    "decimal": _DECIMAL,
    "fractions": _FRACTIONS,
    "datetime": _DATES,
}

_TUPLES: tuple[type, ...] = (
    *(tuple, time.struct_time, decimal.DecimalTuple),
    type(dt.date.min.isocalendar()),
)
_SEQUENCES: tuple[type, ...] = (str, bytes, list, range, *_TUPLES)
_CONTAINERS: tuple[type, ...] = (*_SEQUENCES, dict, set, frozenset)
_SCALARS: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, slice, decimal.Decimal, fractions.Fraction),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))

# Types are compared, not tested with isinstance: a subclass may do anything.
_OPEN = frozenset((*_CONTAINERS, *_SCALARS))
_ITERABLE = frozenset((*_CONTAINERS, *_VIEWS, types.GeneratorType))
_INDEXABLE = frozenset((*_SEQUENCES, dict))
_PLAIN = frozenset((*_OPEN, *_VIEWS))
_WRITABLE = frozenset((list, dict))
_FORMATS = frozenset(("format", "format_map"))

_INPLACE: dict[str, Callable[[Any, Any], object]] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "|=": operator.ior,
    "^=": operator.ixor,
    "&=": operator.iand,
}


# ---- the guards ---------------------------------------------------------------------------


def get_attribute(thing: Any, name: str) -> object:  # noqa: ANN401
    """Stand for `thing.name`."""
    if type(name) is not str or name.startswith("_"):
        raise NotAllowed(f"the attribute {name!r} is private")
    if type(thing) is Names:
        return _member(thing, name)
    kind = thing if isinstance(thing, type) else type(thing)
    if kind not in _OPEN:
        raise NotAllowed(f"attributes of a {type(thing).__name__} ({name!r})")
    if kind is str and name in _FORMATS:
        raise NotAllowed("str.format can reach into objects; write an f-string instead")
    if name not in dir(kind):  # `dir` leaves out what comes from the type of the type: `int.mro`
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    return getattr(thing, name)


def _member(names: Names, name: str) -> object:
    if name not in names.members:
        raise AttributeError(f"{names.name} has no attribute {name!r} here")
    return names.members[name]


def get_item(thing: Any, index: object) -> object:  # noqa: ANN401
    """Stand for `thing[index]`."""
    if type(thing) not in _INDEXABLE:
        raise TypeError(f"{type(thing).__name__!r} object is not subscriptable")
    return thing[index]


def iterate(thing: Any) -> Iterable[Any]:  # noqa: ANN401
    """Stand for what a loop goes over."""
    if type(thing) not in _ITERABLE:
        raise TypeError(f"{type(thing).__name__!r} object is not iterable")
    return thing  # type: ignore[no-any-return]


def writable(thing: object) -> object:
    """Stand for `thing` in `thing[index] = value`."""
    if type(thing) not in _WRITABLE:
        raise NotAllowed(f"changing a {type(thing).__name__}")
    return thing


def change_in_place(operation: str, left: object, right: object) -> object:
    """Stand for `left += right` and its like."""
    return _INPLACE[operation](left, right)


def call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Stand for `function(*args, **kwargs)`."""
    return function(*args, **kwargs)


def find_module(name: str, *_: object, **__: object) -> types.ModuleType:
    """Stand for `__import__`, for the date functions: they look `time` up through it.

    The text cannot name it, nor import anything.
    """
    if name in {"time", "_strptime"}:
        return sys.modules[name]
    raise ImportError(f"no module named {name!r} here")


class Printed:
    """What the text printed: the first part of it, and how long it was."""

    def __init__(self) -> None:
        self.text = ""
        self.chars = 0

    def _call_print(
        self, *values: object, sep: str | None = None, end: str | None = None, flush: bool = False
    ) -> None:
        line = io.StringIO()
        print(*values, sep=sep, end=end, flush=flush, file=line)
        self._add(line.getvalue())

    def _add(self, line: str) -> None:
        self.chars += len(line)
        self.text = (self.text + line)[:MAX_OUTPUT_CHARS]


# ---- functions that iterate in C, and would pass by the guards ----------------------------


def _over(function: Callable[..., Any]) -> Callable[..., object]:
    def guarded(iterable: object = (), *args: object, **kwargs: object) -> object:
        return function(iterate(iterable), *args, **kwargs)

    return guarded


def _over_all(function: Callable[..., Iterable[object]]) -> Callable[..., list[object]]:
    def guarded(*iterables: object, **kwargs: object) -> list[object]:
        return list(function(*map(iterate, iterables), **kwargs))

    return guarded


def _over_rest(function: Callable[..., Iterable[object]]) -> Callable[..., list[object]]:
    def guarded(key: Callable[..., object] | None, *iterables: object) -> list[object]:
        return list(function(key, *map(iterate, iterables)))

    return guarded


def _over_one_or_among(function: Callable[..., object]) -> Callable[..., object]:
    def guarded(*values: object, **kwargs: object) -> object:
        if len(values) == 1:
            return function(iterate(values[0]), **kwargs)
        return function(*values, **kwargs)

    return guarded


def _next(generator: object, *default: object) -> object:
    if type(generator) is not types.GeneratorType:
        raise TypeError(f"{type(generator).__name__!r} object is not an iterator")
    return next(generator, *default)


_GUARDED_TYPES = {kind: _over(kind) for kind in (list, tuple, set, frozenset, dict)}
_KINDS: dict[object, Any] = {
    **{guarded: kind for kind, guarded in _GUARDED_TYPES.items()},
    _DATETIME: dt.datetime,
}


def _isinstance(value: object, kinds: Any) -> bool:  # noqa: ANN401
    wanted: Any = kinds if type(kinds) is tuple else (kinds,)
    return isinstance(value, tuple(_KINDS.get(kind, kind) for kind in wanted))


_FUNCTIONS: dict[str, object] = {
    **_members(
        builtins,
        "abs bin bool callable chr complex divmod float format hex int len oct ord pow range "
        "repr round slice str",
    ),
    **{kind.__name__: guarded for kind, guarded in _GUARDED_TYPES.items()},
    **{function.__name__: _over(function) for function in (all, any, sorted, sum)},
    "enumerate": _over(lambda *args, **kwargs: list(enumerate(*args, **kwargs))),
    "reversed": _over(lambda sequence: list(reversed(sequence))),
    "filter": _over_rest(filter),
    "map": _over_rest(map),
    "zip": _over_all(zip),
    "max": _over_one_or_among(max),
    "min": _over_one_or_among(min),
    "isinstance": _isinstance,
    "next": _next,
}


def _namespace(printed: Printed) -> dict[str, object]:
    return {
        **{name: value for name, value in _MATH.items() if name not in _FUNCTIONS},
        **_STATISTICS,
        **_DECIMAL,
        **_DATES,
        **_FRACTIONS,
        **{name: Names(name, members) for name, members in _MODULES.items()},
        "datetime": _DATETIME,
        "__builtins__": {**_FUNCTIONS, "__import__": find_module},
        "_getattr_": get_attribute,
        "_getitem_": get_item,
        "_getiter_": iterate,
        "_write_": writable,
        "_inplacevar_": change_in_place,
        "_apply_": call,
        "_unpack_sequence_": guarded_unpack_sequence,
        "_iter_unpack_sequence_": guarded_iter_unpack_sequence,
        "_print_": lambda _getattr: printed,
        "_print": printed,
    }


# ---- compiling and running ----------------------------------------------------------------


class Policy(RestrictingNodeTransformer):
    """RestrictedPython's rules, and fewer kinds of statement.

    Without `try`, `raise` and classes no text can hold an exception, or bring a type of its own.
    """

    def not_here(self, node: ast.stmt | ast.expr) -> None:
        self.not_allowed(node)

    visit_Assert = visit_ClassDef = visit_Global = visit_Raise = not_here  # noqa: N815
    visit_Try = visit_With = visit_Yield = visit_YieldFrom = not_here  # noqa: N815

    # An import of what is here anyway stands for nothing, or for a second name; every other is
    # refused.

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:  # noqa: N802
        return self._spare(node, _MODULES)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.AST]:  # noqa: N802
        return self._spare(node, {} if node.level else _MODULES.get(node.module or "", {}))

    def _spare(
        self, node: ast.Import | ast.ImportFrom, known: Mapping[str, object]
    ) -> list[ast.AST]:
        if not all(alias.name in known for alias in node.names):
            self.error(node, f"`{ast.unparse(node)}`; there is {', '.join(_MODULES)}")
        renamed = [
            ast.Assign([ast.Name(alias.asname, ast.Store())], ast.Name(alias.name, ast.Load()))
            for alias in node.names
            if alias.asname
        ]
        nothing: list[ast.stmt] = [ast.Pass()]
        return [
            self.visit(ast.fix_missing_locations(ast.copy_location(statement, node)))
            for statement in renamed or nothing
        ]


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(textwrap.dedent(text).rstrip(), FILENAME)
    except SyntaxError:
        raise
    except (MemoryError, RecursionError, ValueError) as error:
        # The parser's own limits: its MemoryError says nothing of memory.
        raise NotAllowed(
            f"text that the parser cannot take ({str(error) or 'too complex'})"
        ) from None


def _compile(text: str) -> tuple[types.CodeType, types.CodeType | None]:
    """Compile the statements, and the expression at the end; every text comes by here."""
    body = _parse(text).body
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr):
        return _compiled(body), None
    expression = compile_restricted_eval(ast.Expression(last.value), FILENAME, policy=Policy)
    return _compiled(body[:-1]), _accepted(expression)


def _compiled(body: list[ast.stmt]) -> types.CodeType:
    return _accepted(compile_restricted_exec(ast.Module(body, []), FILENAME, policy=Policy))


def _accepted(result: CompileResult) -> types.CodeType:
    if result.errors or result.code is None:
        raise NotAllowed("; ".join(result.errors))
    return result.code


def _run(text: str, printed: Printed) -> str | None:
    try:
        statements, expression = _compile(text)
    except RecursionError:
        raise NotAllowed("text that is nested too deeply") from None
    namespace = _namespace(printed)
    exec(statements, namespace)  # noqa: S102 - compiled by RestrictedPython, in a child
    if expression is None:
        return None
    return _text_of(eval(expression, namespace))  # noqa: S307 - as above


def _text_of(value: object) -> str | None:
    if value is None:
        return None
    if type(value) not in _PLAIN:
        more = "; put list(...) around it" if type(value) is types.GeneratorType else ""
        raise NotAllowed(f"a {type(value).__name__} as the result{more}")
    return _cut(repr(value), MAX_VALUE_CHARS)


# ---- the answer ---------------------------------------------------------------------------


def respond(text: str) -> Answer:
    """Evaluate `text`; never raises."""
    printed = Printed()
    try:
        answer: Answer = {"value": _run(text, printed)}
    except MemoryError:
        answer = {"oom": True}
    except Exception as error:  # noqa: BLE001 - the text may fail in any way; that is the answer
        answer = {"error": _describe(error, text)}
    return answer | {"output": printed.text, "output_chars": printed.chars}


def _describe(error: Exception, text: str) -> Answer:
    kind, message, line = type(error).__name__, str(error), _line_of(error)
    if isinstance(error, NameError) and hasattr(builtins, error.name or ""):
        kind, message = "NotAllowed", f"{error.name!r}"
    elif isinstance(error, OSError):
        kind, message = "NotAllowed", "opening anything"
    elif isinstance(error, SyntaxError):
        message, line = error.msg, error.lineno
    elif isinstance(error, ValueError) and "integer string conversion" in message:
        message = f"the result has more than {MAX_DIGITS} digits; use log10 or a comparison"
    if kind == "NotAllowed":
        line, message = _refused_line(message, line)
    lines = text.splitlines()
    source = lines[line - 1].strip() if line and line <= len(lines) else None
    return {
        "type": kind,
        "message": _cut(message, MAX_MESSAGE_CHARS),
        "line": line,
        "source": source and _cut(source, MAX_MESSAGE_CHARS),
    }


def _refused_line(message: str, line: int | None) -> tuple[int | None, str]:
    """Take RestrictedPython's "Line 3: " off the front of a message, and word the refusal."""
    front, _, rest = message.partition(": ")
    if front.startswith("Line ") and front[5:].isdigit():
        line, message = int(front[5:]), rest
    return (
        line,
        f"not allowed in an expression: {message.rstrip('.')}; python_interpreter can do more",
    )


def _cut(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    kept = (max_chars - 60) // 2
    return f"{text[:kept]} [... {len(text) - 2 * kept} characters omitted] {text[-kept:]}"


def _line_of(error: Exception) -> int | None:
    line, entry = None, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == FILENAME:
            line = entry.tb_lineno
        entry = entry.tb_next
    return line


# ---- the process --------------------------------------------------------------------------


def confine(cpu_s: int, memory_bytes: int) -> None:
    """Give up what is not needed to compute; nothing that is given up can be had back."""
    if os.geteuid() == 0:
        # Root without CAP_SETUID has nobody to become, and few rights to lose.
        with contextlib.suppress(PermissionError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        # stdin, stdout and stderr are open; no file, socket or pipe can be added.
        resource.RLIMIT_NOFILE: 3,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))


def main() -> None:
    """Confine this process, then answer one text. Arguments: CPU seconds, bytes of memory."""
    # Both import what they need when they are first used, and later no file can be opened.
    dt.datetime.strptime("2000Z", "%Y%z")
    ast.parse("é")
    sys.path.clear()
    sys.set_int_max_str_digits(MAX_DIGITS)
    confine(int(sys.argv[1]), int(sys.argv[2]))
    os.write(1, READY)
    text = sys.stdin.buffer.read().decode()
    answer = respond(text) | {"cpu_s": time.process_time()}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    sys.stdout.buffer.flush()
    # Without the interpreter's long way out: what is left to do is done by the kernel.
    os._exit(0)
