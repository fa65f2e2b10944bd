"""The conversations with hosts: the first by the door, or stdin and stdout; later ones by a relay.

One link is current, the first or the one that said `hello` last; the others are told and dropped
then. A link that takes nothing is dropped, never waited for.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time

from .spawn import close_all_but
from .wire import MAX_PAYLOAD, Channel, Frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    OnFrame = Callable[[Channel, Frame], None]

MAX_STRANGERS = 32


class Links:
    """All open links, served by `selector`; frames go to `on_frame`."""

    def __init__(self, selector: selectors.BaseSelector, on_frame: OnFrame) -> None:
        self.current: Channel | None = None
        self.alone_since: float | None = None
        self._selector = selector
        self._on_frame = on_frame
        self._links: set[Channel] = set()
        self._strangers: list[socket.socket] = []
        self._paused: socket.socket | None = None
        self._relay_uid = -1

    def listen(self, fd: int, relay_uid: int) -> None:
        """Let later hosts in by a listening socket; only the relay's user is let in."""
        listener = socket.socket(fileno=fd)
        listener.settimeout(0)
        self._relay_uid = relay_uid
        self._watch(listener)

    def _watch(self, listener: socket.socket) -> None:
        self._selector.register(
            listener, selectors.EVENT_READ, lambda _events: self._accept(listener)
        )

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return  # it has gone again
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] != self._relay_uid:
            self._turn_away(peer, listener)
            return
        fd = peer.detach()
        self.add(Channel(fd, fd, max_payload=MAX_PAYLOAD))

    def _turn_away(self, peer: socket.socket, listener: socket.socket) -> None:
        """Close what user code has opened, now and then, in a child.

        It may have sent open files along, and some files make whoever closes them last wait.
        """
        self._strangers.append(peer)
        if len(self._strangers) < MAX_STRANGERS:
            return
        self._selector.unregister(listener)
        self._paused = listener
        self.tend()

    def tend(self) -> None:
        """Let others in again, as soon as a process can be had to close those turned away."""
        if self._paused is None:
            return
        listener = self._paused
        with contextlib.suppress(OSError):
            _close_in_child(self._strangers)
            self._strangers, self._paused = [], None
            self._watch(listener)

    def add(self, link: Channel) -> None:
        """Serve one more link."""
        self._links.add(link)
        self.alone_since = None
        self._selector.register(link.read_fd, selectors.EVENT_READ, self._serves(link))

    def make_current(self, link: Channel, farewell: Frame) -> None:
        """Answer on this link from now on; the others hear `farewell` and are dropped."""
        self.current = link
        for other in self._links - {link}:
            self.say(other, farewell)
            self._drop(other)

    def say(self, link: Channel | None, frame: Frame, payload: bytes = b"") -> None:
        """Send to one link, if it is still there."""
        if link is None or link not in self._links:
            return
        if link.send(frame, payload):
            watch_writing(self._selector, link, self._serves(link))
        else:
            self._drop(link)

    def _serves(self, link: Channel) -> Callable[[int], None]:
        return lambda events: self._on_ready(link, events)

    def _on_ready(self, link: Channel, events: int) -> None:
        alive = link in self._links
        if alive and events & selectors.EVENT_READ:
            alive = link.receive(
                lambda frame: self._receive(link, frame),
                lambda why: self.say(link, {"kind": "malformed", "id": "", "reason": why}),
            )
        if link in self._links:
            if alive and link.flush():
                watch_writing(self._selector, link, self._serves(link))
            else:
                self._drop(link)

    def _receive(self, link: Channel, frame: Frame) -> None:
        if link in self._links:  # else dropped by an earlier frame of the same packet
            self._on_frame(link, frame)

    def _drop(self, link: Channel) -> None:
        if link not in self._links:
            return
        self._links.discard(link)
        for fd in {link.read_fd, link.write_fd}:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        link.close()
        self.current = None if link is self.current else self.current
        if not self._links:
            self.alone_since = time.monotonic()


def _close_in_child(sockets: list[socket.socket]) -> None:
    gate, key = os.pipe()
    with contextlib.closing(os.fdopen(gate)), contextlib.closing(os.fdopen(key, "w")):
        if os.fork() == 0:
            try:
                close_all_but((gate, *(each.fileno() for each in sockets)))
                os.read(gate, 1)  # until the parent's copies are closed
            finally:
                os._exit(0)
        for each in sockets:
            each.close()


def watch_writing(
    selector: selectors.BaseSelector, peer: Channel, ready: Callable[[int], None]
) -> None:
    """Ask to be told when a slow peer takes more, and only then."""
    if peer.has_output == peer.is_slow:
        return
    peer.is_slow = peer.has_output
    wanted = selectors.EVENT_WRITE if peer.is_slow else 0
    registered = selector.get_map()
    if peer.read_fd == peer.write_fd:
        if registered[peer.read_fd].events != selectors.EVENT_READ | wanted:
            selector.modify(peer.read_fd, selectors.EVENT_READ | wanted, ready)
    elif wanted and peer.write_fd not in registered:
        selector.register(peer.write_fd, wanted, ready)
    elif not wanted and peer.write_fd in registered:
        selector.unregister(peer.write_fd)
