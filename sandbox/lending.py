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
_PATIENCE_S = 1.0


class _Wish(BaseModel):
    """What a borrower asks for: a spare, or that a container be removed."""

    model_config = ConfigDict(extra="forbid")

    spec: SandboxSpec | None = None
    remove: str | None = None


class _Loan(BaseModel):
    """What it gets; the link comes along as a descriptor. All empty: there is none."""

    container: str = ""
    is_framed: bool = False
    made_at: float = 0.0


class Lender:
    """Serves a pool at `path` until it is closed; nobody but this user may get there."""

    def __init__(self, pool: Pool, path: Path) -> None:
        self.path = path
        self._pool = pool
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, name="lending", daemon=True)

    def __enter__(self) -> Self:
        """Begin to serve; raises OSError."""
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self.path.chmod(0o600)
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                borrower, _ = self._listener.accept()
            except OSError:
                return
            with borrower:
                borrower.settimeout(_PATIENCE_S)
                try:
                    self._answer(borrower)
                except (OSError, ValidationError) as error:  # it has gone, or is none of ours
                    _log.info("nothing lent: %s", error)

    def _answer(self, borrower: socket.socket) -> None:
        wish = _Wish.model_validate_json(_line(borrower))
        if wish.remove:
            self._pool.remove(wish.remove)
        spare = self._pool.hand_out(wish.spec) if wish.spec else None
        if spare is None:
            borrower.sendall(_written(_Loan()))
            return
        loan = _Loan(
            container=spare.container, is_framed=spare.link.is_framed, made_at=spare.made_at
        )
        try:
            socket.send_fds(borrower, [_written(loan)], [spare.link.fileno()])
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
        """Have a container removed; at once and here, if the lender is gone."""
        try:
            self._ask(_Wish(remove=container))
        except (OSError, ValidationError):
            with contextlib.closing(Engine(self._engine_url)) as engine:
                engine.remove(container)

    def _borrow(self, spec: SandboxSpec) -> Spare | None:
        try:
            loan, link = self._ask(_Wish(spec=spec))
        except (OSError, ValidationError) as error:
            _log.info("nothing borrowed: %s", error)
            return None
        return None if link is None else Spare(loan.container, link, loan.made_at)

    def _ask(self, wish: _Wish) -> tuple[_Loan, SocketLink | None]:
        with socket.socket(socket.AF_UNIX) as lender:
            lender.settimeout(_PATIENCE_S)
            lender.connect(str(self._path))
            lender.sendall(_written(wish))
            said, fds, _, _ = socket.recv_fds(lender, _MOST_BYTES, 1)
        loan = _Loan.model_validate_json(said)
        if not fds:
            return loan, None
        return loan, SocketLink(socket.socket(fileno=fds[0]), is_framed=loan.is_framed)


def _line(stream: socket.socket) -> bytes:
    """Read one line; raises OSError."""
    said = b""
    while not said.endswith(b"\n"):
        piece = stream.recv(65536)
        if not piece or len(said) > _MOST_BYTES:
            raise ConnectionError("it has not said what it wants")
        said += piece
    return said


def _written(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"
