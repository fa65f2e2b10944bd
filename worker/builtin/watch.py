"""Ends what runs in a sandbox soon after its job was cancelled, or is another's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.base import Sandbox
from sandbox.errors import SandboxUnavailable
from worker.errors import Handover, LeaseLost

_log = logging.getLogger(__name__)
_POLL_S = 0.1


class Watch:
    """Watches the calls of one job, of which one runs at a time, in a thread for all of them.

    To start a thread for each call would take longer than many a call. Without a call for `idle_s`
    the thread ends; the next call starts another.
    """

    def __init__(self, idle_s: float = 2.0) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._call: tuple[Sandbox, Callable[[], bool]] | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, sandbox: Sandbox, is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Within, cancel what runs in `sandbox` when `is_cancelled` says so.

        When it raises that the job is not ours to work on any more, let go of the sandbox.
        """
        with self._lock:
            self._call = sandbox, is_cancelled
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="cancel", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:  # so that no later call is cancelled in the place of this one
                self._call = None

    def _watch(self) -> None:
        seen_at = time.monotonic()
        while True:
            time.sleep(_POLL_S)
            with self._lock:
                is_last = True
                try:
                    if self._call is not None:
                        seen_at = time.monotonic()
                        self._look(*self._call)
                    is_last = time.monotonic() - seen_at > self._idle_s
                finally:
                    if is_last:
                        self._thread = None
                if is_last:
                    return

    def _look(self, sandbox: Sandbox, is_cancelled: Callable[[], bool]) -> None:
        # Again and again: a guest that has not been told of the call yet ends nothing.
        try:
            if is_cancelled():
                sandbox.cancel()
        except (Handover, LeaseLost):
            self._call = None
            sandbox.detach()
        except SandboxUnavailable as error:  # the call itself meets it too, and says so
            self._call = None
            _log.info("nothing to cancel: %s", error)
