"""The pool of one process, for others of the same user on the same host.

A borrower connects to a unix socket, writes one line of JSON and reads one: the container's id,
and beside it, as a descriptor, the link to it. So one pool serves all processes of a worker, and a
spare costs whoever takes it one exchange with a neighbour and one with the guest. A lender that is
gone, slow or empty is no fault: the borrower starts a sandbox of its own.

What is removed is left to the lender as well, whose process outlives the job's.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sandbox.docker import DockerSandbox, Spare
from sandbox.engine import Engine
from sandbox.link import SocketLink
from sandbox.pool import Pool, moved_in
from sandbox.types import SandboxSpec

_log = logging.getLogger(__name__)
_MOST_BYTES = 1024 * 1024
_PATIENCE_S = 1.0  # of the lender for one borrower in all, of a borrower for each step
_PAUSE_S = 0.01


class _Request(BaseModel):
    """What a borrower asks for: a spare, or that a container be removed."""

    model_config = ConfigDict(extra="forbid")

    spec: SandboxSpec | None = None
    remove: str | None = None


class _Response(BaseModel):
    """What it gets; the link comes along as a descriptor. All empty: there is none."""

    container: str = ""
    is_framed: bool = False


class Lender:
    """Serves a pool at `path` until it is closed; nobody but this user may get there."""

    def __init__(self, pool: Pool, path: Path) -> None:
        """Listen at `path`; raises OSError."""
        self.path = path
        self._pool = pool
        self._is_closing = False
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(64)
        except BaseException:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="lending", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._is_closing:
            try:
                borrower, _ = self._listener.accept()
                with borrower:
                    self._answer(borrower, time.monotonic() + _PATIENCE_S)
            except (OSError, ValidationError) as error:
                # It has gone, is none of ours, or there is no descriptor to be had just now.
                if not self._is_closing:
                    _log.info("nothing lent: %s", error)
                    time.sleep(_PAUSE_S)

    def _answer(self, borrower: socket.socket, deadline: float) -> None:
        request = _Request.model_validate_json(_line(borrower, deadline))
        if request.remove:
            self._pool.remove(request.remove)
        spare = self._pool.hand_out(request.spec) if request.spec else None
        if spare is None:
            _wait_until(deadline, borrower)
            borrower.sendall(_written(_Response()))
            return
        response = _Response(container=spare.container, is_framed=spare.link.is_framed)
        try:
            _wait_until(deadline, borrower)
            socket.send_fds(borrower, [_written(response)], [spare.link.fileno()])
        except OSError:
            self._pool.remove(spare.container)
            raise
        finally:
            spare.link.drop()


class Borrower:
    """Takes sandboxes out of the pool of another process, whose lender serves at `path`."""

    def __init__(self, path: Path, engine_url: str | None = None) -> None:
        self._path = path
        self._engine_url = engine_url

    def take(self, spec: SandboxSpec) -> DockerSandbox | None:
        """A sandbox for `spec` that is ready for calls; None if there is none to be had at once."""
        spare = self._borrow(spec)
        return moved_in(spare, spec, self._engine_url, self.remove) if spare else None

    def remove(self, container: str) -> None:
        """Have a container removed; at once and here, if the lender is gone.

        Raises `SandboxUnavailable` if it cannot be.
        """
        try:
            self._ask(_Request(remove=container))
        except (OSError, ValidationError):
            with contextlib.closing(Engine(self._engine_url)) as engine:
                engine.remove(container)

    def _borrow(self, spec: SandboxSpec) -> Spare | None:
        try:
            response, stream = self._ask(_Request(spec=spec))
        except (OSError, ValidationError) as error:
            _log.debug("nothing borrowed: %s", error)  # a worker says at its start whether it lends
            return None
        if stream is None:
            return None
        return Spare(response.container, SocketLink(stream, is_framed=response.is_framed))

    def _ask(self, request: _Request) -> tuple[_Response, socket.socket | None]:
        with socket.socket(socket.AF_UNIX) as lender:
            lender.settimeout(_PATIENCE_S)
            lender.connect(str(self._path))
            lender.sendall(_written(request))
            said, fds, _, _ = socket.recv_fds(lender, _MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        stream = socket.socket(fileno=fds[0]) if fds else None
        try:
            return _Response.model_validate_json(said), stream
        except ValidationError:
            if stream is not None:
                stream.close()
            raise


def _line(stream: socket.socket, deadline: float) -> bytes:
    """Read one line, however it comes; raises OSError."""
    said = b""
    while not said.endswith(b"\n"):
        _wait_until(deadline, stream)
        piece = stream.recv(65536)
        if not piece or len(said) > _MOST_BYTES:
            raise ConnectionError("it has not said what it wants")
        said += piece
    return said


def _wait_until(deadline: float, stream: socket.socket) -> None:
    """Have the next step end by then; raises TimeoutError when it is past."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it takes too long to say what it wants")
    stream.settimeout(left_s)


def _written(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"
