"""The contract of a model: one request, one reply, within one deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from worker.messages import Message, Record, Reply, Wire

TOKENS_PER_CHAR = 0.3  # English and code are nearer 0.25; a guess must be too high


class Request(Record):
    """What a model is asked."""

    messages: tuple[Message, ...]
    tools: tuple[Wire, ...] = ()
    max_output_tokens: int = 4096
    turn: int = 0  # how many replies the job has already
    is_summary: bool = False  # beside the job's turns: never recorded, nor in a recording

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)


@runtime_checkable
class Model(Protocol):
    """Something that answers.

    The one owner of retries: whoever calls `reply` does not try again.
    """

    @property
    def name(self) -> str:
        """What the endpoint calls it."""

    def reply(
        self, request: Request, *, timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> Reply:
        """Answer within `timeout_s`, all tries and waiting included.

        The reply is normal: calls have names and text arguments, reasoning is apart from the
        content, a reply that was cut off says so. Raises `ModelUnavailable` (see its kinds),
        `Cancelled` soon after `is_cancelled` says so, and `Stop` if there can be no more replies.
        """

    def close(self) -> None:
        """Let go of connections and files. Safe to call twice."""
