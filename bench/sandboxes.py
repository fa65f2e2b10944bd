"""Our sandbox, as a job has it: opened cold, or with `warm` taken from a pool."""

from __future__ import annotations

import sys
import time

from bench.serve import serve
from bench.setting import CODE, PANDAS
from bench.spec import spec
from sandbox.base import Sandbox
from sandbox.docker import DockerSandbox
from sandbox.pool import Pool
from sandbox.stock import LEAST


class Cold:
    """A sandbox that is started when it is wanted, with nothing but the image there before."""

    def __init__(self) -> None:
        self._spec = spec()
        self._sandbox: Sandbox | None = None

    def open(self) -> None:
        self._sandbox = DockerSandbox.start(self._spec)

    def call(self) -> None:
        assert self._opened.python(CODE).output == "2\n"

    def pandas(self) -> None:
        assert self._opened.python(PANDAS).output == "pandas\n"

    def shell(self) -> None:
        assert self._opened.shell("true").exit_code == 0

    def close(self) -> None:
        self._opened.close()

    @property
    def _opened(self) -> Sandbox:
        assert self._sandbox is not None
        return self._sandbox


class Warm(Cold):
    """A sandbox that a pool has made before it is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = Pool()
        self._pool.expect(self._spec)
        self._pool.open()

    def ready(self) -> None:
        """Wait until the pool has nothing more to do."""
        while self._pool.count()[1] < LEAST:
            time.sleep(0.05)

    def open(self) -> None:
        self._sandbox = self._pool.take(self._spec)
        assert self._sandbox is not None

    def end(self) -> None:
        self._pool.close()


if __name__ == "__main__":
    serve(Warm() if "warm" in sys.argv else Cold(), "caisson")
