"""The Celery application: its configuration, its queues, and the bells that wake workers.

A bell is a message that says no more than "look for work"; the database knows what there is to do.
So bells are acknowledged before they are acted upon, may be lost or doubled, and say nothing about
anybody's job. Importing this module reads no environment and connects to nothing: the settings are
read when Celery first needs its configuration.

Two queues are ours. Tasks of other applications go to Celery's default queue, from which a Caisson
worker takes nothing unless it is told to.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery import Celery
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.utils.objects import cached_property

from sandbox.errors import SandboxError
from worker import urls
from worker.broker import EmbeddedBroker, broker_address, is_embedded
from worker.errors import BrokerUnavailable, CaissonError, SettingsInvalid
from worker.settings import Settings, load_settings

_log = logging.getLogger(__name__)
BELLS = "caisson"
PIPELINE = "caisson.pipeline"  # beside the bells, so that an end is not told behind a hundred jobs
FOREIGN = "celery"
RING = "worker.tasks.ring"
SWEEP = "worker.tasks.sweep"
RUN = "worker.tasks.run"
COLLECT = "worker.tasks.collect"
# How long Redis waits for the end of a task before it gives it to another worker. Ours that are
# acknowledged late take a moment; what an application of yours does may take longer.
VISIBILITY_TIMEOUT_S = 600.0
_RING_TIMEOUT_S = 3.0
_CONNECT_TIMEOUT_S = 2.0
_MAX_CHILD_TASKS = 500
_MAX_CHILD_KIB = 1024 * 1024  # a process that works on a job takes 100 to 200 MiB


class NotReached(BrokerUnavailable, OperationalError):
    """No broker answers, said to callers of ours as well as to those who know Celery alone."""


class NoWorker(NotReached):
    """There is no broker because no worker runs that would have started it."""


class Caisson(Celery):  # type: ignore[misc]
    """Celery with our own way of stopping a worker."""

    @cached_property
    def Worker(self) -> Any:  # noqa: N802, ANN401 - both are Celery's
        return self.subclass_with_self("worker.consumer:Worker")


app = Caisson("caisson", include=["worker.tasks"])
_in_force: list[Settings] = []


def use(settings: Settings) -> None:
    """Take these settings instead of reading them.

    Once in a process, because Celery reads its configuration once. Raises `RuntimeError` when other
    settings are in force already.
    """
    if _in_force and _in_force[0] != settings:
        raise RuntimeError("this process has other settings already; use() comes before all else")
    _in_force[:] = [settings]


def in_force() -> Settings:
    """The settings of this process, which are read now if nobody has. Raises `SettingsInvalid`."""
    if not _in_force:
        use(load_settings().settings)
    return _in_force[0]


def configuration() -> dict[str, Any]:
    """What Celery is to do, from the settings in force."""
    return configure(in_force())


def configure(settings: Settings) -> dict[str, Any]:
    url, options = connection_of(broker_address(settings))
    is_redis = urls.scheme(url).startswith("redis")
    return {
        "broker_url": url,
        "broker_transport_options": options,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a broker may be away for any time
        # RabbitMQ closes the channel on which a bell has waited for half an hour behind long jobs.
        "broker_channel_error_retry": True,
        "broker_connection_timeout": 5.0,
        "broker_heartbeat": 20,
        "result_backend": result_address(settings),
        "result_expires": 86_400,
        "result_backend_always_retry": True,
        "result_backend_max_retries": 20,
        "redis_socket_connect_timeout": 5.0,
        "redis_socket_timeout": 10.0,
        "redis_retry_on_timeout": True,
        # JSON alone: nothing that comes from a broker is ever unpickled.
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "enable_utc": True,
        "timezone": "UTC",
        "task_default_queue": FOREIGN,
        "task_routes": {RING: {"queue": BELLS}, "worker.tasks.*": {"queue": PIPELINE}},
        "task_queues": [_queue(name) for name in (FOREIGN, BELLS, PIPELINE)],
        "worker_consumer": "worker.consumer:SwiftConsumer",
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": is_redis,  # only there; elsewhere one bell a slot waits
        # A job goes on when the broker is away: it needs none until its end.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Else the slots of jobs that go on are not used again until these have ended.
        "worker_enable_prefetch_count_reduction": False,
        "worker_max_tasks_per_child": _MAX_CHILD_TASKS,
        "worker_max_memory_per_child": _MAX_CHILD_KIB,
        "worker_proc_alive_timeout": 30.0,  # the start of a process on a busy machine
        "worker_send_task_events": True,
        "worker_redirect_stdouts": False,
        "beat_schedule": {
            "sweep": {
                "task": SWEEP,
                "schedule": settings.sweep_s,
                "options": {"queue": PIPELINE, "expires": settings.sweep_s},
            }
        },
    }


def _queue(name: str) -> Queue:
    exchange = Exchange(name, type="direct")  # type: ignore[no-untyped-call]
    return Queue(name, exchange, routing_key=name)  # type: ignore[no-untyped-call]


app.add_defaults(configuration)


def connection_of(url: str) -> tuple[str, dict[str, Any]]:
    """A broker's address as Celery takes it, and how to connect.

    The address may say `?visibility_timeout=SECONDS`. Raises `SettingsInvalid`.
    """
    if not urls.scheme(url).startswith("redis"):
        return url, {"confirm_publish": True}  # else a message may be lost without a word
    place, _, text = url.partition("?")  # urlunsplit would lose the slashes of a socket's address
    query = dict(parse_qsl(text))
    visible_s = _seconds(query.pop("visibility_timeout", str(VISIBILITY_TIMEOUT_S)))
    options = {
        "visibility_timeout": visible_s,
        # Kombu looks for what was left at every n-th interval only.
        "unacked_restore_interval": max(1, min(10, int(visible_s / 2))),
        "unacked_restore_throttle": 1,
        # A connection that is dead without having been closed is given up after 21 s.
        "health_check_interval": 10,
        "socket_timeout": 10.0,
        "socket_connect_timeout": 5.0,
        "socket_keepalive": True,
        "retry_on_timeout": True,
    }
    return "?".join(filter(None, (place, urlencode(query)))), options


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingsInvalid(f"visibility_timeout={text!r} of the broker's URL is no time")
    return seconds


def result_address(settings: Settings) -> str:
    """Where results of pipelines are kept: as set, else a broker that can, else the database."""
    if settings.result_url is not None:
        return settings.result_url.get_secret_value()
    broker, _ = connection_of(broker_address(settings))
    if urls.scheme(broker).startswith("redis"):
        return broker
    if urls.scheme(settings.database) == "sqlite":  # its one writer at a time is for the jobs
        return f"db+sqlite:///{settings.home / 'results.db'}"
    return f"db+{settings.database}"


def shown_broker(settings: Settings) -> str:
    """The broker as it may be said to anybody."""
    if is_embedded(settings):
        return f"of its own, in {settings.home / 'broker'}"
    return urls.without_password(broker_address(settings))


# ---- bells


def connect(settings: Settings) -> Connection:
    """A connection of one's own to the broker of these settings; it is made when it is first used.

    They need not be those in force: nothing else of them matters to what is sent.
    """
    if not _in_force:  # then reading the environment only for that is spared
        use(settings)
    url, options = connection_of(broker_address(settings))
    limits = {"max_retries": 1, "interval_start": 0.1}
    if urls.scheme(url).startswith("redis"):
        limits |= {"socket_connect_timeout": _CONNECT_TIMEOUT_S, "socket_timeout": _RING_TIMEOUT_S}
    made: Connection = app.amqp.Connection(
        url, transport_options={**options, **limits}, connect_timeout=_CONNECT_TIMEOUT_S
    )
    return made


def ring(settings: Settings, times: int = 1) -> None:
    """Wake workers. Raises `BrokerUnavailable` within three seconds; the jobs are safe then."""

    def publish() -> None:
        with connect(settings) as connection:
            _reach(connection)
            publish_bells(connection, times)

    _in_time(publish, settings)


def check_broker(settings: Settings) -> None:
    """Raise `BrokerUnavailable` unless the broker answers within three seconds."""

    def ask() -> None:
        with connect(settings) as connection:
            _reach(connection)
            waiting(connection, BELLS)

    _in_time(ask, settings)


def _reach(connection: Connection) -> None:
    """Make the connection now: left to itself, Kombu tries again after two seconds."""
    connection.ensure_connection(  # type: ignore[no-untyped-call]
        max_retries=1, interval_start=0.1, interval_max=0.1, reraise_as_library_errors=False
    )


def broker_fault(settings: Settings) -> str:
    """Why no worker hears of a job although it may run, in one line; empty: nothing is known."""
    try:
        check_broker(settings)
    except NoWorker:
        return ""
    except BrokerUnavailable as error:
        return str(error)
    return ""


def publish_bells(connection: Connection, times: int) -> None:
    for _ in range(times):
        app.send_task(
            RING,
            queue=BELLS,
            connection=connection,
            ignore_result=True,
            delivery_mode=1,  # one that is lost is rung again, so the disk need not be waited for
            retry=False,
        )


def waiting(connection: Connection, queue: str) -> int:
    """How many messages of a queue nobody has taken yet."""
    with connection.channel() as channel:  # type: ignore[no-untyped-call]
        try:
            return int(channel.queue_declare(queue=queue, passive=True).message_count)
        except connection.channel_errors:  # there is none: nothing was ever sent
            return 0


@contextmanager
def lenient(on_failure: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within, a broker may fail, which is only logged: the sweep sends again what was not sent."""
    try:
        yield
    except (CaissonError, SandboxError):
        raise
    except Exception as error:  # noqa: BLE001 - every driver has its own, and all mean the same
        _log.warning("the broker cannot be reached: %s", error)
        on_failure()


