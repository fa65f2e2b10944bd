"""Many sandboxes at once, each in a thread of its own: what opening and calling costs each."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.serve import Samples, serve
from bench.setting import CODE, spec
from sandbox.docker import DockerSandbox


class Crowds:
    """Everything is done by all of them at once.

    Answers seconds: `open` and `call` are what one of them waits; `open_share` and `call_share` are
    what passes for all, divided by their number, so that they stay where they are as long as
    nothing grows faster than the crowd.
    """

    def crowd(self, count: int, calls: int) -> Samples:
        sandboxes: list[DockerSandbox] = []
        with ThreadPoolExecutor(count) as threads:

            def at_once(act: Callable[[int], float]) -> tuple[list[float], float]:
                started = time.perf_counter()
                taken = list(threads.map(act, range(count)))
                return taken, (time.perf_counter() - started) / count

            def call(number: int) -> float:
                started = time.perf_counter()
                for _ in range(calls):
                    assert sandboxes[number].python(CODE).output == "2\n"
                return (time.perf_counter() - started) / calls

            try:
                opened, open_share = at_once(lambda _: _open(sandboxes))
                at_once(call)  # the interpreters are there after this
                called, call_share = at_once(call)
            finally:
                list(threads.map(DockerSandbox.close, sandboxes))
        return {
            "open": opened,
            "open_share": [open_share],
            "call": called,
            "call_share": [call_share / calls],
        }


def _open(into: list[DockerSandbox]) -> float:
    started = time.perf_counter()
    into.append(DockerSandbox.start(spec()))
    return time.perf_counter() - started


if __name__ == "__main__":
    serve(Crowds(), "caisson")
