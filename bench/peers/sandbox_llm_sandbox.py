"""llm-sandbox: a container for each session, a file and an exec for each call.

With `pooled` its sessions take containers from a pool of its own, each of which is used once.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from llm_sandbox import SandboxSession
from llm_sandbox.pool import PoolConfig, PooledSandboxSession, create_pool_manager

from bench.serve import serve
from bench.setting import CODE, PANDAS, labels, peers_image


class LlmSandbox:
    """Nothing is installed at the start of a session: the image has it all."""

    def __init__(self) -> None:
        self._session: Any = None

    def open(self) -> None:
        self._session = SandboxSession(
            lang="python",
            image=peers_image(),
            skip_environment_setup=True,
            runtime_configs={"labels": labels()},
        )
        self._session.open()

    def call(self) -> None:
        assert self._session.run(CODE).stdout == "2\n"

    def pandas(self) -> None:
        assert self._session.run(PANDAS).stdout == "pandas\n"

    def close(self) -> None:
        self._session.close()


class Pooled(LlmSandbox):
    """Its pool holds one container that is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = create_pool_manager(
            backend="docker",
            config=PoolConfig(min_pool_size=1, max_pool_size=2, max_container_uses=1),
            lang="python",
            image=peers_image(),
            skip_environment_setup=True,
            runtime_configs={"labels": labels()},
        )

    def ready(self) -> None:
        """Wait until a container is; one that is taken is replaced when it comes back."""
        while self._session is None and not self._pool.get_stats()["state_counts"]["idle"]:
            time.sleep(0.05)

    def open(self) -> None:
        self._session = PooledSandboxSession(pool_manager=self._pool)
        self._session.open()

    def close(self) -> None:
        super().close()
        self._session = None

    def end(self) -> None:
        """Remove the container that the pool holds."""
        self._pool.close()


if __name__ == "__main__":
    serve(Pooled() if "pooled" in sys.argv else LlmSandbox(), "llm-sandbox")
