"""A file of 100 MB into a sandbox and out of it, from and to the host's disk."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.serve import Samples, serve
from bench.spec import spec
from sandbox.docker import DockerSandbox

SIZE_MB = 100
NAME = "data.bin"


class Files:
    """Answers MB/s (of 1,000,000 bytes)."""

    def move(self) -> Samples:
        with tempfile.TemporaryDirectory(prefix="caisson-bench-") as folder:
            path = Path(folder, NAME)
            path.write_bytes(os.urandom(1_000_000) * SIZE_MB)
            sandbox = DockerSandbox.start(spec())
            try:
                sandbox.python("1")  # the interpreter is there, and takes no time from this
                return self._there_and_back(sandbox, path)
            finally:
                sandbox.close()

    def _there_and_back(self, sandbox: DockerSandbox, path: Path) -> Samples:
        started = time.perf_counter()
        with path.open("rb") as source:
            sandbox.write_file(NAME, source)
        there = time.perf_counter()
        back = path.with_name("back")
        with back.open("wb") as target:
            sandbox.read_file(NAME, target)
        ended = time.perf_counter()
        assert back.stat().st_size == SIZE_MB * 1_000_000
        assert back.read_bytes() == path.read_bytes()
        return {"write": [SIZE_MB / (there - started)], "read": [SIZE_MB / (ended - there)]}


if __name__ == "__main__":
    serve(Files(), "caisson")
