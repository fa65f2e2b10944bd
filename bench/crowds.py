"""Many sandboxes at once, each in a thread of its own: what opening and calling costs each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bench.serve import Samples, serve
from bench.setting import CODE
from bench.spec import spec
from sandbox.docker import DockerSandbox

T = TypeVar("T")

CALLS = 400  # of a small crowd together
LEAST = 20  # of each, however many there are


class Crowds:
    """Answers seconds.

    `opening` and `calling` are what passes while all do it at once, divided by their number: they
    stay where they are as long as nothing grows faster than the crowd. `waiting` is what each of
    these calls takes its caller. `beside` is a call in one of them while all others are idle.
    """

    def crowd(self, count: int) -> Samples:
        calls, sandboxes = max(LEAST, CALLS // count), list[DockerSandbox]()

        def start(_number: int) -> None:
            sandboxes.append(DockerSandbox.start(spec()))

        def call(number: int) -> list[float]:
            return [_call_s(sandboxes[number]) for _ in range(calls)]

        with ThreadPoolExecutor(count) as threads:

            def at_once(act: Callable[[int], T]) -> tuple[list[T], float]:
                started = time.perf_counter()
                done = list(threads.map(act, range(count)))
                return done, (time.perf_counter() - started) / count

            try:
                _, opening = at_once(start)
                at_once(call)  # the interpreters are there after this
                called, calling = at_once(call)
                beside = call(0)
            finally:
                list(threads.map(DockerSandbox.close, sandboxes))
        return {
            "opening": [opening],
            "calling": [calling / calls],
            "waiting": [statistics.median(each) for each in called],
            "beside": [statistics.median(beside)],
        }


def _call_s(sandbox: DockerSandbox) -> float:
    started = time.perf_counter()
    assert sandbox.python(CODE).output == "2\n"
    return time.perf_counter() - started


if __name__ == "__main__":
    serve(Crowds(), "caisson")
