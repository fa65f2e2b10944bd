"""A new interpreter after a call that had to be killed, with pandas at hand again."""

from __future__ import annotations

import time

from bench.serve import Samples, serve
from bench.setting import PANDAS
from bench.spec import spec
from sandbox.docker import DockerSandbox
from sandbox.pool import LIBRARIES
from sandbox.types import Interpreter, Outcome

# Does not heed the interrupt that comes first.
STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
TIMEOUT_S = 0.1


class Restarts:
    """One preloaded sandbox, whose interpreter is lost again and again."""

    def __init__(self) -> None:
        self._sandbox: DockerSandbox | None = None

    def open(self) -> None:
        self._sandbox = DockerSandbox.start(spec(preload=LIBRARIES))
        self._sandbox.python(PANDAS)

    def restart(self) -> Samples:
        """Seconds of the call after the one that was killed."""
        assert self._sandbox is not None
        lost = self._sandbox.python(STUBBORN, timeout_s=TIMEOUT_S)
        assert lost.outcome is Outcome.TIMEOUT, lost
        assert lost.interpreter is Interpreter.RESTARTED, lost
        started = time.perf_counter()
        assert self._sandbox.python(PANDAS).output == "pandas\n"
        return {"restart": [time.perf_counter() - started]}

    def close(self) -> None:
        assert self._sandbox is not None
        self._sandbox.close()


if __name__ == "__main__":
    serve(Restarts(), "caisson")
