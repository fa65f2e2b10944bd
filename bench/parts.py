"""The parts of a run, by name. In each, contestants take turns round by round.

So a busy moment of the machine meets all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.contest import Contestant
from bench.stage import OURS, Stage

COLD, WARM = f"{OURS}, started cold", f"{OURS}, from its pool"
ENGINE, PIPED, FLOOR = "Docker alone", "a container's own pipes", "a bare process"
CLIENT = "openai client alone"
POOLED_PEER = "llm-sandbox, from its pool"
STORES = {
    "memory": f"{OURS}, memory",
    "sqlite": f"{OURS}, SQLite",
    "postgres": f"{OURS}, PostgreSQL",
}
LATE = 0.3  # the part of a run over which memory is watched: what comes first is caches
FEW = 3  # processes for jobs while it is watched: each has caches of its own, full after 200 jobs
UNFIT = {(PIPED, "open"), (PIPED, "close")}  # a process that only answers is no sandbox

# What a contestant does in a round, as far as it can: how many times, within how many seconds.
SESSION = {
    "fork": (50, 0.2),
    "open": (1, 0.0),
    "pandas": (1, 0.0),
    "call": (50, 1.0),
    "shell": (10, 0.5),
    "close": (1, 0.0),
}
NAMES = {"fork": "open"}  # acts that are measured in another row than their own


def sandboxes(stage: Stage) -> None:
    field = [
        *stage.enter(FLOOR, "bench.floor"),
        *stage.enter(PIPED, "bench.engine", "piped"),
        *stage.enter(ENGINE, "bench.engine"),
        *stage.enter(COLD, "bench.sandboxes"),
        *stage.enter(WARM, "bench.sandboxes", "warm"),
        *stage.enter_peer("llm-sandbox", "sandbox_llm_sandbox"),
        *stage.enter_peer(POOLED_PEER, "sandbox_llm_sandbox", "pooled"),
        *stage.enter_peer("autogen-ext", "sandbox_autogen"),
        *stage.enter_peer("smolagents", "sandbox_smolagents"),
    ]
    for number in range(stage.rounds):
        for contestant in field:
            stage.tell(f"sandboxes, round {number + 1} of {stage.rounds}: {contestant.name}")
            _session(stage, contestant)
    stage.leave(field)


def _session(stage: Stage, contestant: Contestant) -> None:
    _wait_for_pool(stage, contestant)
    for act, (times, within_s) in SESSION.items():
        if act in contestant.acts:
            found = stage.ask(contestant, act, times=times, within_s=within_s)
            if (contestant.name, act) not in UNFIT:
                stage.results.add(NAMES.get(act, act), contestant.name, found.get(act, ()))
        if act in {"open", "close"}:  # calls, and the next one, are not to meet what a pool does
            _wait_for_pool(stage, contestant)


def _wait_for_pool(stage: Stage, contestant: Contestant) -> None:
    if "ready" in contestant.acts:
        stage.ask(contestant, "ready")


def steps(stage: Stage) -> None:
    count = 10 if stage.is_quick else 20
    field = [
        *stage.enter(CLIENT, "bench.steps", "client"),
        *(each for kind, who in STORES.items() for each in stage.enter(who, "bench.steps", kind)),
        *stage.enter_peer("smolagents", "loop_smolagents"),
        *stage.enter_peer("openai-agents", "loop_openai_agents"),
        *stage.enter_peer("pydantic-ai", "loop_pydantic_ai"),
        *stage.enter_peer("langgraph", "loop_langgraph"),
    ]
    for contestant in field:  # connections and caches, which no step should have to make
        stage.tell(f"steps: {contestant.name}")
        stage.ask(contestant, "steps", 3)
    for number in range(stage.rounds):
        for contestant in field:
            stage.tell(f"steps, round {number + 1} of {stage.rounds}: {contestant.name}")
            for act, row in {"steps": "step", "alone": "alone"}.items():
                if act in contestant.acts:
                    found = stage.ask(contestant, act, count)
                    stage.results.add(row, contestant.name, found.get(act, ()))
    stage.leave(field)


def jobs(stage: Stage) -> None:
    at_once, count, many = (4, 8, 0) if stage.is_quick else (8, 200, 1000)
    field = stage.enter(OURS, "bench.jobs")
    stage.tell("a worker is started")
    _ask_all(stage, field, "work", at_once)
    for part in ("before", "after"):  # so that neither alone meets a busy moment
        stage.tell(f"containers of Docker alone, {part}")
        rate = _ask_all(stage, field, "containers", count // 2, at_once).get("rate", ())
        stage.results.add("jobs", ENGINE, rate)
        if part == "before":
            stage.tell(f"{count} jobs (at three a second: {count / 3:.0f} s)")
            found = _ask_all(stage, field, "jobs", count)
            stage.results.add("jobs", OURS, found.get("rate", ()))
    stage.results.add("worker", OURS, found.get("memory", [])[-1:])
    if many:
        stage.tell(f"{many} jobs, for a worker's memory (about {many / 3 / 60:.0f} minutes)")
        _ask_all(stage, field, "work", FEW)
        found = _ask_all(stage, field, "jobs", many)
        if "done" in found:
            stage.results.add("slope", OURS, [growth(found["done"], found["memory"])])
    stage.leave(field)


def growth(done: Sequence[float], memory: Sequence[float]) -> float:
    """Bytes that each job adds, over the later part of a run."""
    first = round(len(done) * (1 - LATE))
    return statistics.linear_regression(done[first:], memory[first:]).slope


def _ask_all(
    stage: Stage, field: Sequence[Contestant], act: str, *arguments: object
) -> dict[str, list[float]]:
    """Ask the one contestant of a part, if it came."""
    for contestant in field:
        return stage.ask(contestant, act, *arguments)
    return {}


class Part(NamedTuple):
    """What is measured, in a few words, and what measures it."""

    about: str
    run: Callable[[Stage], None]


def alone(  # noqa: PLR0913 - a line of the table below
    module: str,
    act: str,
    rows: Mapping[str, str],
    *,
    first: Sequence[object] = (),
    sizes: Sequence[int] = (),
    quick: int = 0,
    unit: str = "",
    most: int | None = 3,
) -> Callable[[Stage], None]:
    """Let one contestant of ours do one thing, round by round.

    Args:
        module: Who does it.
        act: What it does.
        rows: What it answers, and in which row that belongs.
        first: An act, and what it is told, that comes before all rounds.
        sizes: What the act is told, one after the other; each is a line in its rows.
        quick: How many of the sizes a quick run has.
        unit: Of the sizes.
        most: Rounds, of what is slow or does not vary much.
    """

    def run(stage: Stage) -> None:
        field = stage.enter(OURS, module)
        if first:
            _ask_all(stage, field, *first)
        lines = {f"{OURS}, {size}{unit}": (size,) for size in sizes} or {OURS: ()}
        for number in range(min(most or stage.rounds, stage.rounds)):
            for who, told in list(lines.items())[: (stage.is_quick and quick) or None]:
                stage.tell(f"{act}, round {number + 1} of {stage.rounds}: {who}")
                found = _ask_all(stage, field, act, *told)
                for name, row in rows.items():
                    stage.results.add(row, who, found.get(name, ()))
        stage.leave(field)

    return run


PARTS = {
    "sandboxes": Part("open, call, close: a sandbox, beside peers and what lies below", sandboxes),
    "files": Part(
        "a large file in and out",
        alone("bench.files", "move", {"write": "write", "read": "read"}, most=None),
    ),
    "restarts": Part(
        "an interpreter that had to be killed, and the next call",
        alone("bench.restarts", "restart", {"restart": "restart"}, first=["open"], most=None),
    ),
    "spares": Part(
        "what a sandbox takes that waits for its job",
        alone("bench.spares", "idle", {"dirty": "dirty", "resident": "resident"}),
    ),
    "steps": Part("a step of a loop: ours with each store, and others", steps),
    "histories": Part(
        "what a step costs after many others",
        alone(
            "bench.histories",
            "history",
            {"step": "late_step", "load": "load"},
            sizes=(10, 100, 1000),
            quick=2,
            unit=" steps",
        ),
    ),
    "crowds": Part(
        "many sandboxes at once",
        alone(
            "bench.crowds",
            "crowd",
            {
                "opening": "crowd_open",
                "calling": "crowd_call",
                "waiting": "crowd_wait",
                "beside": "crowd_beside",
            },
            first=["crowd", 1],  # what only the first one pays for
            sizes=(1, 2, 4, 8, 16, 32, 64),
            quick=3,
        ),
    ),
    "jobs": Part("jobs by a real worker, and its memory; what the engine alone allows", jobs),
}
