"""The Docker driver: a container whose first process is the guest, and a link to it.

The container is attached to *before* it starts, so the first link costs no time of its own; its
stdin is closed when this host goes away, which is how the guest learns of it. A later host joins
by a relay (`adopt`). Docker's archive calls are never used: they cannot see a tmpfs, block the
container when half read, and have let containers write to the host.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Self

from sandbox import bundle
from sandbox.driver import ENDING_S, GuestSandbox, describe_end, wait_until
from sandbox.engine import Engine
from sandbox.errors import LinkLost, SandboxUnavailable
from sandbox.hardening import SANDBOX_UIDS, WORKSPACE, container_options
from sandbox.session import Session
from sandbox.types import SandboxSpec

START_S = 60.0

Harden = Callable[..., dict[str, object]]


class DockerSandbox(GuestSandbox):
    """One container. Made by `start` or `adopt`, never shared between jobs or threads."""

    def __init__(self, engine: Engine, container: str, session: Session) -> None:
        super().__init__(session)
        self.container = container
        self._engine = engine

    @property
    def place(self) -> str:
        """The container's short id."""
        return self.container[:12]

    @classmethod
    def start(
        cls, spec: SandboxSpec, *, engine_url: str | None = None, harden: Harden = container_options
    ) -> Self:
        """Start a container and its guest; ready for calls when this returns.

        Raises `EngineUnavailable`, `ImageMissing`, `ImageUnsuitable` or `SpecInvalid`; whatever
        happens, no container is left behind. `harden` is there for tests that weaken it.
        """
        engine = Engine(engine_url)
        volumes = engine.image(spec.image).get("Config", {}).get("Volumes") or ()
        options = harden(
            spec,
            command=bundle.guest_command(),
            uid=secrets.choice(SANDBOX_UIDS),
            deadline=time.time() + spec.limits.max_life_s,
            image_volumes=volumes,
        )
        name = f"caisson-{spec.job[:60]}-{secrets.token_hex(4)}"
        try:
            return cls._greet(engine, engine.create(options, name), spec)
        except BaseException:  # Ctrl-C too, also while the engine creates it
            with contextlib.suppress(SandboxUnavailable):  # the first error is the one to tell
                engine.remove(name)
            engine.close()
            raise

    @classmethod
    def _greet(cls, engine: Engine, container: str, spec: SandboxSpec) -> Self:
        session = Session(engine.attach(container), spec)
        config = bundle.guest_config(spec, WORKSPACE, is_container=True)
        deadline = time.monotonic() + START_S
        try:
            # Sent before the start: the guest reads it while the engine is still busy starting.
            nonce = session.say_hello(deadline, bundle.luggage(config))
            engine.start(container, spec.image)
            session.hear_hello(nonce, deadline)
        except LinkLost as error:
            words = session.last_words() or str(error)
            raise SandboxUnavailable(f"the guest did not start: {words[-500:]}") from error
        except BaseException:
            session.close()
            raise
        return cls(engine, container, session)

    @classmethod
    def adopt(cls, container: str, spec: SandboxSpec, *, engine_url: str | None = None) -> Self:
        """Take over a running container from a host that is gone.

        `spec.generation` must not be lower than that host's. Raises `SandboxLost` if the
        container is gone, `StaleGeneration` if a newer host owns it.
        """
        with ExitStack() as undo:
            engine = Engine(engine_url)
            undo.callback(engine.close)
            link = engine.relay(container, bundle.relay_command(), bundle.RELAY_UID)
            undo.callback(link.close)
            session = Session(link, spec)
            session.hello(START_S)
            undo.pop_all()
        return cls(engine, container, session)

    def _discard(self) -> None:
        # An engine that is away removes nothing; the container ends by itself, without a host.
        with contextlib.suppress(SandboxUnavailable):
            self._engine.remove(self.container)

    def _release(self) -> None:
        self._engine.close()

    def _how_ended(self) -> str | None:
        """Ask the engine how the container ended."""
        life_s = self.spec.limits.max_life_s
        for _ in wait_until(time.monotonic() + ENDING_S):
            if self._over is not None:  # another thread has decided already
                break
            state = self._engine.state(self.container)
            if state is None:
                return "the container was removed from outside"
            if not state["Running"]:
                oom = bool(state["OOMKilled"]) and state["ExitCode"] != 0
                return describe_end(
                    state["ExitCode"], was_out_of_memory=oom, age_s=_age_s(state), life_s=life_s
                )
        return None


def _age_s(state: dict[str, Any]) -> float:
    """How long a container ran, by the engine's clock."""
    began, ended = (datetime.fromisoformat(state[key]) for key in ("StartedAt", "FinishedAt"))
    return (ended - began).total_seconds()


def owner() -> str:
    """Name this process for the label of its containers."""
    return f"{socket.gethostname()}:{os.getpid()}"
