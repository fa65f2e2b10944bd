"""smolagents' DockerExecutor: a container with a kernel gateway, and a web socket for each call."""

from __future__ import annotations

import socket

from smolagents import DockerExecutor
from smolagents.monitoring import AgentLogger, LogLevel

from bench.serve import serve
from bench.setting import CODE, PANDAS, labels, peers_image


class Smolagents:
    """The image has its kernel gateway: it builds none."""

    def __init__(self) -> None:
        self._executor: DockerExecutor | None = None

    def open(self) -> None:
        self._executor = DockerExecutor(
            [],
            AgentLogger(level=LogLevel.OFF),
            port=_free_port(),
            image_name=peers_image(),
            build_new_image=False,
            container_run_kwargs={"labels": labels()},
        )

    def call(self) -> None:
        assert self._run(CODE) == "2"

    def pandas(self) -> None:
        assert self._run(PANDAS) == "pandas"

    def close(self) -> None:
        assert self._executor is not None
        self._executor.cleanup()

    def _run(self, code: str) -> str:
        assert self._executor is not None
        return str(self._executor(code).logs).strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve(Smolagents(), "smolagents")
