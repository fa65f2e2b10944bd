"""The Docker driver: a container whose first process is the guest, and a link to it.

How a container is opened is in `sandbox.opening`; a spare was opened before (`take`), and a later
host joins by a relay (`adopt`). The link ends when this host goes away, which is how the guest
learns of it. Docker's archive calls are never used: they cannot see a tmpfs, block the container
when half read, and have let containers write to the host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from sandbox import bundle
from sandbox.driver import ENDING_S, GuestSandbox, Over, describe_end, wait_until
from sandbox.engine import Engine
from sandbox.errors import (
    Detached,
    GuestTimeout,
    LinkLost,
    SandboxLost,
    SandboxUnavailable,
    StaleGeneration,
)
from sandbox.hardening import container_options
from sandbox.link import SocketLink
from sandbox.opening import Harden, open_container
from sandbox.session import Session
from sandbox.types import SandboxSpec

ADOPT_S = 20.0
LOOK_S = 1.0  # between two looks at whether the other side is still there
FENCE_S = 5.0
TAKE_S = 2.0

Remove = Callable[[str], None]  # of a container, by somebody else and later


@dataclass(frozen=True, slots=True)
class Spare:
    """A container that waits for its job, and the link to it."""

    container: str
    link: SocketLink


class DockerSandbox(GuestSandbox):
    """One container. Made by `start` or `adopt`, never shared between jobs or threads."""

    def __init__(
        self,
        engine: Engine | str | None,
        container: str,
        session: Session,
        *,
        remove: Remove | None = None,
    ) -> None:
        super().__init__(session)
        self.container = container
        self._at = engine
        self._remove = remove
        self._is_surely_ours = False

    @property
    def _engine(self) -> Engine:
        """The engine, from the first time on that it is needed; raises `EngineUnavailable`."""
        if not isinstance(self._at, Engine):
            self._at = Engine(self._at)
        return self._at

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
        try:
            return cls(engine, *open_container(engine, spec, harden))
        except BaseException:
            engine.close()
            raise

    @classmethod
    def take(
        cls,
        spare: Spare,
        spec: SandboxSpec,
        *,
        engine_url: str | None = None,
        remove: Remove | None = None,
    ) -> Self:
        """Make a spare the sandbox of a job; raises `SandboxUnavailable` if it is no good.

        No word is said to the engine. `remove` is called with its id when it is to be removed.
        """
        session = Session(spare.link, spec)
        try:
            session.hello(TAKE_S)
            session.preload(spec.preload)
        except BaseException:
            session.close()
            raise
        return cls(engine_url, spare.container, session, remove=remove)

    def preload(self, names: Sequence[str]) -> None:
        """Have libraries loaded for the interpreter, before the first call; takes seconds.

        One that cannot be loaded is told in the log. Raises `SandboxUnavailable`.
        """
        with self._guarded():
            self._session.preload(names)

    @property
    def is_quiet(self) -> bool:
        """Whether a spare waits as it should: its link is open, and it says nothing unasked."""
        return self._direct.is_quiet()

    @property
    def _direct(self) -> SocketLink:
        link = self._session.link
        if not isinstance(link, SocketLink):
            raise AssertionError("a container has no other")  # noqa: TRY004 - cannot be
        return link

    def beside(self, code: str) -> bytes:
        """What some Python prints that runs in the container, but not under the guest.

        It runs as another user, and the guest is not asked. Raises `SandboxUnavailable`.
        """
        command = ["python3", "-I", "-S", "-c", code]
        said, deadline = b"", time.monotonic() + ADOPT_S
        link = self._engine.relay(self.container, command, bundle.RELAY_UID)
        with closing(link), contextlib.suppress(LinkLost):  # its end
            while True:
                said += link.receive(deadline)
        return said

    def hand_off(self) -> Spare:
        """Let go of a sandbox that is a spare; it belongs to whoever takes it."""
        self._conclude(Over(Detached, "it was given away"))
        self._release()
        return Spare(self.container, self._direct)

    @classmethod
    def adopt(cls, container: str, spec: SandboxSpec, *, engine_url: str | None = None) -> Self:
        """Take over a running container, by its id or `place`, from a host that is gone.

        `spec.generation` must not be lower than that host's; from now on that host can do nothing
        in the container, nor remove it. Raises `EngineUnavailable`, or `StaleGeneration` if a
        newer host owns it, or `LinkLost` if it runs but cannot be joined; in all of these it stays
        as it is. Raises `SandboxLost` if it is gone or has stopped, `GuestTimeout` or
        `ProtocolError` if its guest cannot be trusted; then it is removed (a paused one is not).
        """
        with ExitStack() as undo:
            engine = Engine(engine_url)
            undo.callback(engine.close)
            known = _find_running(engine, container, spec)
            link = engine.relay(known, bundle.relay_command(), bundle.RELAY_UID)
            undo.pop_all()
        sandbox = cls(engine, known, Session(link, spec))
        try:
            with sandbox._guarded():
                sandbox._hail()
        except BaseException:
            sandbox.detach()  # what had to be removed is removed
            raise
        return sandbox

    def _hail(self) -> None:
        """Say hello to the guest of another host.

        Some engines leave the link to a container that ends at this moment open for ever.
        """
        deadline = time.monotonic() + ADOPT_S
        nonce = self._session.say_hello(deadline)
        while True:
            try:
                self._session.hear_hello(nonce, min(deadline, time.monotonic() + LOOK_S))
            except GuestTimeout:
                state = self._engine.state(self.container)
                if state is None or not state["Running"]:
                    raise LinkLost("the container has ended") from None
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def close(self) -> None:
        """Remove the container, unless a newer host owns it by now."""
        if self.spec.store and not self._busy.locked():
            with contextlib.suppress(SandboxUnavailable), self._guarded():
                self._session.hello(FENCE_S)
                self._is_surely_ours = True
        super().close()

    def _discard(self) -> None:
        # An engine that is away removes nothing; the container ends by itself, without a host.
        with contextlib.suppress(SandboxUnavailable):
            if not self._is_surely_ours and self._is_taken_over():
                return
            if self._remove is not None:
                self._remove(self.container)
            else:
                self._engine.remove(self.container)

    def _is_taken_over(self) -> bool:
        """Ask whether a newer host owns the container; this one may have slept for hours.

        Only what stands in a store can have been adopted.
        """
        if not self.spec.store:
            return False
        try:
            link = self._engine.relay(self.container, bundle.relay_command(), bundle.RELAY_UID)
            with closing(link):
                Session(link, self.spec).hello(FENCE_S)
        except StaleGeneration:
            return True
        except SandboxUnavailable:
            return False
        return False

    def _release(self) -> None:
        if isinstance(self._at, Engine):
            self._at.close()

    def _how_ended(self) -> str | None:
        """Ask the engine how the container ended."""
        for _ in wait_until(time.monotonic() + ENDING_S):
            if self._over is not None:  # another thread has decided already
                break
            state = self._engine.state(self.container)
            if state is None:
                return "the container was removed from outside"
            if not state["Running"]:
                return _end_in_words(state, self.spec)
        return None


def _find_running(engine: Engine, container: str, spec: SandboxSpec) -> str:
    """Return the full id of a job's running container; one that has stopped is removed."""
    known = engine.inspect(container)
    if known is None:
        raise SandboxLost("the container was removed from outside")
    if not _may_be_of(known["Config"]["Labels"], spec):
        raise SandboxLost(f"the container {container} is not one of job {spec.job}")
    if not known["State"]["Running"]:
        engine.remove(known["Id"])
        raise SandboxLost(_end_in_words(known["State"], spec))
    return str(known["Id"])


def _may_be_of(labels: dict[str, str], spec: SandboxSpec) -> bool:
    """Whether a container was made for a job, or for any job of its store."""
    if "caisson.spare" in labels:
        return labels.get("caisson.store") == spec.store
    return labels.get("caisson.job") == spec.job


def _end_in_words(state: dict[str, Any], spec: SandboxSpec) -> str:
    """Say how a container that does not run has ended."""
    if state["Status"] == "created":
        return "the container was never started"
    return describe_end(
        state["ExitCode"],
        was_out_of_memory=bool(state["OOMKilled"]) and state["ExitCode"] != 0,
        age_s=_age_s(state),
        life_s=spec.limits.max_life_s,
    )


def _age_s(state: dict[str, Any]) -> float:
    """How long a container ran, by the engine's clock."""
    began, ended = (datetime.fromisoformat(state[key]) for key in ("StartedAt", "FinishedAt"))
    return (ended - began).total_seconds()
