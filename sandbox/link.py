"""A byte stream to a guest, with deadlines: what every driver yields and `session` speaks over.

Limits of this module: it trusts nothing it reads; sizes are the session's to bound.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from array import array
from collections.abc import Iterable
from typing import Protocol

from sandbox.errors import GuestTimeout, LinkLost, ProtocolError

READ_SIZE = 256 * 1024
STDERR = 2
KEPT_STDERR = 4096
EXTRA = socket.CMSG_SPACE(253 * 4)  # as many descriptors as one message can carry


class Link(Protocol):
    """A pair of byte streams to one guest. Deadlines are `time.monotonic()` values."""

    def send(self, data: bytes, deadline: float) -> None:
        """Send all of `data`; raises `GuestTimeout` or `LinkLost`."""

    def receive(self, deadline: float) -> bytes:
        """Return what has come, at least one byte; raises `GuestTimeout` or `LinkLost`."""

    def hang_up(self) -> None:
        """End it, from any thread: whoever sends or receives gets `LinkLost` at once."""

    def close(self) -> None:
        """Hang up and free what it holds, when nobody uses it any more; safe to call twice."""


class Closable(Protocol):
    """Whatever can be closed."""

    def close(self) -> None: ...


class SocketLink:
    """A link over a stream socket, as it comes or in the frames of Docker's attach stream.

    Docker puts eight bytes before each piece: the stream (1 output, 2 error), three zeros, and
    the length.
    """

    def __init__(
        self, stream: socket.socket, *, is_framed: bool, holders: Iterable[Closable] = ()
    ) -> None:
        self._stream = stream
        self.is_framed = is_framed
        # What an HTTP library has wrapped around the socket: the socket closes only with them,
        # and some of them close it when they are collected as garbage.
        self._holders = tuple(holders)
        self._raw = bytearray()
        self._stderr = bytearray()

    def send(self, data: bytes, deadline: float) -> None:
        """Send all of `data`; raises `GuestTimeout` or `LinkLost`."""
        view = memoryview(data)
        while view:
            self._wait(deadline)
            try:
                view = view[self._stream.send(view[:READ_SIZE]) :]
            except TimeoutError as error:
                raise GuestTimeout("the guest does not take what it is sent") from error
            except OSError as error:
                raise LinkLost(f"the link to the sandbox broke: {error}") from error

    def receive(self, deadline: float) -> bytes:
        """Return what has come, at least one byte; raises `GuestTimeout` or `LinkLost`.

        Raises `ProtocolError` if open files came along.
        """
        while True:
            self._wait(deadline)
            try:
                data = self._read()
            except TimeoutError as error:
                raise GuestTimeout("the guest does not answer") from error
            except OSError as error:
                raise LinkLost(f"the link to the sandbox broke: {error}") from error
            if not data:
                raise LinkLost("the link to the sandbox has ended")
            output = self._unframe(data) if self.is_framed else data
            if output:
                return output

    def _read(self) -> bytes:
        """Read once. A unix socket carries descriptors too, and whoever closes one may be held up.

        (An hour, for a TCP socket that lingers.) So none is left to the kernel to drop while we
        read: they are taken, and closed by a thread that nobody waits for.
        """
        if self.is_framed:
            return self._stream.recv(READ_SIZE)
        data, extra, _, _ = self._stream.recvmsg(READ_SIZE, EXTRA, socket.MSG_CMSG_CLOEXEC)
        if extra:
            threading.Thread(target=_close_all, args=(extra,), name="closing", daemon=True).start()
            raise ProtocolError("the guest has sent open files")
        return data

    def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise GuestTimeout("the guest does not answer")
        self._stream.settimeout(left)

    def _unframe(self, data: bytes) -> bytes:
        """Take Docker's frames apart; a piece may come in any number of reads."""
        self._raw += data
        output = bytearray()
        while len(self._raw) >= 8:  # noqa: PLR2004 - the header's size
            kind, size = struct.unpack(">BxxxL", self._raw[:8])
            if len(self._raw) < 8 + size:
                break
            piece = self._raw[8 : 8 + size]
            if kind == STDERR:
                self._stderr = (self._stderr + piece)[-KEPT_STDERR:]
            else:
                output += piece
            del self._raw[: 8 + size]
        return bytes(output)

    def last_words(self) -> str:
        """What the guest's process has written to its standard error, at most 4 KiB."""
        return self._stderr.decode("utf-8", "replace").strip()

    def fileno(self) -> int:
        return self._stream.fileno()

    def is_quiet(self) -> bool:
        """Whether it is open, and nothing has been said that nobody has read."""
        waiting = select.poll()
        waiting.register(self._stream, select.POLLIN)
        return not self._raw and not waiting.poll(0)

    def drop(self) -> None:
        """Close this process's copy of it; another process has one and goes on."""
        for holder in (*self._holders, self._stream):
            with contextlib.suppress(ValueError):  # it flushes what another of them has closed
                holder.close()

    def hang_up(self) -> None:
        """End it, from any thread: whoever sends or receives gets `LinkLost` at once."""
        # Not `close`: the number of a closed socket may be another file's a moment later, under
        # a thread that still reads from it.
        with contextlib.suppress(OSError):  # the other side may have closed it already
            self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and free what it holds, when nobody uses it any more; safe to call twice."""
        self.hang_up()
        if not self.is_framed:
            self._drain()
        self.drop()

    def _drain(self) -> None:
        """Take what has come and nobody has read, so that closing has nothing to drop."""
        with contextlib.suppress(OSError):  # closed before
            self._stream.settimeout(0)
            is_open = True
            while is_open:
                with contextlib.suppress(ProtocolError):
                    is_open = bool(self._read())


def _close_all(extra: Iterable[tuple[int, int, bytes]]) -> None:
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            for fd in array("i", data[: len(data) - len(data) % array("i").itemsize]):
                with contextlib.suppress(OSError):
                    os.close(fd)
