"""Sandboxes made before they are needed: started, greeted, with heavy libraries loaded.

A spare is a container like any other, with the same limits, which waits for its job under the
generation 0 and has run no call. Whoever takes it says hello with a generation of its own; from
then on it is that one's alone, and it is never given back.

How many there are follows the demand (`sandbox.stock`), within the memory that the pool may use.
Making spares comes before loading libraries into them, which takes a second of CPU time each and is
left for when nobody asks for any.

Two threads work, one that makes spares and looks after them, and one that runs errands to the
engine: a spare gets its job's name, a used container is removed. Nobody waits for either.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Self

import psutil

from sandbox.docker import DockerSandbox, Remove, Spare
from sandbox.engine import Engine
from sandbox.errors import SandboxError, SandboxUnavailable, SpecInvalid
from sandbox.opening import container_name
from sandbox.owner import owner
from sandbox.stock import Idle, Stock, shape_of
from sandbox.types import MIB, SandboxSpec

_log = logging.getLogger(__name__)

LIBRARIES = ("numpy", "pandas", "matplotlib.pyplot")
SPARE_BYTES = 96 * MIB  # what one takes with these libraries, engine and page tables included
QUIET_S = 1.0  # after the last taking there is time to load libraries
LOOK_S = 1.0
FAULT_S = 5.0
IMAGE_S = 10.0  # between two looks at whether an image was built anew
ENDING_S = 3.0
FREE_BYTES = 512 * MIB  # of the host, below which no more are made

_Errand = Callable[[Engine], None]


def moved_in(
    spare: Spare, spec: SandboxSpec, engine_url: str | None, remove: Remove
) -> DockerSandbox | None:
    """Make a spare the sandbox of `spec`; None, and it is removed, if it is of no use after all."""
    try:
        return DockerSandbox.take(spare, spec, engine_url=engine_url, remove=remove)
    except SandboxUnavailable as error:
        _log.info("a spare was of no use: %s", error)
    try:
        remove(spare.container)
    except SandboxUnavailable as error:  # it ends by itself, and is the reaper's then
        _log.warning("container %s was not removed: %s", spare.container[:12], error)
    return None


class Pool:
    """Makes and keeps spares; see the module. Use it as a context, or `open` and `close` it, once.

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
        self._stocks: dict[str, Stock[DockerSandbox]] = {}
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._fault = ""
        self._taken_at = self._images_at = float("-inf")
        self._threads = (
            threading.Thread(target=self._make, name="making", daemon=True),
            threading.Thread(target=self._run_errands, name="errands", daemon=True),
        )

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
        """Remove all spares, and what is still to be removed, as far as seconds allow.

        What is left over ends by itself. Safe to call twice.
        """
        self._stop.set()
        self._wake.set()
        for thread in self._threads:  # the first to end has the second end
            if thread.ident is not None:
                thread.join(ENDING_S)

    def expect(self, spec: SandboxSpec) -> None:
        """Always have spares for what is made like `spec`."""
        shape = shape_of(spec)
        if shape is not None:
            with self._lock:
                self._stock(shape).is_expected = True
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
            stock = self._stock(shape)
            stock.asked_at.append(now)
            idle = stock.best(now)
        self._wake.set()
        if idle is None:
            return None
        spare, name = idle.sandbox.hand_off(), container_name(spec)
        self._errands.put(lambda engine: engine.rename(spare.container, name))
        return spare

    def remove(self, container: str) -> None:
        """Have a container removed, later and without waiting for it."""
        self._errands.put(lambda engine: engine.remove(container))

    def count(self) -> tuple[int, int]:
        """How many spares there are, and how many of them have their libraries loaded."""
        with self._lock:
            ready = [idle for stock in self._stocks.values() for idle in stock.ready]
        return len(ready), sum(idle.is_loaded for idle in ready)

    def _stock(self, shape: SandboxSpec) -> Stock[DockerSandbox]:
        return self._stocks.setdefault(shape.model_dump_json(), Stock(shape))

    # ---- making

    def _make(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            pause_s = FAULT_S
            try:
                pause_s = self._tend()
                self._say("")
            except SandboxError as error:  # no engine, no image: later perhaps
                self._say(str(error))
            except Exception:  # noqa: BLE001 - a fault of ours costs spares, and no job
                _log.exception("making spare sandboxes failed")
            if pause_s == FAULT_S:
                self._stop.wait(pause_s)
            elif pause_s:
                self._wake.wait(pause_s)
        with self._lock:
            left = [idle for stock in self._stocks.values() for idle in stock.ready]
            self._stocks.clear()
        for idle in left:
            self._throw_away(idle)
        self._errands.put(None)

    def _say(self, fault: str) -> None:
        if fault and fault != self._fault:
            _log.warning("no spare sandboxes can be made: %s", fault)
        self._fault = fault

    def _tend(self) -> float:
        """Do the most urgent thing; returns how long to pause, which is longest after a loss."""
        now = time.monotonic()
        for idle in self._outdated(now):
            self._throw_away(idle)
        bad = self._sort_out(now)
        are_lost = [not idle.sandbox.is_quiet for idle in bad]
        for idle in bad:
            self._throw_away(idle)
        if any(are_lost):  # what has ended these may end the next as well
            _log.warning("spare sandboxes have ended by themselves: %d", sum(are_lost))
            return FAULT_S
        with self._lock:
            lacking = next((s for s in self._stocks.values() if self._lacks(s, now)), None)
        if lacking is not None:
            self._start_one(lacking)
            return 0.0
        return self._load_one() if now - self._taken_at > QUIET_S else LOOK_S

    def _lacks(self, stock: Stock[DockerSandbox], now: float) -> bool:
        total = sum(len(each.ready) for each in self._stocks.values())
        has_room = total < self._most and psutil.virtual_memory().available > FREE_BYTES
        return has_room and len(stock.ready) < stock.wanted(now)

    def _outdated(self, now: float) -> list[Idle[DockerSandbox]]:
        """Take away, now and then, the spares of an image whose name means another one by now."""
        if now - self._images_at < IMAGE_S:
            return []
        self._images_at = now
        with self._lock:
            stocks = list(self._stocks.values())
        return [idle for stock in stocks for idle in self._of_old_image(stock)]

    def _of_old_image(self, stock: Stock[DockerSandbox]) -> list[Idle[DockerSandbox]]:
        with closing(Engine(self._engine_url)) as engine:
            image = str(engine.image(stock.shape.image)["Id"])
        with self._lock:
            old = list(stock.ready) if stock.image not in {"", image} else []
            stock.image = image
            if old:
                stock.ready.clear()
        return old

    def _sort_out(self, now: float) -> list[Idle[DockerSandbox]]:
        with self._lock:
            bad = [idle for stock in self._stocks.values() for idle in stock.sort_out(now)]
            live = {k: s for k, s in self._stocks.items() if s.ready or s.wanted(now)}
            self._stocks = live
        return bad

    def _throw_away(self, idle: Idle[DockerSandbox]) -> None:
        spare = idle.sandbox.hand_off()
        spare.link.close()
        self.remove(spare.container)

    def _start_one(self, stock: Stock[DockerSandbox]) -> None:
        if not stock.image:
            self._of_old_image(stock)
        spec = stock.shape.model_copy(update={"owner": owner()})
        try:
            sandbox = DockerSandbox.start(spec, engine_url=self._engine_url)
        except SpecInvalid as error:  # whoever asks for it hears so when it is started for them
            _log.info("there are no spares of what cannot be: %s", error)
            with self._lock:
                stock.is_expected = False
                stock.asked_at.clear()
            return
        try:
            sandbox.files()  # it has said hello, and may still be loading itself
        except BaseException:
            sandbox.close()
            raise
        with self._lock:
            stock.ready.append(Idle(sandbox, time.monotonic()))

    def _load_one(self) -> float:
        """Load the libraries into a spare, which nobody can take meanwhile; returns the pause."""
        with self._lock:
            found = next(self._unloaded(), None)
            if found is None:
                return LOOK_S
            stock, idle = found
            stock.ready.remove(idle)
        try:
            idle.sandbox.preload(self._libraries)
        except SandboxUnavailable as error:
            self._throw_away(idle)
            self._note_loss(stock, error)
            return FAULT_S
        idle.is_loaded, stock.losses = True, 0
        with self._lock:
            stock.ready.append(idle)
        return 0.0

    def _note_loss(self, stock: Stock[DockerSandbox], error: SandboxUnavailable) -> None:
        _log.info("a spare was lost while libraries were loaded: %s", error)
        stock.losses += 1
        if not stock.can_load():
            _log.warning("libraries are no longer loaded into such spares: %s", error)

    def _unloaded(self) -> Iterator[tuple[Stock[DockerSandbox], Idle[DockerSandbox]]]:
        for stock in self._stocks.values():
            if self._libraries and stock.can_load():
                yield from ((stock, idle) for idle in stock.ready if not idle.is_loaded)

    # ---- errands to the engine, for which nobody waits

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                with closing(Engine(self._engine_url)) as engine:
                    errand(engine)
            except SandboxError as error:  # a container left behind is the reaper's then
                _log.warning("an errand to the engine was in vain: %s", error)
            except Exception:  # noqa: BLE001 - a fault of ours leaves a container, and no job
                _log.exception("an errand to the engine failed")
