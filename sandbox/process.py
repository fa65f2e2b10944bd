"""The process driver: the same guest as a plain child process. NOTHING IS ISOLATED.

The code runs as the user who runs this, with that user's files and network; only time and output
limits hold, and memory as far as `RLIMIT_AS` goes. It exists for tests and for a look at the
product where no engine can be had, and it refuses to start unless told to.
"""

from __future__ import annotations

import contextlib
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Self

import psutil

from sandbox import bundle, hardening
from sandbox.driver import GuestSandbox
from sandbox.errors import SandboxUnavailable, SpecInvalid
from sandbox.link import SocketLink
from sandbox.session import Session
from sandbox.types import SandboxSpec

START_S = 30.0
ENDING_S = 5.0


class ProcessSandbox(GuestSandbox):
    """One guest process and a temporary folder as its workspace."""

    def __init__(self, process: subprocess.Popen[bytes], workspace: Path, session: Session) -> None:
        super().__init__(session)
        self.workspace = workspace
        self._process = process
        self._place = uuid.uuid4().hex[:12]

    @property
    def place(self) -> str:
        """Names this sandbox among all."""
        return self._place

    @classmethod
    def start(cls, spec: SandboxSpec, *, allow_unisolated: bool = False) -> Self:
        """Start a guest; raises `SpecInvalid` unless the caller says that it may be unisolated."""
        if not allow_unisolated:
            raise SpecInvalid(
                "the process driver isolates nothing; set allow_unisolated to use it all the same"
            )
        workspace = Path(tempfile.mkdtemp(prefix="caisson-")).resolve()
        ours, theirs = socket.socketpair()
        try:
            process = _spawn(spec, workspace, theirs)
        except SandboxUnavailable:
            ours.close()
            workspace.rmdir()
            raise
        finally:
            theirs.close()
        session = Session(SocketLink(ours, is_framed=False), spec)
        sandbox = cls(process, workspace, session)
        nonce = secrets.token_hex(16)
        config = bundle.guest_config(spec, str(workspace), nonce=nonce, is_container=False)
        try:
            deadline = time.monotonic() + START_S
            session.send_guest(bundle.luggage({**config, "linger_s": 0.0}), deadline)
            session.hear_hello(nonce, deadline)
            session.preload(spec.preload)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _discard(self) -> None:
        """End the guest, which ends what it started, and remove the folder."""
        try:
            self._process.wait(ENDING_S)  # it sees its link close
        except subprocess.TimeoutExpired:
            below = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            self._process.wait()
            for orphan in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.kill()
        shutil.rmtree(self.workspace, ignore_errors=True)

    def _release(self) -> None:
        """End the guest, also when it was only to be let go of: it cannot outlive its link."""
        self._discard()

    def _how_ended(self) -> str:
        """A guest whose link broke is lost in any case: no other host can reach it."""
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "the link to the guest process broke"
        return f"the guest process ended (exit code {code})"


def _spawn(spec: SandboxSpec, workspace: Path, stream: socket.socket) -> subprocess.Popen[bytes]:
    memory_bytes = spec.limits.memory_bytes

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    fd = stream.fileno()
    command = [sys.executable, *bundle.guest_command()[1:]]
    try:
        return subprocess.Popen(
            command,
            stdin=fd,
            stdout=fd,
            stderr=subprocess.DEVNULL,
            cwd=workspace,
            env=hardening.process_environment(spec, workspace),
            start_new_session=True,
            preexec_fn=limit_memory,  # noqa: PLW1509 - one system call each, no locks
        )
    except OSError as error:
        raise SandboxUnavailable(f"the guest process cannot be started: {error}") from error
