"""The memory of a sandbox that waits for its job with numpy, pandas and matplotlib imported.

Read from the host's /proc, so only as root, and where the engine's processes are this host's. Its
processes share pages, so what is private to each of them says little: what counts is dirty pages,
each divided by the processes that share it.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.serve import Samples, serve
from bench.spec import spec
from sandbox.engine import Engine
from sandbox.pool import Pool

SETTLE_S = 1.0  # after its libraries were loaded


class Spares:
    """Answers bytes of all processes of a spare that its pool has made ready."""

    def idle(self) -> Samples:
        with Pool() as pool:
            pool.expect(spec())
            while not pool.count()[1]:
                time.sleep(0.05)
            time.sleep(SETTLE_S)
            spare = pool.hand_out(spec())
            assert spare is not None
            try:
                return _memory(_processes(spare.container))
            finally:
                spare.link.close()
                pool.remove(spare.container)


def _processes(container: str) -> list[int]:
    """All processes of a container, by their numbers on this host."""
    engine = Engine()
    state = engine.state(container)
    engine.close()
    assert state is not None
    found = [int(state["Pid"])]
    for pid in found:  # grows while it is gone through
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def _memory(pids: list[int]) -> Samples:
    sizes = [_sizes(pid) for pid in pids]
    names = {"dirty": "Pss_Dirty", "resident": "Pss"}
    return {name: [sum(size[key] for size in sizes)] for name, key in names.items()}


def _sizes(pid: int) -> dict[str, float]:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    lines = (line.split() for line in rollup.splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) * 1024.0 for words in lines}


if __name__ == "__main__":
    serve(Spares(), "caisson")
