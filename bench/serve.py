"""The inner half of a contestant: do what stdin says, and answer how long each time took.

Runs also in the peers' environment, so it imports the standard library alone. A contestant is an
object; what it can do are its public methods. One that returns nothing is timed; one that returns
numbers has measured by itself: a list, or a dict of lists by name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib.metadata import version
from typing import Any

Samples = dict[str, list[float]]


def serve(contestant: object, distribution: str) -> None:
    """Serve until stdin ends; then `close` what is open, and `end` what the contestant holds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this one decides
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    acts = [name for name in dir(contestant) if not name.startswith("_")]
    say({"acts": acts, "version": f"{distribution} {version(distribution)}"})
    is_open = False
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            say({"samples": repeat(contestant, **asked)})
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its result
            say({"error": _in_a_line(error)})
        is_open = {"open": True, "close": False}.get(asked["act"], is_open)
    for name in (*["close"] * is_open, *{"end"}.intersection(acts)):
        getattr(contestant, name)()


def repeat(
    contestant: object, act: str, arguments: list[Any], times: int, within_s: float
) -> Samples:
    """Do it up to so many times, until so much time has passed."""
    method, samples = getattr(contestant, act), Samples()
    until = time.perf_counter() + within_s
    for _ in range(times):
        started = time.perf_counter()
        found = method(*arguments)
        ended = time.perf_counter()
        if found is None:
            found = [ended - started]
        for name, values in (found if isinstance(found, dict) else {act: found}).items():
            samples.setdefault(name, []).extend(values)
        if ended > until:
            break
    return samples


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
