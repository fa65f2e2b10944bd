"""The engine alone: containers by Docker's own API, with as little of ours as possible.

As a contestant: create and start, `docker exec` of a Python for each call, remove. The container
has the same options as a sandbox, or with `piped` a Python that answers on its attached stdin.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from typing import Any

import docker

from bench.floor import ANSWERING, round_trip
from bench.serve import serve
from bench.setting import CODE, PANDAS, STORE_LABEL
from bench.spec import spec
from sandbox.engine import DEFAULT_URL
from sandbox.hardening import SANDBOX_UIDS, container_options
from sandbox.types import SandboxSpec

IDLE = ["python3", "-I", "-c", "import time; time.sleep(3600)"]


class Raw:
    """Docker's own API."""

    def __init__(self, spec: SandboxSpec) -> None:
        self._spec = spec
        url = os.environ.get("DOCKER_HOST", DEFAULT_URL)
        self._client: Any = docker.APIClient(base_url=url, version="auto", timeout=60)

    def hardened(self, command: list[str] = IDLE) -> dict[str, object]:
        """The options of a sandbox, for another command."""
        deadline = time.time() + self._spec.limits.max_life_s
        uid = SANDBOX_UIDS[0]
        return container_options(self._spec, command=command, deadline=deadline, uid=uid)

    def create(self, body: dict[str, object]) -> str:
        name = f"caisson-{self._spec.job}-{uuid.uuid4().hex[:8]}"
        return str(self._client.create_container_from_config(body, name)["Id"])

    def start(self, body: dict[str, object]) -> str:
        container = self.create(body)
        self._client.start(container)
        return container

    def start_attached(self, body: dict[str, object]) -> tuple[str, Any]:
        """Start a container with its stdin and stdout as a socket."""
        container = self.create(body)
        wanted = {"stdin": 1, "stdout": 1, "stream": 1}
        stream = self._client.attach_socket(container, params=wanted)
        self._client.start(container)
        return container, stream

    def run(self, container: str, command: list[str]) -> bytes:
        made = self._client.exec_create(container, command)
        output = bytes(self._client.exec_start(made["Id"]))
        assert self._client.exec_inspect(made["Id"])["ExitCode"] == 0
        return output

    def remove(self, container: str) -> None:
        self._client.remove_container(container, force=True, v=True)

    def clear(self) -> None:
        """Remove whatever is left of this run, ours or not."""
        for filters in (
            {"label": f"{STORE_LABEL}={self._spec.store}"},
            {"name": f"caisson-{self._spec.job}-"},
        ):
            for found in self._client.containers(all=True, filters=filters):
                with contextlib.suppress(docker.errors.NotFound):  # it removes itself
                    self.remove(found["Id"])

    def close(self) -> None:
        self._client.close()


class EngineAlone:
    """A container; each call is a Python of its own in it."""

    def __init__(self) -> None:
        self._raw = Raw(spec())
        self._container = ""

    def open(self) -> None:
        self._container = self._raw.start(self._raw.hardened())

    def call(self) -> None:
        assert self._raw.run(self._container, ["python3", "-c", CODE]) == b"2\n"

    def pandas(self) -> None:
        self._raw.run(self._container, ["python3", "-c", PANDAS])

    def shell(self) -> None:
        self._raw.run(self._container, ["bash", "-c", "true"])

    def close(self) -> None:
        self._raw.remove(self._container)


class EnginePiped:
    """A container whose one process answers on its attached stdin: what the engine's pipes cost."""

    def __init__(self) -> None:
        self._raw = Raw(spec())
        self._container, self._stream = "", None

    def open(self) -> None:
        body = self._raw.hardened(["python3", "-I", "-c", ANSWERING])
        self._container, stream = self._raw.start_attached(body)
        self._stream = stream._sock  # noqa: SLF001 - docker-py wraps it for reading alone
        self.call()

    def call(self) -> None:
        assert self._stream is not None
        # Docker puts eight bytes before each piece of output.
        assert round_trip(self._stream.sendall, self._stream.recv, head=8) == b"2"

    def close(self) -> None:
        assert self._stream is not None
        self._stream.close()
        self._raw.remove(self._container)


if __name__ == "__main__":
    serve(EnginePiped() if "piped" in sys.argv else EngineAlone(), "docker")
