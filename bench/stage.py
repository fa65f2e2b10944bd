"""Where contestants take turns: who is there, what each was measured to do, and who failed why."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.contest import Contestant, Failed
from bench.figures import p95
from bench.serve import Samples

PEERS_PYTHON = "build/peers/bin/python"
PEERS = "caisson-peers:latest"
OURS = "Caisson"
NOTICE_S = 1.0


class Row(NamedTuple):
    """What is measured: its title, the unit it is told in, and how many of those one is."""

    title: str
    unit: str = "ms"
    scale: float = 1000.0


ROWS = {
    "open": Row("open a sandbox"),
    "pandas": Row("first `import pandas` in a call"),
    "call": Row("trivial Python call"),
    "shell": Row("shell call `true`"),
    "close": Row("close, as the caller waits for it"),
    "restart": Row("first call after a killed interpreter, with pandas"),
    "write": Row("file of 100 MB into a sandbox", "MB/s", 1.0),
    "read": Row("file of 100 MB out of a sandbox", "MB/s", 1.0),
    "dirty": Row("memory of an idle spare, dirty pages", "MiB", 2.0**-20),
    "resident": Row("memory of an idle spare, its share of all pages", "MiB", 2.0**-20),
    "step": Row("step of a loop: request, reply, tool"),
    "alone": Row("step of a loop without model and tool"),
    "late_step": Row("step after so many others"),
    "load": Row("take up a job of so many steps"),
    "crowd_open": Row("open so many sandboxes at once, time for each"),
    "crowd_call": Row("call in so many sandboxes at once, time for each"),
    "crowd_wait": Row("call in so many sandboxes at once, as its caller waits"),
    "crowd_beside": Row("call in one of so many sandboxes, all others idle"),
    "jobs": Row("jobs of 5 calls, 8 at a time", "jobs/s", 1.0),
    "slope": Row("a worker's memory, growth with each job", "KiB", 2.0**-10),
    "worker": Row("a worker's memory, with 8 processes for jobs", "MiB", 2.0**-20),
}


@dataclass
class Results:
    """Samples by row and contestant, in the units they were taken in (seconds, bytes, rates)."""

    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, who: str, values: Sequence[float]) -> None:
        """Add samples; none if whoever was asked has failed."""
        if values:
            self.samples.setdefault((row, who), []).extend(values)

    def median(self, row: str, who: str) -> float | None:
        """In the row's unit."""
        values = self.samples.get((row, who))
        return statistics.median(values) * ROWS[row].scale if values else None

    def least(self, row: str, who: str) -> float | None:
        """In the row's unit."""
        values = self.samples.get((row, who))
        return min(values) * ROWS[row].scale if values else None

    def table(self) -> list[dict[str, object]]:
        """A line for each row and contestant, in the order of `ROWS`."""
        order = list(ROWS)
        lines = sorted(self.samples.items(), key=lambda item: order.index(item[0][0]))
        return [self._line(row, who, values) for (row, who), values in lines]

    def _line(self, row: str, who: str, values: list[float]) -> dict[str, object]:
        title, unit, scale = ROWS[row]
        found = {"median": statistics.median(values), "p95": p95(values), "least": min(values)}
        told = {name: float(f"{value * scale:.4g}") for name, value in found.items()}
        return {"row": row, "title": title, "unit": unit, "who": who, "n": len(values), **told}


class Stage:
    """The contestants of a run; whoever is still on it leaves with `close`."""

    def __init__(self, rounds: int, *, is_quick: bool, has_peers: bool) -> None:
        self.rounds = rounds
        self.is_quick = is_quick
        self.has_peers = has_peers
        self.results = Results()
        self.environment: dict[str, str] = {}
        self._here: list[Contestant] = []
        self._told_at = time.monotonic()
        self._is_interrupted = False

    def interrupt(self, *_of_signal: object) -> None:
        """End the run, for SIGINT: now, or where Python drops the exception with the next word."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def enter(self, who: str, module: str, *options: str) -> list[Contestant]:
        """Let a contestant of ours come; none if it cannot."""
        return self._admit(Contestant(who, module, *options, environment=self.environment))

    def enter_peer(self, who: str, module: str, *options: str) -> list[Contestant]:
        """Let one of the peers come, in their own environment."""
        if not self.has_peers:
            return []
        module, environment = f"bench.peers.{module}", self.environment
        return self._admit(
            Contestant(who, module, *options, python=PEERS_PYTHON, environment=environment)
        )

    def leave(self, contestants: Iterable[Contestant]) -> None:
        for contestant in list(contestants):
            if contestant in self._here:
                self._here.remove(contestant)
                contestant.close()

    def ask(
        self,
        contestant: Contestant,
        act: str,
        *arguments: object,
        times: int = 1,
        within_s: float = 1.0,
    ) -> Samples:
        """Let a contestant do something; one that fails is out, and all that it was asked is {}."""
        if contestant not in self._here:
            return {}
        try:
            return contestant.ask(act, *arguments, times=times, within_s=within_s)
        except Failed as failure:
            self._miss(contestant, failure)
            return {}

    def tell(self, text: str) -> None:
        """Say on stderr what goes on, when nothing was said for a while."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        if time.monotonic() - self._told_at > NOTICE_S:
            print(f"bench: {text} …", file=sys.stderr, flush=True)
            self._told_at = time.monotonic()

    def close(self, patience_s: float = 30.0) -> None:
        while self._here:
            self._here.pop().close(patience_s)

    def _admit(self, contestant: Contestant) -> list[Contestant]:
        self._here.append(contestant)
        try:
            contestant.start()
        except Failed as failure:
            self._miss(contestant, failure)
            return []
        self.results.versions[contestant.name] = contestant.version
        return [contestant]

    def _miss(self, contestant: Contestant, failure: Failed) -> None:
        self.results.missing[contestant.name] = str(failure)
        print(f"bench: {contestant.name} is out: {failure}", file=sys.stderr, flush=True)
        self._here.remove(contestant)
        contestant.close()
