"""Hints: what can be done about a failure, from a table of rules over an `Execution`.

Each rule looks at one kind of failure and says a line or nothing; the first that speaks wins. The
words are in `prompts/hints.toml`. Rules use facts that the guest delivers with an error
(`columns`, `files`, `names`, `module`) and otherwise what the error says.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandbox.types import Execution, Interpreter, Outcome
from worker.prompts import hint_text
from worker.sizes import said_bytes

_MAX_NAMES = 40
_ALIASES = {
    "pd": "import pandas as pd",
    "np": "import numpy as np",
    "plt": "import matplotlib.pyplot as plt",
    "sns": "import seaborn as sns",
    "stats": "from scipy import stats",
}
_MODULES: tuple[str, ...] = (
    "re",
    "os",
    "sys",
    "json",
    "math",
    "csv",
    "time",
    "datetime",
    "random",
    "statistics",
)
_MODULES += ("itertools", "collections", "pathlib", "subprocess", "glob", "io", "pandas", "numpy")
_INSTEAD = {
    "seaborn": "matplotlib",
    "plotly": "matplotlib",
    "polars": "pandas",
    "duckdb": "pandas or sqlite3",
    "statsmodels": "scipy.stats or numpy",
    "requests": "the files that are there: there is no network either",
    "xgboost": "sklearn.ensemble",
    "lightgbm": "sklearn.ensemble",
    "torch": "sklearn or numpy",
    "tensorflow": "sklearn or numpy",
}
_NETWORK = re.compile(
    r"gaierror|Name or service not known|Temporary failure in name resolution|"
    r"Could not resolve host|Network is unreachable|NewConnectionError|URLError|"
    r"Failed to establish a new connection|unable to resolve host|bad address"
)
_PROCESSES = re.compile(
    r"can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|"
    r"BlockingIOError: \[Errno 11\]|fork failed|Cannot fork"
)
_COMMAND = re.compile(r"(?:line \d+: )?([\w.+-]+): (?:command )?not found")
_NOTHING_SAID = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class _Case:
    """One execution, as the rules look at it."""

    execution: Execution
    code: str
    lost_names: tuple[str, ...]
    network: str
    more_time: str

    @property
    def type(self) -> str:
        """The class name of the error, without its module."""
        return self.execution.error.type.rsplit(".", 1)[-1] if self.execution.error else ""

    @property
    def message(self) -> str:
        return self.execution.error.message if self.execution.error else ""

    @property
    def source(self) -> str:
        """The failing line."""
        return (self.execution.error.source or "").strip() if self.execution.error else ""

    @property
    def told(self) -> str:
        """What the failure says of itself: the error, or the end of a command's output."""
        return f"{self.type}: {self.message}" if self.type else self.execution.output[-4000:]

    @property
    def peak(self) -> str:
        return said_bytes(self.execution.peak_memory_bytes)

    def fact(self, name: str) -> tuple[str, ...]:
        return self.execution.error.facts.get(name, ()) if self.execution.error else ()


Rule = Callable[[_Case], str | None]


def hint(
    execution: Execution,
    code: str | None = None,
    *,
    lost_names: tuple[str, ...] = (),
    network: str = "none",
    is_for_person: bool = False,
) -> str | None:
    """One line on what to do about `execution`, or None when there is nothing worth saying.

    `code` is what ran; `lost_names` are variables that earlier calls of the job have lost;
    A person, unlike a model, does not take it for a fault when a call that went well shows nothing,
    and gives more time by an option of the command line.
    """
    names = (*lost_names, *execution.lost_names)
    more_time = "--timeout" if is_for_person else "timeout_s"
    case = _Case(execution, code or "", names, network, more_time)
    rules = _FINE if execution.outcome is Outcome.OK else _FAILED
    if is_for_person:
        rules = tuple(rule for rule in rules if rule is not _empty)
    if execution.interpreter is Interpreter.NONE and execution.exit_code is None:
        rules = (_expression,)
    return next((said for rule in rules if (said := rule(case))), None)


# ---- how it ended


