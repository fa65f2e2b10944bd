"""The guest's first word, before anything is loaded that it does not need.

Loading the rest takes longer than Python itself takes to start, and whoever waits for a sandbox
waits for this word. What comes after it, and a later host, wait until the supervisor takes them.
"""

from __future__ import annotations

import _ctypes  # noqa: F401 - odd builds of Python lack it; that must show before the first word
import os
import sys

from . import VERSION

try:
    import _socket as socket  # `socket` itself brings enum, collections and selectors along
except ImportError:
    import socket  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELLO = (
    '{"kind":"hello","nonce":"%s","version":%d,"epoch":"%s","python":"%s",'
    '"running":null,"finished":[]}\n'
)

FAULT = '{"kind":"fault","id":"","reason":"the guest has failed: %s"}\n'
MAX_WHY = 1000


def greet(config: dict[str, Any]) -> tuple[int, int, int | None]:
    """Listen for later hosts, open the first link and say hello by it.

    Returns descriptors: of the link, to read and to write, and of the listening socket, if there
    is to be one. The link is the door that the host has opened, or else stdin and stdout. `config`
    comes from `sandbox.bundle`. Raises OSError if the host is gone, or the address is taken.
    """
    listener = None if config["relay_uid"] is None else _listen(config["relay_address"])
    link = _enter(config["door"]) or (os.dup(0), os.dup(1))
    python = sys.version.split()[0]
    hello = (HELLO % (config["nonce"], VERSION, config["epoch"], python)).encode("ascii")
    while hello:
        hello = hello[os.write(link[1], hello) :]
    return (*link, listener)


def confess(write_fd: int, error: BaseException) -> None:
    """Say by the first link why there will be nothing more."""
    why = ascii(f"{type(error).__name__}: {error}")[1:-1][:MAX_WHY]
    why = why.replace("\\", "/").replace('"', "'")  # JSON may be what cannot be loaded
    os.write(write_fd, (FAULT % why).encode("ascii"))


def _listen(address: str) -> int:
    """An abstract socket, in the sandbox's own network."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(b"\0" + address.encode())
    listener.listen(64)
    return listener.detach()


def _enter(door: str | None) -> tuple[int, int] | None:
    """Connect to the host's socket; None where there is none, or nobody is let through."""
    if door is None:
        return None
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(door)
    except OSError:
        stream.close()
        return None
    fd = stream.detach()
    return fd, fd
