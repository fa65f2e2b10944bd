"""Workers that are stopped or killed again and again; stores that go away; cancelled jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from werkzeug.wrappers import Response

from tests.queue.conftest import eventually
from tests.services import PostgresServer
from worker.cancelling import cancel
from worker.messages import ResultStatus, Status
from worker.store.blobs import Blobs
from worker.submission import Submission, submit

SLEEPING = "import time; x = 1; time.sleep({})"
COUNTED = "print('once', file=open('log', 'a'))"


@pytest.fixture
def docked(place_with, redis_url):
    """A data directory whose jobs run in containers."""
    return place_with(broker_url=redis_url, driver="docker", lease_s="2")


def calls(place, job_id):
    return sum(event.kind == "call" for event in place.store.events(job_id))


def written(place, job_id):
    return len(place.store.events(job_id))


def log_of(job):
    return next(Path(a.path).read_text() for a in job.artifacts if a.name == "log")


def submit_live(place):
    """A job for a model, not a recording."""
    what = Submission(goal="do it")
    job_id = submit(what, place.settings, place.store, Blobs(place.home / "blobs"))
    place.ring()
    return job_id


def freeze(worker, number):
    for process in worker.tree:
        process.send_signal(number)


# ---- a worker that is stopped past its lease, and goes on


@pytest.mark.engine
def test_a_worker_stopped_in_a_cell_does_nothing_when_it_goes_on(docked):
    first = docked.worker()
    job_id = docked.submit(f"{COUNTED}; {SLEEPING.format(4)}", f"x += 1; {COUNTED}; x")
    eventually(lambda: calls(docked, job_id) == 1)
    freeze(first, signal.SIGSTOP)
    docked.worker()
    job = docked.finished(job_id)
    assert (job.status, log_of(job)) == (Status.SUCCEEDED, "once\nonce\n")
    events = written(docked, job_id)
    freeze(first, signal.SIGCONT)
    first.said("let go")
    assert written(docked, job_id) == events
    assert [a.ending for a in docked.store.attempts(job_id)] == ["lost", "finished"]
    results = [e.result for e in docked.store.events(job_id) if e.kind == "result"]
    assert [r.status for r in results] == [ResultStatus.OK, ResultStatus.OK]
    assert results[1].execution.value == "2"


def test_a_worker_stopped_while_it_asks_a_model_asks_no_more(place_with, redis_url, httpserver):
    asked, slow, frozen = [], threading.Event(), threading.Event()

    def answer(request):
        asked.append(request.get_json()["model"])
        if not slow.is_set():
            slow.set()
            frozen.wait(20)
            return Response(status=503)  # which a worker would try again
        message = {"role": "assistant", "content": "done"}
        body = {"choices": [{"message": message, "finish_reason": "stop"}]}
        return Response(json.dumps(body), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    place = place_with(
        broker_url=redis_url, lease_s="2", model="m", base_url=httpserver.url_for("/v1")
    )
    first = place.worker()
    job_id = submit_live(place)
    slow.wait(20)
    freeze(first, signal.SIGSTOP)
    frozen.set()
    place.worker()
    assert place.finished(job_id).answer == "done"
    freeze(first, signal.SIGCONT)
    first.said("let go")
    time.sleep(1)
    assert asked == ["m", "m"]


# ---- a job that kills whoever takes it


@pytest.mark.engine  # in a container its call goes on, so that no attempt gets any further
def test_a_job_that_kills_its_workers_is_dead_in_the_end_and_others_are_not_held_up(
    place_with, redis_url
):
    place = place_with(broker_url=redis_url, driver="docker", lease_s="600")
    place.worker()
    poison = place.submit(SLEEPING.format(60))
    victims = set()

    def strike():
        listed = place.store.get(poison)
        slot = int(listed.worker.rpartition(".")[2] or 0)
        is_buried = listed.losses >= place.settings.max_losses or listed.job.finish_reason
        is_at_work = listed.is_held and not is_buried and calls(place, poison) > 0
        if is_at_work and slot not in victims:
            victims.add(slot)
            psutil.Process(slot).kill()
        return listed.job.status.is_final

    others = [place.submit("1 + 1") for _ in range(3)]
    eventually(strike, 60)
    job = place.job(poison)
    assert (job.status, job.error.type) == (Status.DEAD, "WorkersLost")
    assert len(victims) == 3
    assert "each time in call 1 (python_interpreter)" in job.error.message
    eventually(lambda: all(place.is_over(other) for other in others))
    assert all(place.job(other).status is Status.SUCCEEDED for other in others)


# ---- a store that goes away


@pytest.mark.servers("postgres")
def test_a_database_that_restarts_under_a_job_is_waited_for(place_with, redis_url):
    with PostgresServer() as server:
        place = place_with(broker_url=redis_url, database_url=server.database(), lease_s="20")
        place.worker()
        job_id = place.submit(SLEEPING.format(2), "x + 1")
        eventually(lambda: calls(place, job_id) == 1)
        server.kill()
        time.sleep(3)  # the call ends meanwhile
        server.start()
        assert place.finished(job_id).status is Status.SUCCEEDED
        assert len(place.store.attempts(job_id)) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "caisson-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_full_holds_a_job_up_and_loses_nothing(place_with, redis_url, small_disk):
    place = place_with(name=str(small_disk / "home"), broker_url=redis_url, lease_s="2")
    worker = place.worker()
    job_id = place.submit(SLEEPING.format(1), "'y' * 20_000", "x + 1")
    eventually(lambda: calls(place, job_id) == 1)
    filler = small_disk / "filler"
    with suppress(OSError), filler.open("wb", 0) as full:
        while True:
            full.write(bytes(4096))
    worker.said("disk is full")
    filler.unlink()
    job = place.finished(job_id)
    assert job.status is Status.SUCCEEDED
    kinds = [event.kind for event in place.store.events(job_id)]
    assert kinds.count("result") == 3


# ---- cancelled wherever it is


def cancelled(place, job_id, within_s=10.0):  # calls and replies here take longer
    started = time.monotonic()
    cancel(place.store, job_id)
    job = place.finished(job_id)
    assert time.monotonic() - started < within_s
    assert job.status is Status.CANCELLED
    pending = [
        call
        for event in place.store.events(job_id)
        if event.kind == "reply"
        for call in event.reply.calls
    ]
    results = [e.result.call_id for e in place.store.events(job_id) if e.kind == "result"]
    assert results == [call.id for call in pending]
    return job


@pytest.mark.engine
def test_a_shell_with_grandchildren_is_cancelled_with_all_of_them(docked):
    mark = f"sleep 777.{os.getpid()}"
    docked.worker()
    job_id = docked.submit(
        f"import subprocess; subprocess.run(['bash', '-c', "
        f"'setsid {mark} & (setsid {mark} &); {mark}'])"
    )
    eventually(lambda: calls(docked, job_id) == 1)
    eventually(lambda: mark in processes())
    cancelled(docked, job_id)
    eventually(lambda: mark not in processes(), 3)


def processes():
    return "\n".join(" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))


@pytest.mark.engine
def test_a_job_is_cancelled_while_its_files_are_taken_out(docked):
    docked.worker()
    options = {"memory": "2g", "workspace_size": "1g", "max_artifact_bytes": "1g"}
    job_id = docked.submit(
        "for i in range(40): open(f'f{i}', 'wb').write(bytes([i]) * 14_000_000)",
        "1",
        options=options,
    )
    shelf = docked.home / "artifacts" / job_id
    eventually(lambda: shelf.exists() and any(shelf.iterdir()))
    job = cancelled(docked, job_id)
    assert 1 <= len(job.artifacts) < 40
    remarks = [e.text for e in docked.store.events(job_id) if e.kind == "remark"]
    assert "left behind: the job is cancelled" in remarks[0]


def test_a_job_is_cancelled_while_the_model_is_asked(place_with, redis_url, httpserver):
    asked = threading.Event()

    def answer(_request):
        asked.set()
        time.sleep(20)
        return Response(status=500)

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    place = place_with(broker_url=redis_url, model="m", base_url=httpserver.url_for("/v1"))
    place.worker()
    job_id = submit_live(place)
    asked.wait(20)
    cancelled(place, job_id)


def test_a_job_is_cancelled_while_it_waits_for_a_worker(place):
    job_id = place.submit("1", is_rung=False)
    assert cancelled(place, job_id).steps == 0
