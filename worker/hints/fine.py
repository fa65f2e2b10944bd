"""Hints where nothing failed: nothing is seen, or something else than was meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from worker.hints.case import Advice, Case, Rule, mended, said_names
from worker.hints.sandbox import INSTALLS, PROCESSES
from worker.prompts import hint_text

_NOTHING_SAID = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
_BLOCKS = {ast.For: "for", ast.While: "while", ast.If: "if", ast.With: "with", ast.Try: "try"}
_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_SHOWN = 80  # characters of an expression
_NAMES = 8
_STATEMENTS = 50
_VALUES = (
    (r"\A(?:<bound method|<function|<built-in method)", "not_called"),
    (r"\A<(?:generator|map|filter|zip|enumerate|dict_\w+|itertools\.)\b.* object", "not_listed"),
    (r"\A<pandas\.core\.groupby", "not_aggregated"),
    (r"\AEmpty DataFrame|\ASeries\(\[\], ", "no_rows"),
    (r"\A(?:np\.float64\()?nan\)?\Z", "only_nan"),
)

_LOST = re.compile(
    r"(?P<how>to_\w+)\(errors='coerce'\) made NaN of \d+ of \d+ values, such as (?P<value>'[^\n]*)"
)
_BEGINS = re.compile(r"'-?\d[\d.]*\s?[(\[~±;A-Za-z]")
_COERCE = re.compile(
    r"(?:pd|pandas)\.to_numeric\((?P<column>\w+\[['\"][^'\"]+['\"]\]),\s*errors=['\"]coerce['\"]\)"
)


def _crowded(case: Case) -> str | None:
    return hint_text("processes") if PROCESSES.search(case.execution.output[-4000:]) else None


def _installed_nothing(case: Case) -> str | None:
    return hint_text("command_install") if INSTALLS.search(case.execution.output[-4000:]) else None


def _show(case: Case) -> str | None:
    pictured = any(file.mime.startswith("image/") for file in case.execution.files)
    return hint_text("show") if re.search(r"plt\.show\(", case.code) and not pictured else None


def _copied(case: Case) -> str | None:
    """A value was set in a copy, which pandas only warns of."""
    warnings = "SettingWithCopyWarning", "ChainedAssignmentError"
    is_warned = any(warning in case.execution.output for warning in warnings)
    return hint_text("copied") if is_warned else None


def _coerced(case: Case) -> Advice | str | None:
    """Values could not be read and are gone, which a warning of the guest's has told."""
    found = _LOST.search(case.execution.output)
    if found is None:
        return None
    if found["how"] != "to_numeric" or not _BEGINS.match(found["value"]):
        return hint_text("coerced", value=found["value"])
    line = next((line.strip() for line in case.code.splitlines() if _COERCE.search(line)), "")
    # what was converted before must be as it was in the file, or the mended line would fail
    better = _COERCE.sub(r"\g<column>.str.extract(r'(-?[0-9.]+)')[0].astype(float)", line)
    text = hint_text("coerced_number", value=found["value"])
    return mended(text, line, better if ".read_" in case.code else line)


def _value(case: Case) -> str | None:
    value = case.execution.value or ""
    return next((hint_text(key) for pattern, key in _VALUES if re.search(pattern, value)), None)


def quiet(case: Case) -> str | None:
    """Nothing was shown: which names it has made, and how to see something."""
    done = case.execution
    if done.output or done.value is not None or done.files or done.exit_code is not None:
        return None
    try:
        return _quiet(ast.parse(case.code).body)
    except (SyntaxError, ValueError, RecursionError):  # or it is nested too deeply to be looked at
        return None


def _quiet(body: list[ast.stmt]) -> str | None:
    if all(isinstance(statement, _NOTHING_SAID) for statement in body):
        is_main = any(getattr(statement, "name", "") == "main" for statement in body)
        return hint_text("empty_main", name="main") if is_main else None
    return _unseen(body[-1]) or _inplace(body[-1]) or _made(body) or hint_text("empty")


def _unseen(last: ast.stmt) -> str | None:
    """A bare expression at the end of a block is not shown."""
    kind, block = _BLOCKS.get(type(last)), last
    while isinstance(block, ast.For | ast.While | ast.If | ast.With | ast.Try):
        block = block.body[-1]
    if kind is None or not isinstance(block, ast.Expr) or _is_print(block.value):
        return None
    return hint_text("empty_block", kind=kind, expression=_said(block.value))


def _is_print(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "print"


def _inplace(last: ast.stmt) -> str | None:
    """A method that changes its table gives nothing back."""
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return None
    function, words = last.value.func, last.value.keywords
    if isinstance(function, ast.Attribute) and any(word.arg == "inplace" for word in words):
        return hint_text("empty_inplace", name=_said(function.value))
    return None


def _made(body: list[ast.stmt]) -> str | None:
    """The names that the last statements have assigned."""
    last = body[-1]
    if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Subscript | ast.Attribute):
        return hint_text("empty_changed", name=_said(last.targets[0]))
    own = [node for node in body[-_STATEMENTS:] if not isinstance(node, _SCOPES)]
    names = [name for node in own for name in _assigned(node)]
    made = list(dict.fromkeys(reversed(names)))[:_NAMES]
    if not made:
        return None
    return hint_text("empty_assigned", names=said_names(reversed(made)), last=made[0])


def _assigned(node: ast.AST) -> Iterator[str]:
    """The variables that a statement leaves behind, but for those that only count a loop."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    passing = node.target if isinstance(node, ast.For) else None
    for child in ast.iter_child_nodes(node):
        if child is not passing and not isinstance(child, _SCOPES):
            yield from _assigned(child)


def _said(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


FINE: tuple[Rule, ...] = (*(_crowded, _installed_nothing, _coerced, _show, _copied, _value, quiet),)
