"""What went wrong in user code: type, message, the failing line, and facts for a hint."""

from __future__ import annotations

import linecache
import os
import re
import types
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_TEXT = 4000
MAX_LINE = 400
MAX_FRAMES = 12
MAX_FACTS = 60
MAX_FACT = 80
MAX_CAUSES = 3
WORD = re.compile(r"[^\W\d]\w*")
_ASSIGNED = re.compile(r"^\s*\w+\s*=(?!=)")
SYNTAX_ERRORS = (SyntaxError, IndentationError, TabError)

Step = tuple[types.FrameType, int]


def describe(
    error: BaseException, call: str, namespace: dict[str, Any], workspace: str
) -> dict[str, Any]:
    """Describe an exception as plain data; never raises, whatever user code has overridden."""
    steps = [step for step in _walk(error) if _is_users(step[0], call, workspace)]
    line, source = _where(error, steps, call)
    frames = [_frame_text(step, call) for step in steps[-MAX_FRAMES:]]
    return {
        "type": _type_name(error),
        "message": _message(error),
        "line": line,
        "source": source,
        "frames": frames + _causes(error, call, workspace),
        "facts": _safe_facts(error, steps, namespace, workspace),
    }


def bare(kind: str, message: str) -> dict[str, Any]:
    """An error of which no more than this is known."""
    return {
        "type": kind,
        "message": message,
        "line": None,
        "source": None,
        "frames": [],
        "facts": {},
    }


def _walk(error: BaseException) -> Iterator[Step]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_users(frame: types.FrameType, call: str, workspace: str) -> bool:
    name = frame.f_code.co_filename
    return name == call or name.startswith(("<call ", workspace + os.sep))


def _where(error: BaseException, steps: list[Step], call: str) -> tuple[int | None, str | None]:
    """The line of the *call* that failed: the model can change that, not a library's."""
    is_pythons_own = type(error) in SYNTAX_ERRORS  # a user's own class may say anything
    if is_pythons_own and isinstance(error, SyntaxError) and error.filename == call:
        return error.lineno, (error.text or "").strip()[:MAX_LINE]
    own = [line for frame, line in steps if frame.f_code.co_filename == call]
    if not own:
        return None, None
    return own[-1], linecache.getline(call, own[-1]).strip()[:MAX_LINE]


def _frame_text(step: Step, call: str) -> str:
    frame, line = step
    name = frame.f_code.co_filename
    place = "" if name == call else f"{os.path.basename(name)}, "
    function = frame.f_code.co_name
    inside = "" if function == "<module>" else f", in {function}"
    source = linecache.getline(name, line).strip()[:MAX_LINE]
    return f"{place}line {line}{inside}: {source}"


def _causes(error: BaseException, call: str, workspace: str) -> list[str]:
    found: list[str] = []
    seen = {id(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and id(cause) not in seen and len(found) < MAX_CAUSES:
        seen.add(id(cause))
        steps = [step for step in _walk(cause) if _is_users(step[0], call, workspace)]
        if steps:  # an exception that a library handled inside is no news
            found.append(f"after {_type_name(cause)}: {_message(cause)[:MAX_LINE]}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return found


def _type_name(error: BaseException) -> str:
    return str(type(error).__name__)[:MAX_FACT]


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, SyntaxError):
            return str(error.msg)[:MAX_TEXT]
        text = str(error)
    except Exception as broken:
        return f"(its message cannot be shown: {type(broken).__name__})"
    if len(text) > MAX_TEXT:
        return text[: MAX_TEXT // 2] + " … " + text[-MAX_TEXT // 2 :]
    return text


def _safe_facts(
    error: BaseException, steps: list[Step], namespace: dict[str, Any], workspace: str
) -> dict[str, list[str]]:
    try:
        return {
            key: [str(value)[:MAX_FACT] for value in values[:MAX_FACTS]]
            for key, values in _facts(error, steps, namespace, workspace).items()
        }
    except Exception:
        return {}


def _facts(
    error: BaseException, steps: list[Step], namespace: dict[str, Any], workspace: str
) -> dict[str, list[Any]]:
    if isinstance(error, ModuleNotFoundError):
        return {"module": [error.name or ""]}
    if isinstance(error, KeyError):
        return _frame_facts(error, steps)
    if isinstance(error, FileNotFoundError):
        return {"files": sorted(os.listdir(workspace)), "folder": [os.getcwd()]}
    if isinstance(error, NameError):
        names = [name for name in namespace if not name.startswith("_")]
        return _named(error, names)
    if isinstance(error, AttributeError):
        owner = getattr(error, "obj", None)
        public = [name for name in dir(owner) if not name.startswith("_")]
        names = public if owner is not None else []
        return _named(error, names)
    return {}


def _named(error: NameError | AttributeError, names: list[str]) -> dict[str, list[Any]]:
    """What was asked for and what there is, the closest first: of the rest not all is told."""
    wanted = getattr(error, "name", None)  # since Python 3.10
    if not isinstance(wanted, str):
        return {"names": names, "name": [""]}
    import difflib  # noqa: PLC0415 - slow to import, and not needed to start

    close = difflib.get_close_matches(wanted, names, n=5)
    return {"names": close + [name for name in names if name not in close], "name": [wanted]}


def _frame_facts(error: KeyError, steps: list[Step]) -> dict[str, list[Any]]:
    """The keys at hand: columns of the first table (or keys of the dict) on the failing line.

    The name that the line was to set has an older value, if any.
    """
    missing = [str(error.args[0])] if error.args else []
    frame, line = steps[-1] if steps else (None, 0)
    if frame is None:
        return {}
    names = {**frame.f_globals, **frame.f_locals}
    text = linecache.getline(frame.f_code.co_filename, line)
    for name in WORD.findall(_ASSIGNED.sub("", text)):
        keys = _keys(names.get(name))
        if keys is not None:
            return {"frame": [name], "columns": list(keys), "key": missing}
    return {"key": missing}


def _keys(value: Any) -> Any:
    """Columns of a table, or of the table that is grouped; keys of a dict; else None."""
    if isinstance(value, dict):
        return value
    grouped = getattr(value, "obj", None) if type(value).__name__.endswith("GroupBy") else None
    return getattr(value if grouped is None else grouped, "columns", None)
