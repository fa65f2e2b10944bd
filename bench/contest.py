"""The outer half of a contestant: a process of its own, in an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bench.serve import Samples

ROOT = Path(__file__).resolve().parents[1]
START_S, ACT_S, END_S = 120.0, 300.0, 30.0


class Failed(Exception):
    """A contestant cannot be started, or could not do something; the message is one line."""


class Contestant:
    """A process that runs `module` and does what it is asked; see `bench.serve`."""

    def __init__(
        self,
        name: str,
        module: str,
        *options: str,
        python: str | Path = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = [str(python), "-m", module, *options]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._heard = bytearray()
        self.acts: frozenset[str] = frozenset()
        self.version = ""

    def start(self) -> None:
        """Start it, unless it runs. Raises `Failed`."""
        if self._process is not None:
            return
        try:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"{self._command[0]}: {error.strerror}") from error
        told = self._hear(START_S)
        self.acts, self.version = frozenset(told["acts"]), told["version"]

    def ask(self, act: str, *arguments: Any, times: int = 1, within_s: float = 1.0) -> Samples:  # noqa: ANN401
        """Let it do something; returns what each time took, by name. Raises `Failed`."""
        self.start()
        asked = {"act": act, "arguments": arguments, "times": times, "within_s": within_s}
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failed(self._last_words()) from error
        told = self._hear(ACT_S)
        if "error" in told:
            raise Failed(f"{act}: {told['error']}")
        return dict(told["samples"])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def close(self, patience_s: float = END_S) -> None:
        """Let it close what it has open and end; one that does not is killed."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(OSError):  # it has ended, with a request that it never read
                self._process.stdin.close()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)  # with whatever it has started
                self._process.wait()
            self._process.stdout.close()
        self._log.close()

    def _hear(self, patience_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        stream, deadline = self._process.stdout.fileno(), time.monotonic() + patience_s
        while b"\n" not in self._heard:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([stream], [], [], left_s)[0]:
                raise Failed(f"no answer in {patience_s:.0f} s")
            data = os.read(stream, 65_536)
            if not data:
                raise Failed(self._last_words())
            self._heard += data
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard[:] = rest
        return dict(json.loads(line))

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it ended without a word"
