"""A short way into a sandbox: a unix socket of this host, at which its guest knocks once.

Bytes then go from process to process, and not through the engine, which takes several times as
long for a small call and is the narrowest place for a large file. The socket is the only thing of
the host inside. It is closed for good before user code begins: the host takes one visitor, who
comes before the guest says its first word, and a later connection is refused by the kernel.

It needs an engine that sees this host's files, and a runtime that lets unix sockets through. Where
either is not so the guest does not come, and speaks by the engine as it would without a door.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Self

import psutil

from sandbox.link import SocketLink

OLD_S = 3600.0  # a door is open for a minute at most
_POOL = re.compile(r"pool-(\d{1,9})")


class Door:
    """One listening socket; made by `open`, good for one sandbox."""

    def __init__(self, path: Path, listener: socket.socket) -> None:
        self.path = path
        self._listener = listener

    @classmethod
    def open(cls) -> Self | None:
        """Listen at a new path; None where this host has no room for it."""
        try:
            listener = socket.socket(socket.AF_UNIX)
        except OSError:
            return None
        try:
            path = private_folder() / f"{secrets.token_hex(8)}.sock"
            listener.bind(str(path))
            path.chmod(0o666)  # the sandbox's user is another one; its folder keeps out the rest
            listener.listen(1)
            listener.settimeout(0)
        except OSError:
            listener.close()
            return None
        return cls(path, listener)

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> SocketLink | None:
        """The link to the guest, if it has come."""
        try:
            stream, _ = self._listener.accept()
        except OSError:
            return None
        return SocketLink(stream, is_framed=False)

    def close(self) -> None:
        """Let nobody in any more. Safe to call twice."""
        self._listener.close()
        with contextlib.suppress(OSError):  # closed before
            self.path.chmod(0)  # what is seen inside stays there, and is good for nothing
            self.path.unlink()


def wait_for_either(door: Door, link: SocketLink, deadline: float) -> None:
    """Return when the guest has come to the door, or says something by the other way."""
    waiting = select.poll()  # takes descriptors of any number, where select() does not
    for way in (door, link):
        waiting.register(way, select.POLLIN)
    waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)


def pool_socket(pid: int) -> Path:
    """Where a process lends its spares (`sandbox.lending`); raises OSError."""
    return private_folder() / f"pool-{pid}"


def sweep() -> None:
    """Remove the sockets that processes which were killed have left behind; raises OSError."""
    for path in private_folder().iterdir():
        with contextlib.suppress(OSError):  # another was quicker, or it stays: it costs a name
            if _is_left(path):
                path.unlink()


def _is_left(path: Path) -> bool:
    if path.suffix == ".sock":
        return time.time() - path.lstat().st_mtime > OLD_S
    pool = _POOL.fullmatch(path.name)
    return pool is not None and not psutil.pid_exists(int(pool[1])) and not _is_served(path)


def _is_served(path: Path) -> bool:
    """Whether somebody listens there: a process of another pid namespace may."""
    with socket.socket(socket.AF_UNIX) as knocking:
        knocking.settimeout(0)
        try:
            knocking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # more wait there than it can take
            return True
    return True


def private_folder() -> Path:
    """A folder for sockets that only this user can enter; raises OSError."""
    folder = Path(tempfile.gettempdir()) / f"caisson-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder
