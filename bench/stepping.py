"""One step of a loop: a request to the local endpoint, and the trivial tool that it calls.

Runs also in the peers' environment, so it imports the standard library alone. The tool notes when
it is called: what lies between two calls is a step, with nothing of how a run begins or ends.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable

ENDPOINT = "BENCH_ENDPOINT"
GOAL = "Double the numbers."
ABOUT = "Double a number."  # what the tool is for


class Steps:
    """The tool of one run after the other, and when it was called."""

    def __init__(self) -> None:
        self._called: list[float] = []

    def double(self, number: int) -> str:
        self._called.append(time.perf_counter())
        return str(2 * number)

    def run(self, work: Callable[[str], object], steps: int) -> list[float]:
        """Let `work` run an agent with the model of that name; returns what each step took."""
        self._called.clear()
        work(f"{uuid.uuid4().hex[:8]}/{steps}")
        assert len(self._called) == steps, f"{len(self._called)} calls of {steps}"
        return [after - before for before, after in itertools.pairwise(self._called)]


def base_url() -> str:
    return os.environ[ENDPOINT]
