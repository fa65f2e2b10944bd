"""Models for parts of a job: one that sets its course, one that works, one that sums up.

Which of them answers follows from the request alone, so that a job which moves to another worker
goes on with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable

from worker.messages import Reply
from worker.models.base import Model, Request


class Roles:
    """A model that hands each request to the one it is for."""

    def __init__(self, worker: Model, *, planner: Model, summariser: Model) -> None:
        self.name = worker.name
        self._worker = worker
        self._planner = planner
        self._summariser = summariser

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        if request.is_summary:
            model = self._summariser
        else:
            model = self._planner if request.turn == 0 else self._worker
        return model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)

    def close(self) -> None:
        for model in (self._worker, self._planner, self._summariser):
            model.close()


class Summariser:
    """What is asked of it is a summary, for which a model may have another one."""

    def __init__(self, model: Model, name: str) -> None:
        self.name = name
        self._model = model

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        asked = request.model_copy(update={"is_summary": True})
        return self._model.reply(asked, timeout_s=timeout_s, is_cancelled=is_cancelled)

    def close(self) -> None:
        self._model.close()
