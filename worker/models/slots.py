"""At most so many requests at a time to one endpoint, from all processes of this host.

A slot is a file with a lock. The kernel frees the lock when its process dies, however it dies, so
no slot is ever lost, and nobody has to count.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.errors import Cancelled, ModelTimeout, ModelUnavailable
from worker.models.waiting import Patience
from worker.urls import without_password

_POLL_S = 0.05


class Slots:
    """The slots of one endpoint, in a folder that all processes of this host share."""

    def __init__(self, folder: Path, endpoint: str, count: int) -> None:
        self._folder = folder
        self._key = hashlib.sha256(endpoint.encode()).hexdigest()[:16]
        self._count = count
        self._address = without_password(endpoint.partition("?")[0])

    @contextmanager
    def held(self, patience: Patience) -> Iterator[None]:
        """Wait for a slot and hold it.

        Raises `Cancelled`, `ModelTimeout` when there is none in time, and `ModelUnavailable` for a
        folder that cannot be used.
        """
        slot = self._take(patience)
        try:
            yield
        finally:
            fcntl.flock(slot, fcntl.LOCK_UN)  # also for copies that a fork has made
            os.close(slot)

    def _take(self, patience: Patience) -> int:
        while True:
            if patience.is_cancelled():
                raise Cancelled
            if (slot := self._free()) is not None:
                return slot
            if patience.left_s <= 0:
                raise ModelTimeout(
                    f"none of the {self._count} slots for requests to {self._address} became free:"
                    " raise max_concurrent, or model_timeout_s to wait longer"
                )
            patience.wait(min(patience.left_s, _POLL_S * random.uniform(0.5, 1.5)))  # noqa: S311

    def _free(self) -> int | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for number in range(self._count):
                if (slot := _locked(self._folder / f"{self._key}-{number}")) is not None:
                    return slot
        except OSError as error:
            why = f"{self._folder} cannot hold slots for requests (max_concurrent, data_dir)"
            raise ModelUnavailable(f"{why}: {error.strerror}") from error
        return None


def _locked(path: Path) -> int | None:
    """The file, locked by us; None while another has it."""
    slot = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(slot)
        return None
    except BaseException:
        os.close(slot)
        raise
    return slot
