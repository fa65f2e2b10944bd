"""What a step costs when many came before it, and what it takes to take up a job so long."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.serve import Samples, serve
from bench.stepping import Steps
from bench.steps import Named, drive
from bench.stores import opened
from worker.history import History

LAST = 10  # steps at the end of a history that are counted
TEXT = "what the tool found\n" * 50  # so that a window of usual size is full after 100 steps
LOADS = 3


class Histories:
    """Our loop over SQLite, without a model."""

    def __init__(self) -> None:
        self._steps, self._stack = Steps(), ExitStack()
        self._store, _ = self._stack.enter_context(opened("sqlite"))

    def history(self, count: int) -> Samples:
        """Work on a job of so many steps."""
        ids = []

        def work(name: str) -> None:
            ids.append(drive(self._store, Named(name, count), self._act, count))

        taken = self._steps.run(work, count)
        return {"step": taken[-LAST:], "load": [self._load_s(ids[0]) for _ in range(LOADS)]}

    def end(self) -> None:
        self._stack.close()

    def _act(self, number: int) -> str:
        return f"{self._steps.double(number)}\n{TEXT}"

    def _load_s(self, job_id: str) -> float:
        started = time.perf_counter()
        assert History(*self._store.load(job_id)).job.answer == "42"
        return time.perf_counter() - started


if __name__ == "__main__":
    serve(Histories(), "caisson")
