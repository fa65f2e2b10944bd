"""What a worker's outer half does when something that it needs is away for a while."""

from __future__ import annotations

import fcntl
import socket
import threading

import pytest

from worker.broker import EmbeddedBroker
from worker.errors import JobUnknown, StoreUnavailable
from worker.keeper import Deafness, Keeper, Wanted
from worker.messages import Order
from worker.pulse import Lost, Pulse
from worker.runner import new_job
from worker.settings import Settings
from worker.store.memory import MemoryStore

LAST_S = 1.5  # for so long the ending broker says that it is there


def test_what_cannot_be_done_now_is_done_later():
    wanted, done = Wanted(), []

    def fail(job_id):
        done.append(f"failed {job_id}")
        raise StoreUnavailable("the database is locked")

    def work(job_id):
        done.append(job_id)
        if job_id == "unknown":
            raise JobUnknown("there is no such job")

    wanted.add(("one", "unknown", "two", "one"))
    with pytest.raises(StoreUnavailable):
        wanted.see_to(fail)
    wanted.see_to(work)
    wanted.see_to(work)
    assert done[0] == "failed one"
    assert sorted(done[1:]) == ["one", "two", "unknown"]


def test_what_is_wanted_again_while_it_is_done_is_done_again():
    wanted, done = Wanted(), []

    def work(job_id):
        done.append(job_id)
        if len(done) == 1:
            wanted.add((job_id,))

    wanted.add(("one",))
    wanted.see_to(work)
    assert done == ["one", "one"]


@pytest.fixture
def ending_broker(tmp_path):
    """A broker of another worker that still answers to whoever looks, and is gone in a moment."""
    folder = tmp_path / "broker"
    folder.mkdir()
    gone = threading.Event()
    lock, server = (folder / "lock").open("w"), socket.socket(socket.AF_UNIX)
    fcntl.flock(lock, fcntl.LOCK_EX)
    server.bind(str(folder / "broker.sock"))
    server.listen()

    def serve():
        while not gone.is_set():
            link, _ = server.accept()
            with link:
                link.settimeout(1)
                if link.recv(64).startswith(b"PING"):
                    link.sendall(b"+PONG\r\n")

    def end():
        gone.set()
        lock.close()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(folder / "broker.sock"))
        serving.join()
        server.close()

    serving = threading.Thread(target=serve)
    serving.start()
    ending = threading.Timer(LAST_S, end)
    ending.start()
    yield EmbeddedBroker(tmp_path)
    ending.join()


def test_a_worker_that_is_started_while_another_ends_waits_for_its_broker_to_be_gone(
    tmp_path, ending_broker, capfd
):
    assert ending_broker.is_answering()
    settings = Settings(data_dir=tmp_path, driver="process", allow_unisolated=True)
    with Keeper(settings, MemoryStore(), "w", 1) as keeper:
        assert keeper.broker.pid is not None
        assert ending_broker.is_answering()
    assert not capfd.readouterr().err


def test_a_fault_is_found_in_the_consumer_that_has_it_and_in_no_other():
    stuck = Pulse(busy=0, slots=1, taken=3)
    old, new = Deafness(), Deafness()
    assert [old.judge(stuck, 2, now) for now in (0.0, 10.0, 30.0)] == [0.0, 0.0, 20.0]
    assert new.judge(stuck, 2, 31.0) == 0.0


def test_a_pulse_fits_into_what_a_pipe_takes_whole():
    ids = tuple(f"{number:x>100}" for number in range(15))
    lost = tuple(Lost(pid=4_194_304, how="signal 26 (SIGVTALRM)") for _ in ids)
    pulse = Pulse(busy=9999, slots=9999, taken=10**9, revoked=ids, dropped=ids, lost=lost)
    assert len(pulse.line()) <= 4096
    assert Pulse.model_validate_json(pulse.line()) == pulse


def test_a_job_that_is_no_tasks_is_not_cancelled_when_a_task_of_its_id_is_revoked(tmp_path):
    settings = Settings(data_dir=tmp_path, driver="process", allow_unisolated=True, model="m")
    store = MemoryStore()
    for job_id, deliver in (("own", None), ("tasks", {"options": {"task_id": "tasks"}})):
        store.create(new_job("do it", settings, job_id=job_id), Order(deliver=deliver))
    keeper = Keeper(settings, store, "w", 1)
    keeper._revoked.add(("own", "tasks", "unknown"))
    keeper._heed_revoked()
    assert [store.get(job_id).job.status for job_id in ("own", "tasks")] == ["queued", "cancelled"]
