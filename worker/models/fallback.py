"""Models that stand in for each other: when one is down, the next one is asked.

Each but the last gets a part of the time, so that the next has some left when one does not answer.
One that was down is left alone for a while; only this process knows of it, and only to save time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from worker.errors import ContextTooLong, ModelUnavailable
from worker.messages import Reply
from worker.models.base import Model, Request

_log = logging.getLogger(__name__)
_SHARE = 2 / 3  # of the time that is left
_AWAY_S = 60.0
_SHOWN = 300


class Fallback:
    """Several models as one; a reply says which of them gave it, and why not one before."""

    def __init__(self, models: Sequence[Model], *, away_s: float = _AWAY_S) -> None:
        self.name = models[0].name
        self._models = tuple(models)
        self._away_s = away_s
        self._away: dict[int, float] = {}  # until when, by their places

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        started = time.monotonic()
        faults: list[ModelUnavailable] = []
        order = self._order()
        for nth, place in enumerate(order):
            left_s = max(0.0, started + timeout_s - time.monotonic())
            share_s = left_s if nth == len(order) - 1 else left_s * _SHARE
            try:
                reply = self._models[place].reply(
                    request, timeout_s=share_s, is_cancelled=is_cancelled
                )
            except ContextTooLong:
                raise
            except ModelUnavailable as error:
                faults.append(self._put_away(place, error))
            else:
                self._away.pop(place, None)
                return self._told(reply, place, faults, time.monotonic() - started)
        raise _all_down(faults)

    def close(self) -> None:
        for model in self._models:
            model.close()

    def _order(self) -> list[int]:
        """Those that may be up in their order; after them the others, rather than none."""
        now = time.monotonic()
        return sorted(range(len(self._models)), key=lambda place: self._away.get(place, 0) > now)

    def _put_away(self, place: int, error: ModelUnavailable) -> ModelUnavailable:
        _log.warning("%s is down: %s", self._models[place].name, error)
        self._away[place] = time.monotonic() + self._away_s
        return error

    def _told(
        self, reply: Reply, place: int, faults: Sequence[ModelUnavailable], spent_s: float
    ) -> Reply:
        if not faults:
            return reply
        why = "; ".join(str(fault)[:_SHOWN] for fault in faults)
        remark = f"{self._models[place].name} answered as a fallback: {why}"
        waited_s = reply.waited_s + max(0.0, spent_s - reply.duration_s)
        return reply.model_copy(
            update={
                "remarks": (remark, *reply.remarks),
                "duration_s": spent_s,
                "waited_s": waited_s,
            }
        )


def _all_down(faults: Sequence[ModelUnavailable]) -> ModelUnavailable:
    if len(faults) == 1:
        return faults[0]
    told = "; ".join(str(fault)[:_SHOWN] for fault in faults)
    return ModelUnavailable(f"no model answers: {told}")