def _ended(case: _Case) -> str | None:
    limit, ran = case.execution.limit, f"{case.execution.duration_s:.1f} s"
    match case.execution.outcome:
        case Outcome.OOM:
            return hint_text("oom", limit=limit or "memory limit", peak=case.peak)
        case Outcome.TIMEOUT:
            key = "timeout_loop" if "while" in case.code else "timeout"
            return hint_text(key, limit=limit or "time limit", ran=ran, more=case.more_time)
        case Outcome.OUTPUT_LIMIT:
            return hint_text("output_limit", limit=limit or "output limit")
        case Outcome.EXITED:
            return hint_text("exited", code=case.execution.exit_code)
    return None


def _killed(case: _Case) -> str | None:
    if case.execution.outcome is not Outcome.KILLED or case.type == "Cancelled":
        return None
    return hint_text("killed")


def _expression(case: _Case) -> str | None:
    """Expressions have no variables, no files and a limit of their own."""
    return hint_text("no_variables") if case.type == "NameError" else None


# ---- errors of Python


def _module(case: _Case) -> str | None:
    if case.type != "ModuleNotFoundError":
        return None
    found = re.search(r"No module named '([^']+)'", case.message)
    module = next(iter(case.fact("module")), found[1] if found else "the module")
    instead = _INSTEAD.get(module.split(".")[0])
    if instead:
        return hint_text("module_instead", module=module, instead=instead)
    return hint_text("module", module=module)


def _key(case: _Case) -> str | None:
    if case.type != "KeyError":
        return None
    if not (columns := case.fact("columns")):
        return hint_text("key")
    wanted = re.findall(r"'([^']*)'", case.message) or [case.message]
    if re.search(r"\.(?:loc|at)\[", case.source) and not _closest(wanted, columns):
        return hint_text("row")
    return _listing("column", wanted, columns)


def _file(case: _Case) -> str | None:
    if case.type != "FileNotFoundError":
        return None
    if not (files := case.fact("files")):
        return hint_text("file_none") if case.execution.error and "files" in _facts(case) else None
    wanted = [w.rsplit("/", 1)[-1] for w in re.findall(r"'([^']*)'", case.message)]
    return _listing("file", wanted, files)


def _name(case: _Case) -> str | None:
    found = re.search(r"name '([^']+)' is not defined", case.message)
    if case.type not in {"NameError", "UnboundLocalError"} or not found:
        return None
    name = found[1]
    names = ", ".join(dict.fromkeys(case.lost_names[-_MAX_NAMES:]))
    if name in _ALIASES or name in _MODULES:
        key = "import_lost" if name in case.lost_names else "name_import"
        return hint_text(key, statement=_ALIASES.get(name, f"import {name}"), names=names)
    if name in case.lost_names:
        return hint_text("name_lost", name=name, names=names)
    if close := _closest([name], case.fact("names")):
        return hint_text("name_closest", name=name, closest=close)
    return hint_text("name", name=name)


def _attribute(case: _Case) -> str | None:
    if case.type != "AttributeError":
        return None
    if "'NoneType' object" in case.message:
        return hint_text("attribute_none")
    found = re.search(r"has no attribute '([^']+)'", case.message)
    close = _closest([found[1]], case.fact("names")) if found else None
    return hint_text("attribute", closest=close) if close else None


def _unicode(case: _Case) -> str | None:
    if case.type != "UnicodeDecodeError":
        return None
    codec = case.message.split("'")[1] if "'" in case.message else "UTF-8"
    return hint_text("unicode", codec=codec)


def _memory_error(case: _Case) -> str | None:
    is_it = case.type == "MemoryError" or "Unable to allocate" in case.message
    return hint_text("memory_error", peak=case.peak) if is_it else None


def _syntax(case: _Case) -> str | None:
    is_shell = re.match(r"[!%$]|(?:pip3?|apt(?:-get)?|ls|cd|cat|curl|head|grep) ", case.source)
    return hint_text("shell_in_python") if case.type == "SyntaxError" and is_shell else None


