"""A lease: kept alive while it is held, judged by the holder's own clock, given up in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from worker.errors import Handover, LeaseLost, StoreUnavailable
from worker.lease import Lease, clock
from worker.messages import Job
from worker.store.memory import MemoryStore

LEASE_S = 1.5


class Away(MemoryStore):
    """A store that can be out of reach."""

    is_away = False

    def renew(self, job_id, **named):
        if self.is_away:
            raise StoreUnavailable("away")
        super().renew(job_id, **named)


@pytest.fixture
def store():
    store = Away()
    store.create(Job(id="j", goal="g"))
    return store


def hold(store, lease_s=LEASE_S, **options):
    asked_at = clock()
    claim = store.claim("j", "one", lease_s)
    return Lease(store, claim, lease_s, asked_at, **options)


def check_for(lease, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lease.check()
        time.sleep(0.01)


def test_a_lease_is_renewed_for_as_long_as_it_is_held(store):
    with hold(store) as lease:
        time.sleep(2.5 * LEASE_S)
        lease.check()
        assert store.get("j").is_held
        assert not lease.is_cancelled()
    (attempt,) = store.attempts("j")
    assert attempt.figures["rss_bytes"] > 2**20


def test_a_lease_that_is_left_runs_out(store):
    with hold(store):
        pass
    time.sleep(1.2 * LEASE_S)
    assert not store.get("j").is_held


def test_a_store_that_is_away_for_a_moment_is_survived(store):
    with hold(store) as lease:
        store.is_away = True
        time.sleep(0.4 * LEASE_S)
        lease.check()
        store.is_away = False
        time.sleep(1.5 * LEASE_S)
        lease.check()


def test_a_store_that_stays_away_ends_the_lease_before_another_can_have_it(store):
    with hold(store) as lease:
        store.is_away = True
        deadline = time.monotonic() + 2 * LEASE_S
        while store.get("j").is_held:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        with pytest.raises(LeaseLost):
            lease.check()


def test_a_job_that_another_has_is_known_to_be_lost(store):
    with hold(store, 24.0) as lease:
        store._entries["j"].lease_until = 0.0  # the store's clock has jumped
        store.claim("j", "two", 60)
        with pytest.raises(LeaseLost):  # its own would not be over yet
            check_for(lease, 12)


def test_a_request_to_cancel_is_seen_within_a_second(store):
    with hold(store, 60.0) as lease:
        assert not lease.is_cancelled()
        began = time.monotonic()
        store.request_cancel("j")
        while not lease.is_cancelled():
            assert time.monotonic() - began < 1
            time.sleep(0.01)


def test_a_worker_that_drains_is_told_wherever_it_asks(store):
    with hold(store, is_draining=lambda: True) as lease:
        lease.check()  # what was begun may still be written
        with pytest.raises(Handover):
            lease.is_cancelled()


STOPPED = """
import sys, time
from worker.lease import Lease, clock
from worker.messages import Job
from worker.store.memory import MemoryStore
store = MemoryStore(clock=lambda: 0.0)  # a store whose clock stands still never lets go
store.create(Job(id="j", goal="g"))
lease = Lease(store, store.claim("j", "one", 1.0), 1.0, clock())
lease.check()
print("held", flush=True)
sys.stdin.readline()
try:
    lease.check()
except Exception as error:
    print(type(error).__name__)
"""


def test_a_process_that_was_stopped_past_its_lease_knows_it_at_once():
    command = [sys.executable, "-c", STOPPED]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate("\n", timeout=10)[0] == "LeaseLost\n"
