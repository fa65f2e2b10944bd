"""autogen-ext's DockerCommandLineCodeExecutor: a container; a file and an exec for a call."""

from __future__ import annotations

import asyncio

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

from bench.serve import serve
from bench.setting import CODE, PANDAS, container_name, peers_image


class Autogen:
    """All of its calls on one event loop, which it wants."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._executor: DockerCommandLineCodeExecutor | None = None

    def open(self) -> None:
        self._executor = DockerCommandLineCodeExecutor(
            image=peers_image(), container_name=container_name()
        )
        self._loop.run_until_complete(self._executor.start())

    def call(self) -> None:
        assert self._run("python", CODE) == "2\n"

    def pandas(self) -> None:
        assert self._run("python", PANDAS) == "pandas\n"

    def shell(self) -> None:
        assert not self._run("bash", "true")

    def close(self) -> None:
        assert self._executor is not None
        self._loop.run_until_complete(self._executor.stop())

    def _run(self, language: str, code: str) -> str:
        assert self._executor is not None
        blocks = [CodeBlock(code=code, language=language)]
        running = self._executor.execute_code_blocks(blocks, CancellationToken())
        return str(self._loop.run_until_complete(running).output)


if __name__ == "__main__":
    serve(Autogen(), "autogen-ext")
