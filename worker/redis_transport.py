"""Kombu's Redis transport, without the read that stops a consumer for good.

When the server closes the connection on which a worker listens for remote control, redis-py makes
a new one inside the very read that found out, and goes on to wait there for a message, without a
limit: the loop of the consumer stands still, until somebody sends a control command. (Seen with
Celery 5.7, kombu 5.7 and redis 8.1 after `CLIENT KILL TYPE pubsub`; the reports of workers that
are up and take no more tasks after Redis was restarted are many.)
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kombu import transport
from kombu.transport import redis
from kombu.utils.objects import cached_property

_READ_S = 1.0  # for a message of which only a part is there


class Channel(redis.Channel):
    """A channel that never waits for a message without a limit."""

    @cached_property
    def subclient(self) -> Any:  # noqa: ANN401 - redis-py's, or its subclass
        made = super().subclient
        made.parse_response = partial(made.parse_response, block=False, timeout=_READ_S)
        return made


class Transport(redis.Transport):
    """See this module."""

    Channel = Channel


def install() -> None:
    """Let all Redis connections of this process that are made from now on be such."""
    for scheme in ("redis", "rediss"):
        transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
        transport._transport_cache.clear()  # noqa: SLF001 - there is no other way
