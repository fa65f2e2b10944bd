"""The pipes into which all that runs writes, read for as long as anyone holds their other end."""

from __future__ import annotations

import selectors

from .capture import Capture

MAX_RETIRED = 32


class Outputs:
    """Opens captures, and reads them as the selector tells."""

    def __init__(
        self, selector: selectors.BaseSelector, workspace: str, limit: int, spill_limit: int
    ) -> None:
        self._selector = selector
        self._workspace = workspace
        self._limit = limit
        self._spill_limit = spill_limit
        self._retired: list[Capture] = []

    def open(self, number: int) -> Capture:
        """Open a pipe, first for the output of call `number`; raises OSError."""
        capture = Capture(self._workspace, self._limit, self._spill_limit)
        capture.begin(number)
        self._selector.register(
            capture.read_fd, selectors.EVENT_READ, lambda _events: self._on_output(capture)
        )
        return capture

    def retire(self, capture: Capture) -> None:
        """Read on while children in the background write, so that they neither block nor die."""
        capture.retire()
        self._retired.append(capture)
        if capture.has_ended:
            self.close(capture)
        for old in self._retired[:-MAX_RETIRED]:
            self.close(old)

    def close(self, capture: Capture) -> None:
        """Read no more; who still writes meets a closed pipe."""
        if capture in self._retired:
            self._retired.remove(capture)
        self._unwatch(capture)
        capture.close()

    def _on_output(self, capture: Capture) -> None:
        if capture.read() == 0:
            self._unwatch(capture)
            if capture in self._retired:
                self.close(capture)

    def _unwatch(self, capture: Capture) -> None:
        if capture.read_fd in self._selector.get_map():
            self._selector.unregister(capture.read_fd)
