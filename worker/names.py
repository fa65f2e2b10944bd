"""Which known tool is meant by a name that is not quite its own: the one rule for it.

Taken are what can hardly mean anything else: control tokens that leak behind a name, what stands
before it where tools live in a namespace, another way of writing it, and the names under which
the same tool is widely known. All other names are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_TAIL = re.compile(r"<\|.*|\s.*", re.DOTALL)
_SPACE = re.compile(r"\A(?:functions?|tools?|default_api)[.:/]")
_KNOWN_AS = {
    **dict.fromkeys(
        (
            *("python", "python3", "py", "ipython", "pythonrepl", "pythonreplast", "pythontool"),
            *("runpython", "executepython", "codeinterpreter", "runcode", "executecode"),
        ),
        "python_interpreter",
    ),
    **dict.fromkeys(
        ("bash", "sh", "terminal", "runshell", "runbash", "runcommand", "executecommand"), "shell"
    ),
    "calculator": "calculate",
}
# A call of one of these gives the answer, where no tool of that name is offered.
_ANSWERS = {
    *("finalanswer", "answer", "submitanswer", "giveanswer", "finish", "submit", "final"),
    *("attemptcompletion", "taskcomplete"),
}


def bare(name: str) -> str:
    """A name without what has leaked onto it."""
    return _SPACE.sub("", _TAIL.sub("", name.strip()))


def known_name(name: str, known: Collection[str]) -> str | None:
    """The one of the known names that is meant, or None."""
    for said in (name, bare(name)):
        if said in known:
            return said
    folded = _folded(bare(name))
    alike = [one for one in known if _folded(one) == folded]
    if len(alike) == 1 and folded:
        return alike[0]
    usual = _KNOWN_AS.get(folded)
    return usual if usual in known else None


def is_answer(name: str, known: Collection[str]) -> bool:
    """Whether a call of that name gives the answer, and is for no tool."""
    return known_name(name, known) is None and _folded(bare(name)) in _ANSWERS


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
