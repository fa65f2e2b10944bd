"""What the two halves of a worker say to each other: the consumer to the keeper, each second."""

from __future__ import annotations

from pydantic import Field

from worker.messages import Record


def process_name(worker: str, pid: int) -> str:
    """Names a process of a worker's pool among all that claim jobs."""
    return f"{worker}.{pid}"


class Lost(Record):
    """A process of the pool that has ended and was waited for, and was not meant to end."""

    pid: int
    how: str


class Pulse(Record):
    """How a consumer stands. As a line it must fit into what a pipe takes whole (4096 bytes)."""

    busy: int
    slots: int
    taken: int
    revoked: tuple[str, ...] = Field((), description="jobs whose task was revoked")
    dropped: tuple[str, ...] = Field((), description="jobs whose pipeline needs not be told")

    lost: tuple[Lost, ...] = ()

    def line(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"
