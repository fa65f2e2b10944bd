"""Ringing: quick, bounded, and without a word of passwords; importing does nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from worker.broker import EmbeddedBroker
from worker.celery_app import (
    BELLS,
    PIPELINE,
    configure,
    connect,
    connection_of,
    ring,
    waiting,
)
from worker.errors import BrokerUnavailable, SettingsInvalid
from worker.settings import Settings

PROMPT_S = 10.0  # on a busy machine; a driver left to itself tries for a minute or for ever


@pytest.fixture
def silent_port():
    """A port that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_a_broker_that_is_not_there_is_named_without_its_password(kind, closed_port):
    settings = Settings(broker_url=f"{kind}://me:s3cret@127.0.0.1:{closed_port}/0")
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        ring(settings)
    assert time.monotonic() - started < PROMPT_S
    assert f"{kind}://me:***@127.0.0.1:{closed_port}/0 cannot be reached: " in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_a_broker_that_never_answers_does_not_hold_up_whoever_rings(kind, silent_port):
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=r"no answer|time"):
        ring(Settings(broker_url=f"{kind}://127.0.0.1:{silent_port}/0"))
    assert time.monotonic() - started < PROMPT_S


def test_without_a_worker_there_is_no_embedded_broker_and_the_command_is_named(tmp_path):
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="start a worker: caisson worker"):
        ring(Settings(data_dir=tmp_path))
    assert time.monotonic() - started < PROMPT_S


def check_bells(settings):
    ring(settings, 3)
    with connect(settings) as connection:
        assert waiting(connection, BELLS) == 3
        assert waiting(connection, PIPELINE) == 0


def test_bells_are_counted_in_an_embedded_broker(tmp_path):
    broker = EmbeddedBroker(tmp_path)
    broker.open()
    try:
        check_bells(Settings(data_dir=tmp_path))
    finally:
        broker.close()


def test_bells_are_counted_in_redis(redis_url):
    check_bells(Settings(broker_url=redis_url))


def test_bells_are_counted_in_rabbit(rabbit_url):
    check_bells(Settings(broker_url=rabbit_url))


def test_bells_after_a_flush_find_their_queue(redis_server, redis_url):
    ring(Settings(broker_url=redis_url))
    with redis_server.client() as client:
        client.flushall()
    check_bells(Settings(broker_url=redis_url))


def test_importing_reads_no_environment_and_connects_to_nothing():
    environment = {**os.environ, "CAISSON_BROKER_URL": "nonsense", "CAISSON_NO_SUCH": "1"}
    code = "import worker.celery_app, worker.tasks; print('fine')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "fine\n"


def test_the_time_that_redis_waits_for_a_task_can_be_set_in_its_address():
    url, options = connection_of("redis://:p%40ss@host:6379/3?visibility_timeout=5&ssl=1")
    assert url == "redis://:p%40ss@host:6379/3?ssl=1"
    assert options["visibility_timeout"] == 5.0
    assert connection_of("redis://host/0")[1]["visibility_timeout"] == 600.0
    with pytest.raises(SettingsInvalid, match="visibility_timeout='soon'"):
        connection_of("redis://host/0?visibility_timeout=soon")


def test_nothing_but_json_is_taken(tmp_path):
    made = configure(Settings(data_dir=tmp_path))
    assert made["accept_content"] == ["json"]
    assert made["task_serializer"] == made["result_serializer"] == "json"
    assert made["worker_prefetch_multiplier"] == 1
