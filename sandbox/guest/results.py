"""What became of each execution, by id, so that no id ever runs twice."""

from __future__ import annotations

from collections.abc import Iterable

from .wire import Frame

MAX_STORED = 64


class Results:
    """Keeps each result until the host acknowledges it, and each id for ever."""

    def __init__(self) -> None:
        self._stored: dict[str, Frame] = {}
        self._acknowledged: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether the host has left so many results unacknowledged that no more may begin."""
        return len(self._stored) >= MAX_STORED

    @property
    def finished(self) -> list[str]:
        """Ids of the results that wait to be acknowledged."""
        return list(self._stored)

    def keep(self, execution_id: str, frame: Frame) -> None:
        """Store a result."""
        self._stored[execution_id] = frame

    def get(self, execution_id: str) -> Frame | None:
        """The stored result, if there is one."""
        return self._stored.get(execution_id)

    def is_acknowledged(self, execution_id: str) -> bool:
        """Whether the host has taken this result and may not have it run again."""
        return execution_id in self._acknowledged

    def acknowledge(self, execution_ids: Iterable[str]) -> None:
        """Let go of results that the host has stored."""
        for execution_id in execution_ids:
            if self._stored.pop(execution_id, None) is not None:
                self._acknowledged.add(execution_id)
