"""How a container is opened: made, attached to, started, and its guest heard for the first time.

It is attached to *before* it starts, so that its guest can be sent in time. The guest then comes
by the door (`sandbox.door`), or speaks by the engine where it does not get through.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from sandbox import bundle
from sandbox.door import Door, wait_for_either
from sandbox.engine import Engine
from sandbox.errors import GuestTimeout, LinkLost, SandboxUnavailable, SpecInvalid
from sandbox.hardening import DOOR, SANDBOX_UIDS, WORKSPACE, with_door
from sandbox.link import SocketLink
from sandbox.session import Session
from sandbox.types import MIB, SandboxSpec

START_S = 60.0
WARNING_S = 0.05
WORDS_S = 0.5

Harden = Callable[..., dict[str, object]]

without_doors: set[str] = set()  # addresses of engines that do not see this host's files


def open_container(engine: Engine, spec: SandboxSpec, harden: Harden) -> tuple[str, Session]:
    """Open a container for `spec`; returns its id, and a session that takes calls.

    Raises `EngineUnavailable`, `ImageMissing`, `ImageUnsuitable` or `SpecInvalid`, or
    `SandboxUnavailable` if the guest does not come up; whatever happens, nothing is left behind.
    """
    volumes = engine.image(spec.image).get("Config", {}).get("Volumes") or ()
    options = harden(
        spec,
        command=bundle.guest_command(),
        uid=secrets.choice(SANDBOX_UIDS),
        deadline=time.time() + spec.longest_s,
        image_volumes=volumes,
    )
    name = container_name(spec)
    with ExitStack() as undo:  # on Ctrl-C too, also while the engine creates it
        undo.callback(_remove_quietly, engine, name)
        container, door = _create(engine, options, name)
        with closing(door) if door else contextlib.nullcontext():
            session = _greet(engine, container, spec, door)
        undo.callback(session.close)
        _preload(session, spec)
        undo.pop_all()
    return container, session


def container_name(spec: SandboxSpec) -> str:
    """Name a container for whoever lists them; nothing goes by it."""
    return f"caisson-{spec.job[:60]}-{secrets.token_hex(4)}"


def _create(engine: Engine, options: dict[str, object], name: str) -> tuple[str, Door | None]:
    """Create a container, with a door where the engine sees this host's files."""
    door = Door.open() if engine.is_local and engine.url not in without_doors else None
    if door is None:
        return engine.create(options, name), None
    try:
        return engine.create(with_door(options, door.path), name), door
    except SpecInvalid as error:
        door.close()
        if str(door.path) not in str(error):
            raise
    except BaseException:
        door.close()
        raise
    without_doors.add(engine.url)
    return engine.create(options, name), None


def _greet(engine: Engine, container: str, spec: SandboxSpec, door: Door | None) -> Session:
    """Start a container and hear its guest."""
    nonce = secrets.token_hex(16)
    config = bundle.guest_config(
        spec, WORKSPACE, nonce=nonce, is_container=True, door=DOOR if door else None
    )
    deadline = time.monotonic() + START_S
    link = engine.attach(container)
    with ExitStack() as undo:
        undo.callback(link.close)
        session = Session(link, spec)
        undo.callback(session.close)
        try:
            # Sent before the start: the guest reads it while the engine is still busy starting.
            session.send_guest(bundle.luggage(config), deadline)
            engine.start(container, spec.image)
            _hear(session, nonce, deadline, link, door)
        except LinkLost as error:
            words = _last_words(link) or str(error)
            raise SandboxUnavailable(f"the guest did not start: {words[-500:]}") from error
        if session.link is not link:
            link.close()
        undo.pop_all()
    return session


def _hear(
    session: Session, nonce: str, deadline: float, link: SocketLink, door: Door | None
) -> None:
    """Hear the guest's first word; it comes by the door, or by the engine after all."""
    while door is not None:
        wait_for_either(door, link, deadline)
        shortcut = door.accept()
        if shortcut is not None:
            session.link = shortcut
            break
        with contextlib.suppress(GuestTimeout):  # something has warned: no word of the guest's
            session.hear_hello(nonce, time.monotonic() + WARNING_S)
            return
        if time.monotonic() > deadline:
            break
    session.hear_hello(nonce, deadline)


def _preload(session: Session, spec: SandboxSpec) -> None:
    """Load what the spec asks for; the guest may end over it, as its limits hold for that too."""
    try:
        session.preload(spec.preload)
    except LinkLost as error:
        raise SandboxUnavailable(
            "the sandbox ended while libraries were loaded, probably for want of memory: its limit"
            f" is {spec.limits.memory_bytes // MIB} MiB"
        ) from error


def _last_words(link: SocketLink) -> str:
    """What the guest's process has written to its standard error before it ended."""
    with contextlib.suppress(LinkLost, GuestTimeout):
        while True:
            link.receive(time.monotonic() + WORDS_S)
    return link.last_words()


def _remove_quietly(engine: Engine, container: str) -> None:
    with contextlib.suppress(SandboxUnavailable):  # the first error is the one to tell
        engine.remove(container)
