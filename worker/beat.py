"""Celery's beat, which ends when it is told to, whatever it is doing at that moment.

Celery's own handler raises `SystemExit`, and where that meets a publication in the making it is
swallowed with the publication's fault: the signal is lost, and beat goes on for ever.
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery import platforms
from celery.apps.beat import Beat as CeleryBeat


class Beat(CeleryBeat):  # type: ignore[misc]
    """Rings as its schedule says, until SIGTERM or SIGINT."""

    def install_sync_handler(self, service: Any) -> None:  # noqa: ANN401 - the signature is Celery's
        def end(*_: object) -> NoReturn:
            service.stop()
            service.scheduler.max_interval = 0.0  # so that it looks at once whether it is to stop
            raise SystemExit

        platforms.signals.update(SIGTERM=end, SIGINT=end)