def _in_time(work: Callable[[], None], settings: Settings) -> None:
    """Do it in a thread that may be left behind: drivers have too many timeouts of their own."""
    _check_embedded(settings)
    failures: list[Exception] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - every driver has its own, and all mean the same
            failures.append(error)

    thread = threading.Thread(target=attempt, name="bell", daemon=True)
    thread.start()
    thread.join(_RING_TIMEOUT_S)
    if thread.is_alive():
        raise _not_reached(settings, f"no answer within {_RING_TIMEOUT_S:g} s")
    if failures:
        _check_embedded(settings)  # it may just have ended
        raise _not_reached(settings, str(failures[0]) or type(failures[0]).__name__)


def _check_embedded(settings: Settings) -> None:
    """Raise `NotReached` for a broker of our own that takes no messages."""
    if not is_embedded(settings):
        return
    fault = EmbeddedBroker(settings.home).fault()
    if fault is None:
        raise NoWorker(
            f"no worker runs at {settings.home}, and so no broker; start a worker: "
            "caisson worker; or set CAISSON_BROKER_URL"
        )
    if fault:
        raise NotReached(fault)


def _not_reached(settings: Settings, why: str) -> NotReached:
    secret = urlsplit(broker_address(settings)).password
    why = " ".join((why.replace(secret, "***") if secret else why).split())
    return NotReached(f"the broker {shown_broker(settings)} cannot be reached: {why}")
