"""The parts of a run, by name. In each, contestants take turns round by round.

So a busy moment of the machine meets all of them. Each part is a function of the stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

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
CALLS = 400  # of a small crowd together
LATE = 0.8  # the part of a run over which memory is watched: what comes first is caches
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
    """Open, call, close: a sandbox, beside peers and what lies below it."""
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


def files(stage: Stage) -> None:
    """A large file in and out."""
    field = stage.enter(OURS, "bench.files")
    for number in range(stage.rounds):
        stage.tell(f"files, round {number + 1} of {stage.rounds}")
        for name, values in _ask_all(stage, field, "move", 100).items():
            stage.results.add(name, OURS, values)
    stage.leave(field)


def restarts(stage: Stage) -> None:
    """An interpreter that had to be killed, and the next call."""
    field = stage.enter(OURS, "bench.restarts")
    _ask_all(stage, field, "open")
    for number in range(stage.rounds):
        stage.tell(f"restarts, round {number + 1} of {stage.rounds}")
        found = _ask_all(stage, field, "restart")
        stage.results.add("restart", OURS, found.get("restart", ()))
    stage.leave(field)


def spares(stage: Stage) -> None:
    """What a sandbox takes that waits for its job."""
    field = stage.enter(OURS, "bench.spares")
    for number in range(_few(stage)):
        stage.tell(f"spares, round {number + 1}")
        found = _ask_all(stage, field, "idle")
        for name in ("dirty", "resident"):
            stage.results.add(name, OURS, found.get(name, ()))
    stage.leave(field)


def steps(stage: Stage) -> None:
    """A step of a loop: ours with each store, and others."""
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


def histories(stage: Stage) -> None:
    """What a step costs after many others."""
    field = stage.enter(OURS, "bench.histories")
    for _ in range(_few(stage)):
        for count in (10, 100) if stage.is_quick else (10, 100, 1000):
            stage.tell(f"histories of {count} steps")
            found = _ask_all(stage, field, "history", count)
            stage.results.add("late_step", f"{OURS}, {count} steps", found.get("step", ()))
            stage.results.add("load", f"{OURS}, {count} steps", found.get("load", ()))
    stage.leave(field)


def crowds(stage: Stage) -> None:
    """Many sandboxes at once."""
    field = stage.enter(OURS, "bench.crowds")
    _ask_all(stage, field, "crowd", 1, 1)  # what only the first one pays for
    rows = {"open_share": "crowd_open", "call_share": "crowd_call", "call": "crowd_wait"}
    for _ in range(_few(stage)):
        for count in (1, 2, 4) if stage.is_quick else (1, 2, 4, 8, 16, 32, 64):
            stage.tell(f"{count} sandboxes at once")
            found = _ask_all(stage, field, "crowd", count, max(20, CALLS // count))
            for name, row in rows.items():
                stage.results.add(row, f"{OURS}, {count}", found.get(name, ()))
    stage.leave(field)


def jobs(stage: Stage) -> None:
    """Jobs by a real worker, beside what the engine alone allows; and the worker's memory."""
    at_once, count, more = (4, 8, 0) if stage.is_quick else (8, 200, 800)
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
    if more:
        stage.tell(f"{more} jobs more, for the worker's memory (about {more / 3 / 60:.0f} minutes)")
        later = _ask_all(stage, field, "jobs", more)
        found = {name: [*found.get(name, ()), *values] for name, values in later.items()}
        if "done" in found:
            stage.results.add("slope", OURS, [growth(found["done"], found["memory"])])
    stage.results.add("worker", OURS, found.get("memory", [])[-1:])
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


def _few(stage: Stage) -> int:
    """Rounds of what is slow, or does not vary much."""
    return min(3, stage.rounds)


PARTS: dict[str, Callable[[Stage], None]] = {
    "sandboxes": sandboxes,
    "files": files,
    "restarts": restarts,
    "spares": spares,
    "steps": steps,
    "histories": histories,
    "crowds": crowds,
    "jobs": jobs,
}
