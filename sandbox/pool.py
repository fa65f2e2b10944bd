"""Sandboxes made before they are needed: started, greeted, with heavy libraries loaded.

A spare is a container like any other, with the same limits, which waits for its job under the
generation 0 and has run no call. Whoever takes it says hello with a generation of its own; from
then on it is that one's alone, and it is never given back. What is asked for is a spec; a spare
fits it if the two differ in nothing that a container is made from (`shape_of`).

How many there are follows the demand: as many of each shape as were taken within the last seconds,
at least `LEAST` of one that is expected, none of those that nobody has asked for lately, and never
more than fit into the memory that the pool may use. Making spares comes before loading libraries
into them, which takes a second of CPU time each and is left for when nobody asks for any.

Two threads work, one that makes spares and looks after them, and one that runs errands to the
engine: a spare gets its job's name, a used container is removed. Nobody waits for either.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Self

import psutil

from sandbox.docker import DockerSandbox, Remove, Spare, container_name
from sandbox.engine import Engine
from sandbox.errors import SandboxUnavailable, SpecInvalid
from sandbox.owner import owner
from sandbox.types import MIB, Limits, SandboxSpec

_log = logging.getLogger(__name__)

LIBRARIES = ("numpy", "pandas", "matplotlib.pyplot")
LEAST = 2  # so that one is there while libraries are loaded into the other
SPARE_BYTES = 96 * MIB  # what one takes with these libraries, engine and page tables included
SPARE_S = 1800.0  # it ends by itself after this, and is replaced after half of it
DEMAND_S = 10.0
IDLE_S = 60.0  # a shape that nobody has asked for so long needs no more than its least
FORGET_S = 300.0
QUIET_S = 1.0  # after the last taking there is time to load libraries
LOOK_S = 1.0
FAULT_S = 5.0
ENDING_S = 10.0
LEAST_MEMORY = 256 * MIB  # smaller sandboxes have no room for libraries that nobody asked for
FREE_BYTES = 512 * MIB  # of the host, below which no more are made

_Errand = Callable[[Engine], None]


def shape_of(spec: SandboxSpec) -> SandboxSpec | None:
    """What a container for `spec` is made from, without what is its job's alone.

    None: no spare fits, because mounts are the host's own files, chosen for one job.
    """
    if spec.mounts:
        return None
    usual = Limits()
    hosts_own = {"timeout_s": usual.timeout_s, "read_bytes": usual.read_bytes}
    jobs_own = {"job": "spare", "owner": "", "generation": 0, "preload": ()}
    limits = spec.limits.model_copy(update=hosts_own)
    return spec.model_copy(update={**jobs_own, "limits": limits, "spare_s": SPARE_S})


def moved_in(
    spare: Spare, spec: SandboxSpec, engine_url: str | None, remove: Remove
) -> DockerSandbox | None:
    """Make a spare the sandbox of `spec`; None, and it is removed, if it is of no use after all."""
    try:
        return DockerSandbox.take(spare, spec, engine_url=engine_url, remove=remove)
    except SandboxUnavailable as error:
        _log.info("a spare was of no use: %s", error)
        remove(spare.container)
        return None


@dataclass(eq=False)
class _Waiting:
    """One spare."""

    sandbox: DockerSandbox
    since: float
    is_loaded: bool = False

    def is_good(self, now: float) -> bool:
        return now - self.since < SPARE_S / 2 and self.sandbox.is_quiet


@dataclass(eq=False)
class _Shelf:
    """The spares of one shape, and when such were asked for."""

    shape: SandboxSpec
    is_expected: bool = False
    ready: deque[_Waiting] = field(default_factory=deque)
    asked_at: deque[float] = field(default_factory=lambda: deque(maxlen=256))

    def wanted(self, now: float) -> int:
        least = LEAST if self.is_expected else 0
        lately = sum(1 for at in self.asked_at if now - at < DEMAND_S)
        return max(least, lately, 1 if self._idle_s(now) < FORGET_S else 0)

    def sort_out(self, now: float) -> list[_Waiting]:
        """Take away those that are broken or old, and those that nobody will ask for."""
        good = [waiting for waiting in self.ready if waiting.is_good(now)]
        kept = good[: self.wanted(now)] if self._idle_s(now) > IDLE_S else good
        bad = [waiting for waiting in self.ready if waiting not in kept]
        self.ready = deque(kept)
        return bad

    def best(self, now: float) -> _Waiting | None:
        """Take a good one, with its libraries if there is any such."""
        for waiting in sorted(self.ready, key=lambda one: not one.is_loaded):
            if waiting.is_good(now):
                self.ready.remove(waiting)
                return waiting
        return None

    def _idle_s(self, now: float) -> float:
        return now - self.asked_at[-1] if self.asked_at else float("inf")

    def can_load(self) -> bool:
        return self.shape.limits.memory_bytes >= LEAST_MEMORY


class Pool:
    """Makes and keeps spares; see the module. Use it as a context, or `open` and `close` it.

    Args:
        engine_url: Address of the engine; None: the usual one.
        memory_bytes: What all spares may take together.
        libraries: Modules that are imported in a spare when there is time.
    """

    def __init__(
        self,
        engine_url: str | None = None,
        *,
        memory_bytes: int = 512 * MIB,
        libraries: Sequence[str] = LIBRARIES,
    ) -> None:
        self._engine_url = engine_url
        self._most = memory_bytes // SPARE_BYTES
        self._libraries = tuple(libraries)
        self._shelves: dict[str, _Shelf] = {}
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._fault = ""
        self._taken_at = float("-inf")
        self._threads = [
            threading.Thread(target=self._make, name="making", daemon=True),
            threading.Thread(target=self._run_errands, name="errands", daemon=True),
        ]

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Begin to make spares."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Remove all spares, and what is still to be removed. Safe to call twice."""
        self._stop.set()
        self._wake.set()
        maker, runner = self._threads
        if maker.ident is not None:
            maker.join(ENDING_S)
        with self._lock:
            left = [waiting for shelf in self._shelves.values() for waiting in shelf.ready]
            self._shelves.clear()
        for waiting in left:
            self._throw_away(waiting)
        self._errands.put(None)
        if runner.ident is not None:
            runner.join(ENDING_S)

    def expect(self, spec: SandboxSpec) -> None:
        """Always have spares for what is made like `spec`."""
        shape = shape_of(spec)
        if shape is not None:
            with self._lock:
                self._shelf(shape).is_expected = True
            self._wake.set()

    def take(self, spec: SandboxSpec) -> DockerSandbox | None:
        """A sandbox for `spec` that is ready for calls; None if there is none to be had at once."""
        spare = self.hand_out(spec)
        return moved_in(spare, spec, self._engine_url, self.remove) if spare else None

    def hand_out(self, spec: SandboxSpec) -> Spare | None:
        """Give away a spare for `spec` as it is: to be taken, in whatever process."""
        shape = shape_of(spec)
        if shape is None or self._stop.is_set():
            return None
        now = time.monotonic()
        with self._lock:
            self._taken_at = now
            shelf = self._shelf(shape)
            shelf.asked_at.append(now)
            waiting = shelf.best(now)
        self._wake.set()
        if waiting is None:
            return None
        spare, name = waiting.sandbox.give_away(), container_name(spec)
        self._errands.put(lambda engine: engine.rename(spare.container, name))
        return spare

    def remove(self, container: str) -> None:
        """Have a container removed, later and without waiting for it."""
        self._errands.put(lambda engine: engine.remove(container))

    def count(self) -> tuple[int, int]:
        """How many spares there are, and how many of them have their libraries loaded."""
        with self._lock:
            ready = [waiting for shelf in self._shelves.values() for waiting in shelf.ready]
        return len(ready), sum(waiting.is_loaded for waiting in ready)

    def _shelf(self, shape: SandboxSpec) -> _Shelf:
        return self._shelves.setdefault(shape.model_dump_json(), _Shelf(shape))

    # ---- making

    def _make(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                is_busy = self._tend()
            except SandboxUnavailable as error:  # no engine, no image: later perhaps
                self._say(str(error))
                self._stop.wait(FAULT_S)
                continue
            self._say("")
            if not is_busy:
                self._wake.wait(LOOK_S)

    def _say(self, fault: str) -> None:
        if fault and fault != self._fault:
            _log.warning("no spare sandboxes can be made: %s", fault)
        self._fault = fault

    def _tend(self) -> bool:
        """Do the most urgent thing; False when there is nothing to be done."""
        now = time.monotonic()
        for bad in self._sort_out(now):
            self._throw_away(bad)
        with self._lock:
            lacking = next((s for s in self._shelves.values() if self._lacks(s, now)), None)
        if lacking is not None:
            self._start_one(lacking)
            return True
        return now - self._taken_at > QUIET_S and self._load_one()

    def _lacks(self, shelf: _Shelf, now: float) -> bool:
        total = sum(len(each.ready) for each in self._shelves.values())
        has_room = total < self._most and psutil.virtual_memory().available > FREE_BYTES
        return has_room and len(shelf.ready) < shelf.wanted(now)

    def _sort_out(self, now: float) -> list[_Waiting]:
        with self._lock:
            bad = [waiting for shelf in self._shelves.values() for waiting in shelf.sort_out(now)]
            live = {k: s for k, s in self._shelves.items() if s.ready or s.wanted(now)}
            self._shelves = live
        return bad

    def _throw_away(self, waiting: _Waiting) -> None:
        spare = waiting.sandbox.give_away()
        spare.link.close()
        self.remove(spare.container)

    def _start_one(self, shelf: _Shelf) -> None:
        spec = shelf.shape.model_copy(update={"owner": owner()})
        try:
            sandbox = DockerSandbox.start(spec, engine_url=self._engine_url)
        except SpecInvalid as error:  # whoever asks for it hears so when it is started for them
            _log.info("there are no spares of what cannot be: %s", error)
            with self._lock:
                shelf.is_expected = False
                shelf.asked_at.clear()
            return
        self._put(shelf, _Waiting(sandbox, time.monotonic()))

    def _load_one(self) -> bool:
        """Load the libraries into a spare, which nobody can take meanwhile."""
        with self._lock:
            found = next(self._unloaded(), None)
            if found is None:
                return False
            shelf, waiting = found
            shelf.ready.remove(waiting)
        try:
            waiting.sandbox.preload(self._libraries)
        except SandboxUnavailable as error:
            _log.info("a spare was lost while libraries were loaded: %s", error)
            self._throw_away(waiting)
        else:
            waiting.is_loaded = True
            self._put(shelf, waiting)
        return True

    def _unloaded(self) -> Iterator[tuple[_Shelf, _Waiting]]:
        for shelf in self._shelves.values():
            if self._libraries and shelf.can_load():
                yield from ((shelf, one) for one in shelf.ready if not one.is_loaded)

    def _put(self, shelf: _Shelf, waiting: _Waiting) -> None:
        with self._lock:
            if not self._stop.is_set():
                self._shelf(shelf.shape).ready.append(waiting)
                return
        self._throw_away(waiting)

    # ---- errands to the engine, for which nobody waits

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                with closing(Engine(self._engine_url)) as engine:
                    errand(engine)
            except SandboxUnavailable as error:  # a container left behind is the reaper's then
                _log.warning("an errand to the engine was in vain: %s", error)
