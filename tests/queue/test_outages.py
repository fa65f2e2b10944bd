"""A worker whose broker goes away, comes back, or forgets everything takes messages again."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack

import pytest

from tests.queue.conftest import Place, eventually
from tests.services import RabbitServer
from worker.messages import Status

TINY = "x = 1"
BUSY = "import time\ntime.sleep(0.3)"


def submit_many(place, number):
    return [place.submit(BUSY) for _ in range(number)]


def all_over(place, jobs):
    return all(place.is_over(job) for job in jobs)


def has_claimed_once(place, jobs):
    return all(len(place.store.attempts(job)) == 1 for job in jobs)


@pytest.fixture(scope="module")
def settled(tmp_path_factory, redis_server):
    """A worker for several tests, and its place."""
    with ExitStack() as stack:
        url = redis_server.database()
        place = Place(tmp_path_factory.mktemp("settled"), stack, broker_url=url)
        place.worker()
        yield place


def test_cut_connections_under_load_lose_nothing(settled, redis_server):
    jobs = submit_many(settled, 8)
    with redis_server.client() as client:
        for _ in range(4):
            time.sleep(0.5)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually(lambda: all_over(settled, jobs), 40)
    assert has_claimed_once(settled, jobs)
    assert settled.finished(settled.submit(TINY), 10)


def test_a_cut_line_of_remote_control_does_not_stop_the_consumer(settled, redis_server):
    with redis_server.client() as client:
        for _ in range(3):
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            job = settled.finished(settled.submit(TINY), 10)
            assert job.status is Status.SUCCEEDED


def test_a_broker_that_forgets_everything_under_load_loses_no_job(settled, redis_server):
    jobs = submit_many(settled, 8)
    with redis_server.client() as client:
        for _ in range(3):
            time.sleep(0.5)
            client.flushall()
    eventually(lambda: all_over(settled, jobs), 40)
    assert has_claimed_once(settled, jobs)


@pytest.mark.servers("redis")
def test_jobs_go_on_while_the_broker_is_away_and_new_ones_are_found_when_it_is_back(
    place_with, redis_server
):
    place = place_with(broker_url=redis_server.database())
    place.worker()
    long = place.submit("import time\ntime.sleep(4)")
    eventually(lambda: place.store.get(long).is_held)
    redis_server.kill()
    later = place.submit(TINY)  # its bell is lost
    place.finished(long, 20)
    assert not place.is_over(later)
    redis_server.start()
    place.finished(later, 8)
    assert has_claimed_once(place, [long, later])


def test_a_job_that_takes_longer_than_redis_waits_runs_once(place_with, redis_url):
    place = place_with(broker_url=f"{redis_url}?visibility_timeout=1")
    place.worker("--concurrency", "1")
    jobs = [place.submit("import time\ntime.sleep(2.5)"), place.submit(TINY)]
    eventually(lambda: all_over(place, jobs))
    assert has_claimed_once(place, jobs)


@pytest.mark.servers("rabbit")
def test_a_job_that_rabbit_does_not_wait_for_runs_once_and_a_restart_is_survived(place_with):
    with RabbitServer(consumer_timeout_s=1) as server:
        place = place_with(broker_url=server.url)
        worker = place.worker("--concurrency", "1")
        first = worker.consumer
        long = place.submit("import time\ntime.sleep(3)")
        eventually(lambda: place.store.get(long).is_held)
        later = [place.submit(TINY) for _ in range(2)]  # their bells wait in the consumer
        eventually(lambda: all_over(place, [long, *later]))
        assert has_claimed_once(place, [long, *later])
        worker.said("PRECONDITION_FAILED")
        server.kill()
        last = place.submit(TINY)  # its bell is lost
        server.start()
        place.finished(last, 40)
        assert worker.consumer == first


def test_the_check_fails_for_a_worker_that_does_not_consume_and_passes_for_a_busy_one(place):
    worker = place.worker()
    long = [place.submit("import time\ntime.sleep(4)") for _ in range(2)]
    eventually(lambda: all(place.store.get(job).is_held for job in long))
    assert place.check()[0] == 0
    consumer = worker.consumer
    consumer.suspend()  # its pool works on, its loop stands still
    try:
        time.sleep(1)
        code, said = eventually(lambda: (found := place.check())[0] and found, 30, 1.0)
    finally:
        consumer.resume()
    assert code == 5
    assert "no worker on" in said
    eventually(lambda: place.check()[0] == 0, 15, 0.5)


def test_a_consumer_that_dies_is_started_again(place):
    worker = place.worker()
    job = place.submit(BUSY)
    eventually(lambda: place.store.get(job).is_held)
    os.kill(worker.consumer.pid, signal.SIGKILL)
    worker.said("the consumer has ended (-9)")
    worker.said("ready")
    place.finished(job)