def _data(case: _Case) -> str | None:
    rows = (
        (r"could not convert string to float|Unable to parse string", "not_numeric"),
        (
            r"agg function failed|Could not convert .* to numeric|unsupported operand",
            "numeric_only",
        ),
        (r"Error tokenizing data", "parser"),
        (r"must be (?:of )?the same (?:length|size)|Length of values", "lengths"),
        (r"inconsistent numbers of samples|could not be broadcast", "lengths"),
    )
    return next((hint_text(key) for pattern, key in rows if re.search(pattern, case.told)), None)


# ---- what the sandbox does not allow


def _stdin(case: _Case) -> str | None:
    asked = case.type == "EOFError" or re.search(r"EOF when reading a line|no tty", case.told)
    return hint_text("stdin") if asked else None


def _offline(case: _Case) -> str | None:
    return hint_text("network") if case.network == "none" and _NETWORK.search(case.told) else None


def _system(case: _Case) -> str | None:
    rows = (
        (r"Argument list too long", "arguments"),
        (r"No space left on device|Disk quota exceeded", "disk"),
        (r"Read-only file system", "read_only"),
        (r"Permission denied|Operation not permitted|PermissionError", "permission"),
    )
    if _PROCESSES.search(case.told):
        return hint_text("processes")
    return next((hint_text(key) for pattern, key in rows if re.search(pattern, case.told)), None)


def _command(case: _Case) -> str | None:
    if case.type or case.execution.exit_code != 127:  # noqa: PLR2004 - the shell's own code
        return None
    found = _COMMAND.search(case.execution.output)
    command = found[1] if found else "the command"
    if command in {"import", "print", "def", "from"}:
        return hint_text("command_python", command=command)
    if command in {"pip", "pip3", "conda", "apt", "apt-get", "apk"}:
        return hint_text("command_install", command=command)
    return hint_text("command", command=command)


def _found_nothing(case: _Case) -> str | None:
    silent = case.execution.exit_code == 1 and not case.execution.output.strip()
    is_search = re.search(r"\b(?:grep|rg|diff|pgrep|test|cmp|which)\b|\[", case.code)
    return hint_text("found_nothing") if silent and not case.type and is_search else None


# ---- nothing failed


def _crowded(case: _Case) -> str | None:
    return hint_text("processes") if _PROCESSES.search(case.execution.output[-4000:]) else None


def _show(case: _Case) -> str | None:
    pictured = any(file.mime.startswith("image/") for file in case.execution.files)
    return hint_text("show") if re.search(r"plt\.show\(", case.code) and not pictured else None


def _empty(case: _Case) -> str | None:
    done = case.execution
    if done.output or done.value is not None or done.files or done.exit_code is not None:
        return None
    try:
        body = ast.parse(case.code).body
    except (SyntaxError, ValueError):
        return None
    quiet = all(isinstance(statement, _NOTHING_SAID) for statement in body)
    return None if quiet else hint_text("empty")


_FAILED: tuple[Rule, ...] = (
    *(_ended, _module, _key, _file, _name, _attribute, _unicode, _memory_error, _syntax),
    *(_stdin, _offline, _command, _system, _data, _found_nothing, _killed),
)
_FINE: tuple[Rule, ...] = (_crowded, _show, _empty)


def _facts(case: _Case) -> Iterable[str]:
    return case.execution.error.facts if case.execution.error else ()


def _listing(key: str, wanted: list[str], names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MAX_NAMES]) + (" …" if len(names) > _MAX_NAMES else "")
    if close := _closest(wanted, names):
        return hint_text(f"{key}_closest", names=shown, closest=close)
    return hint_text(key, names=shown)


def _closest(wanted: list[str], names: tuple[str, ...]) -> str | None:
    """Return the names nearest to the wanted ones: by spelling without case, or by containment."""
    plain = {name.lower().strip(): name for name in reversed(names)}
    found: dict[str, None] = {}
    for want in wanted:
        low = want.lower().strip()
        near = difflib.get_close_matches(low, plain, n=1, cutoff=0.6)
        near += [name for name in plain if low and (low in name or (name and name in low))]
        found.update(dict.fromkeys(plain[name] for name in near[:2]))
    return ", ".join(found) or None
