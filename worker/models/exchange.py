"""HTTP exchanges that end when we say so, whatever the server does.

A read timeout starts anew with every byte, so a server that sends one byte at a time holds a
client for ever. Here exchanges run in a thread of their own; at the deadline, or when the job is
cancelled, its sockets are shut down under it, which ends the thread as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

import httpx2
from openai import DefaultHttpxClient

from worker.errors import Cancelled, ModelTimeout

T = TypeVar("T")

_POLL_S = 0.1
_MOST_OF_A_PAGE = 256 * 1024  # bytes of an answer that is no success
_PACKED = {"gzip", "x-gzip", "deflate"}
_ANY_HEADER = zlib.MAX_WBITS | 32  # of gzip or zlib
_DROPPING = {301, 302, 303}
_KEPT = 3  # of the latest connections; older ones are closed


class Moved(Exception):
    """What was sent with a body is to be asked for elsewhere without it: no reply is there."""

    def __init__(self, url: httpx2.URL) -> None:
        super().__init__(str(url))
        self.url = url


class Line:
    """One HTTP client whose exchanges can be broken off."""

    def __init__(self) -> None:
        self._streams: list[Any] = []
        self._work: SimpleQueue[Callable[[], None] | None] | None = None
        self._lock = threading.Lock()
        self.client: httpx2.Client = DefaultHttpxClient(
            event_hooks={"request": [self._trace], "response": [_stay, _shorten]},
            follow_redirects=True,
            verify=_trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        )

    def _trace(self, request: httpx2.Request) -> None:
        request.extensions = {**request.extensions, "trace": self._connected}

    def _connected(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._streams = [*self._streams[-_KEPT:], info["return_value"]]

    def run(
        self, exchange: Callable[[], T], *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> T:
        """Return or raise what `exchange` does, or `ModelTimeout` or `Cancelled` before that.

        What `is_cancelled` raises breaks the exchange off as well.
        """
        done = threading.Event()
        outcome: list[T | BaseException] = []

        def work() -> None:
            try:
                outcome.append(exchange())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                outcome.append(error)
            done.set()

        deadline = time.monotonic() + timeout_s
        _check(deadline, timeout_s, is_cancelled)  # nothing is sent for a job that is not ours
        self._start(work)
        try:
            while not done.wait(min(_POLL_S, max(0.0, deadline - time.monotonic()))):
                _check(deadline, timeout_s, is_cancelled)
        except BaseException:
            self.break_off()
            raise
        result = outcome[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        """Let go of connections, and of the thread when it is done. Safe to call twice."""
        self._leave()
        self.client.close()

    def _start(self, work: Callable[[], None]) -> None:
        if self._work is None:
            self._work = SimpleQueue()
            thread = threading.Thread(target=_serve, args=(self._work,), name="model", daemon=True)
            thread.start()
        self._work.put(work)

    def _leave(self) -> None:
        """Take another thread next time: this one may never be done."""
        work, self._work = self._work, None
        if work is not None:
            work.put(None)

    def break_off(self) -> None:
        """Shut down every connection, so that a read that waits for one returns at once."""
        self._leave()
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):
                # not SSLSocket.shutdown, which takes the TLS state away under the reader
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)


@cache
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The authorities that are trusted: a tenth of a second to load, which no job needs to pay.

    The client reads the variables by itself; here they tell one set of authorities from another.
    A file that has changed is read by the next process.
    """
    del file, folder
    return httpx2.create_ssl_context()


class _Shortened(httpx2.SyncByteStream):
    """The beginning of what another stream has, unpacked: a kilobyte can unpack to a megabyte."""

    def __init__(self, stream: httpx2.SyncByteStream, *, is_packed: bool) -> None:
        self._stream = stream
        self._unpacking = zlib.decompressobj(_ANY_HEADER) if is_packed else None

    def __iter__(self) -> Iterator[bytes]:
        left = _MOST_OF_A_PAGE
        for packed in self._stream:
            part = self._unpacked(packed, left)[:left]
            yield part
            left -= len(part)
            if left <= 0:
                return

    def _unpacked(self, part: bytes, most: int) -> bytes:
        if self._unpacking is None:
            return part
        try:
            return self._unpacking.decompress(part, most)
        except zlib.error as error:
            raise httpx2.DecodingError(str(error)) from error

    def close(self) -> None:
        self._stream.close()


def _stay(response: httpx2.Response) -> None:
    """Refuse to follow where a POST becomes a GET, as 301, 302 and 303 have it."""
    is_moved = response.status_code in _DROPPING and response.has_redirect_location
    if is_moved and response.request.method == "POST":
        raise Moved(response.request.url.join(response.headers["location"]))


def _shorten(response: httpx2.Response) -> None:
    """Bound what the library reads by itself: whatever is no success."""
    if not response.is_success and isinstance(response.stream, httpx2.SyncByteStream):
        encoding = response.headers.pop("content-encoding", "").strip().lower()
        response.stream = _Shortened(response.stream, is_packed=encoding in _PACKED)


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while work := queue.get():
        work()


def _check(deadline: float, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise Cancelled
    if time.monotonic() >= deadline:
        raise ModelTimeout(f"no complete reply within {timeout_s:.0f} s")
