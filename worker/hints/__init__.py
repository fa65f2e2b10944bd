"""Hints: what can be done about a failure, from rules over an `Execution`.

Each rule looks at one kind of failure and says a line or nothing; the first that speaks wins. How
a call ended comes first, then what names tell (`facts`), what libraries complain of (`mistakes`,
a table), and what the sandbox does not allow. Where a rule would guess, it says nothing. The words
are in `prompts/hints.toml` and `prompts/mistakes.toml`.
"""

from __future__ import annotations

import re
from typing import Any

from sandbox.types import Execution, Interpreter, Outcome
from worker.hints.case import Advice, Case, Rule
from worker.hints.facts import FACTS
from worker.hints.fine import FINE, quiet
from worker.hints.mistakes import mistake
from worker.hints.sandbox import SANDBOX, ended, expression

__all__ = ["Advice", "advise", "hint"]

_LINE_END = re.compile(r"\s*[\r\n]\s*")
_MOST_CHARS = 1000
_FAILED: tuple[Rule, ...] = (ended, mistake, *FACTS, *SANDBOX)


def advise(
    execution: Execution,
    code: str | None = None,
    *,
    lost_names: tuple[str, ...] = (),
    network: str = "none",
    is_for_person: bool = False,
) -> Advice | None:
    """What to do about `execution`, or None when there is nothing worth saying.

    `code` is what ran; `lost_names` are variables that earlier calls of the job have lost.
    A person, unlike a model, does not take it for a fault when a call that went well shows nothing,
    and gives more time by an option of the command line.
    """
    names = (*lost_names, *execution.lost_names)
    more_time = "--timeout" if is_for_person else "timeout_s"
    case = Case(execution, code or "", names, network, more_time)
    rules = FINE if execution.outcome is Outcome.OK else _FAILED
    if is_for_person:
        rules = tuple(rule for rule in rules if rule is not quiet)
    if execution.interpreter is Interpreter.NONE and execution.exit_code is None:
        rules = (expression,)
    said = next((text for rule in rules if (text := rule(case))), None)
    if said is None:
        return None
    advice = Advice(said) if isinstance(said, str) else said
    return advice._replace(text=_LINE_END.sub(" ", advice.text)[:_MOST_CHARS])


def hint(execution: Execution, code: str | None = None, **known: Any) -> str | None:  # noqa: ANN401
    """One line of advice, or None; see `advise`."""
    advice = advise(execution, code, **known)
    return advice and advice.said
