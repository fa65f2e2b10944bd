"""`caisson worker`: it works, lets go, dies and is survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest

from tests.queue.conftest import COMMAND, Place, eventually, recording
from tests.services import is_alive
from worker.cli_options import Exit
from worker.keeper import Keeper
from worker.messages import Status
from worker.pulse import Lost, process_name
from worker.runner import new_job
from worker.settings import Settings
from worker.store.memory import MemoryStore

LONG = "import time\ntime.sleep(60)"
SECONDS = "import time\ntime.sleep(2)"
FREED_S = 10.0  # a second or two, but for a busy machine
DRAINED_S = 10.0  # less than after what a pool that does not let go is ended, or a long job


def is_held(place, job):
    return place.store.get(job).is_held


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return ""


def holder(place, worker, job):
    """The process of the pool that works on a job."""
    pid = int(place.store.get(job).worker.rpartition(".")[2])
    return next(one for one in worker.pool if one.pid == pid)


def test_it_says_what_it_is_works_and_ends(place):
    worker = place.worker()
    job = place.submit("6 * 7", answer="42")
    assert place.finished(job).answer == "42"
    worker.said(f"job {job}: begun")
    worker.said(f"job {job}: succeeded")
    assert place.check()[0] == 0
    code, took_s = worker.stop()
    assert code == 0
    assert took_s < DRAINED_S
    said = "\n".join(worker.lines)
    for part in ("caisson 0.", "database  sqlite:///", "broker    of its own", "slots     2;"):
        assert part in said
    assert "spares    none (driver process)" in said
    assert "model     none: jobs have to bring one" in said
    assert "Traceback" not in said


def test_lines_are_json_where_that_is_asked_for_and_show_no_password(place_with, redis_server):
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "caisson", "on", ">s3cret", "~*", "&*", "+@all")
    url = redis_server.database().replace("://", "://caisson:s3cret@")
    place = place_with(broker_url=url)
    worker = place.worker("--json")
    job = place.submit("1 / 0")
    place.finished(job)
    arguments = list(map(command_of, worker.tree))
    worker.stop()
    assert "s3cret" not in "\n".join([*worker.lines, *arguments])
    lines = [json.loads(line) for line in worker.lines]
    assert {"ready", f"job {job}: begun"} < {line["message"] for line in lines}
    assert "caisson:***@127.0.0.1" in "\n".join(worker.lines)
    with redis_server.client() as client:
        client.execute_command("ACL", "DELUSER", "caisson")


@pytest.mark.engine
def test_it_lets_go_in_the_middle_of_a_cell_and_another_goes_on_in_the_same_interpreter(place_with):
    place = place_with(driver="docker", lease_s=30)
    first = place.worker()
    job = place.submit(f"x = 41\n{SECONDS}\nx += 1", "x", answer="42")
    eventually(lambda: any(e.kind == "call" for e in place.store.events(job)))
    code, took_s = first.stop()
    assert code == 0
    assert took_s < DRAINED_S
    first.said("stopping: jobs are handed over")
    assert place.job(job).status is Status.QUEUED
    place.worker()
    place.finished(job)
    results = [e.result.execution for e in place.store.events(job) if e.kind == "result"]
    assert results[1].value == "42"
    assert not [e for e in place.store.events(job) if e.kind == "sandbox"]
    assert [attempt.ending for attempt in place.store.attempts(job)] == ["released", "finished"]


def test_the_second_signal_ends_it_at_once(place):
    worker = place.worker()
    job = place.submit(LONG)
    eventually(lambda: is_held(place, job))
    tree = worker.tree
    worker.consumer.suspend()  # it cannot let go
    worker.process.send_signal(signal.SIGTERM)
    worker.said("stopping: jobs are handed over")
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(DRAINED_S) == Exit.INFRASTRUCTURE
    eventually(lambda: not any(map(is_alive, tree)), 5)


def test_nothing_is_left_of_one_that_is_killed_and_another_goes_on(place):
    first, second = place.worker(), place.worker()
    gate = place.home / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    jobs = [place.submit(wait) for _ in range(4)]
    eventually(lambda: all(is_held(place, job) for job in jobs))
    tree = first.kill()  # it has the broker
    gate.touch()
    eventually(lambda: not any(map(is_alive, tree)), 5)
    later = place.submit("x = 1", is_rung=False)
    for job in (*jobs, later):
        place.finished(job, 40)
    second.said("the broker was started here")
    assert place.check()[0] == 0


def test_a_sweep_comes_when_a_lease_is_over_and_not_only_in_its_turn(place_with, redis_url):
    place = place_with(broker_url=redis_url, lease_s="4", sweep_s="3.9")
    first = place.worker()
    jobs = [place.submit("import time\ntime.sleep(30)") for _ in range(2)]
    eventually(lambda: all(is_held(place, job) for job in jobs))
    place.worker()
    first.kill()
    for job in jobs:
        place.finished(job)
        lost, last = place.store.attempts(job)
        assert last.started_at - lost.ended_at < 1.5


def test_a_process_of_the_pool_that_is_killed_is_replaced_and_its_job_taken_over(place_with):
    place = place_with(lease_s="600", sweep_s="600")
    worker = place.worker()
    job = place.submit(SECONDS)
    eventually(lambda: is_held(place, job))
    time.sleep(0.5)  # it is at work
    killed = holder(place, worker, job)
    killed.kill()
    eventually(lambda: len(place.store.attempts(job)) == 2, FREED_S)
    place.finished(job)
    first, second = place.store.attempts(job)
    assert (first.ending, second.ending) == ("lost", "finished")
    eventually(lambda: len(worker.pool) == 2)
    worker.said(f"job {job}: its process {killed.pid} was lost: signal 9 (SIGKILL)")
    worker.said(f"job {job}: begun again, after 1 lost worker")
    assert "Traceback" not in "\n".join(worker.lines)
    assert "WorkerLost" not in "\n".join(worker.lines)


@pytest.mark.engine
def test_whoever_goes_on_for_a_process_that_was_killed_has_its_variables(place_with):
    place = place_with(driver="docker", lease_s="600", sweep_s="600")
    worker = place.worker()
    job = place.submit(f"x = 41\n{SECONDS}\nx += 1", "x")
    eventually(lambda: any(e.kind == "call" for e in place.store.events(job)))
    holder(place, worker, job).kill()
    place.finished(job)
    results = [e.result.execution for e in place.store.events(job) if e.kind == "result"]
    assert results[1].value == "42"
    assert [one.ending for one in place.store.attempts(job)] == ["lost", "finished"]


def test_the_loss_of_a_process_that_had_no_job_is_said(place):
    worker = place.worker()
    killed = worker.pool[0]
    killed.kill()
    worker.said(f"process {killed.pid}, which had no job, was lost: signal 9 (SIGKILL)")
    eventually(lambda: len(worker.pool) == 2)


def test_a_job_is_freed_when_its_process_is_dead_and_not_when_one_lives_that_has_its_number(
    tmp_path,
):
    settings = Settings(data_dir=tmp_path, driver="process", allow_unisolated=True, model="m")
    dead = subprocess.Popen(["true"])
    dead.wait()
    store = MemoryStore()
    for name, pid in (("lives", os.getpid()), ("dead", dead.pid)):
        store.create(new_job("do it", settings, job_id=name))
        store.claim(name, process_name("w", pid), 600)
    keeper = Keeper(settings, store, "w", 1)
    keeper._lost.add(tuple(Lost(pid=pid, how="?") for pid in (os.getpid(), dead.pid)))
    keeper._free_lost()  # there is no broker to ring with, which the sweep makes up for
    assert [store.get(name).is_held for name in ("lives", "dead")] == [True, False]


def test_a_process_of_the_pool_that_is_told_to_end_hands_its_job_over(place):
    worker = place.worker()
    job = place.submit(SECONDS)
    eventually(lambda: is_held(place, job))
    told = holder(place, worker, job)
    told.terminate()
    place.finished(job, 30)
    assert [one.ending for one in place.store.attempts(job)] == ["released", "finished"]
    eventually(lambda: not is_alive(told))
    eventually(lambda: len(worker.pool) == 2)


def test_a_long_job_keeps_no_short_ones_waiting_while_another_worker_is_idle(redis_place):
    busy = redis_place.worker("--concurrency", "1", "--no-beat")
    long = redis_place.submit(LONG)
    eventually(lambda: is_held(redis_place, long))
    idle = redis_place.worker("--concurrency", "1", "--no-beat")
    for job in [redis_place.submit("x = 1") for _ in range(4)]:
        redis_place.finished(job)
    assert is_held(redis_place, long)
    assert busy.process.poll() is None
    assert idle.process.poll() is None


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A worker for several tests, and its place."""
    with ExitStack() as stack:
        place = Place(tmp_path_factory.mktemp("settled"), stack)
        yield place, place.worker()


def test_a_job_that_nobody_rang_for_is_found_by_a_sweep(settled):
    place, _ = settled
    job = place.submit("x = 1", is_rung=False)
    assert place.finished(job).status is Status.SUCCEEDED


def test_a_worker_that_says_it_is_ready_is_found_in_the_store_at_once(place):
    worker = place.worker()
    (seen,) = place.store.workers()
    assert seen.name in worker.lines[0]
    assert seen.slots == 2


def test_a_worker_without_an_engine_is_seen_and_sweeps_and_is_seen_between_sweeps(
    place_with, monkeypatch
):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    place = place_with(driver="docker", sweep_s="3600")
    place.submit("x = 1", is_rung=False)
    worker = place.worker(is_ready=False)
    worker.said("no work is done: ")  # somebody has rung
    (first,) = eventually(place.store.workers)
    assert first.name in worker.lines[0]
    eventually(lambda: place.store.workers()[0].seen_at > first.seen_at)
    (said,) = [line for line in worker.lines if "jobs wait for the engine" in line]
    assert "nowhere" in said


def test_beat_rings_for_workers_that_do_not_sweep(redis_place):
    redis_place.worker("--no-beat")
    job = redis_place.submit("x = 1", is_rung=False)
    time.sleep(2)
    assert redis_place.job(job).status is Status.QUEUED
    beat = subprocess.Popen([*COMMAND, "beat"], env=redis_place.environment)
    try:
        redis_place.finished(job, 20)
        beat.terminate()
        assert beat.wait(10) == 0
    finally:
        beat.kill()
        beat.wait()


def test_beat_ends_though_its_signal_comes_in_the_middle_of_a_publication():
    code = """if True:
        import os, signal
        from celery import Celery
        from celery.beat import Scheduler
        from worker.beat import Beat

        class Busy(Scheduler):
            def tick(self):
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                except BaseException:
                    print("swallowed", flush=True)
                return self.max_interval

        Beat(app=Celery(broker="memory://"), scheduler=Busy, quiet=True, max_interval=60).run()
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0
    assert done.stderr.count("swallowed") == 1  # and it has not gone on


def test_what_nobody_can_reach_is_said_in_one_line(place_with):
    place = place_with(broker_url="redis://:s3cret@127.0.0.1:1/0")
    worker = place.worker(is_ready=False)
    assert worker.process.wait(20) == 5
    eventually(lambda: worker.lines)
    (line,) = worker.lines
    assert "redis://:***@127.0.0.1:1/0 cannot be reached" in line


@pytest.mark.parametrize("module", ["no.such", "nosuchmodule", ".odd"])
def test_tasks_that_are_nowhere_are_said_in_one_line(place, module):
    worker = place.worker("--include", module, is_ready=False)
    assert worker.process.wait(20) == 2
    eventually(lambda: worker.lines)
    (line,) = worker.lines
    assert line.startswith(f"caisson: --include {module}: there is no such module")


TASKS = """
import pathlib

from celery import shared_task

@shared_task
def extract():
    return {"rows": [1, 2, 3]}

@shared_task
def notify(result):
    pathlib.Path(__file__).with_name("notes").write_text(result["answer"])
"""
CHAIN = """
from celery import chain
from mytasks import extract, notify
from worker.tasks import run

chain(extract.s(), run.s("Count the rows.", replay=REPLAY), notify.s()).delay()
"""


def test_a_chain_is_done_by_a_worker_that_includes_the_tasks_around_the_job(place, monkeypatch):
    (place.files / "mytasks.py").write_text(TASKS)
    monkeypatch.setenv("PYTHONPATH", os.fspath(place.files))
    place.worker("--include", "mytasks")
    code = CHAIN.replace("REPLAY", repr(os.fspath(recording(place.files, answer="three"))))
    subprocess.run([sys.executable, "-c", code], env=place.environment, check=True)
    notes = place.files / "notes"
    eventually(lambda: notes.exists() and notes.read_text() == "three", 30)


def test_another_database_is_said_in_one_line(place_with):
    place = place_with()
    place.options["database_url"] = "postgresql://me:s3cret@127.0.0.1:1/nothing"
    worker = place.worker(is_ready=False)
    assert worker.process.wait(20) == 5
    eventually(lambda: worker.lines)
    assert "s3cret" not in "\n".join(worker.lines)
    assert "127.0.0.1:1/nothing" in worker.lines[-1]


def test_the_pool_has_no_descriptor_of_the_keepers_database(settled):
    place, worker = settled
    place.finished(place.submit("x = 1"))
    held = {file.path for file in psutil.Process(worker.consumer.pid).open_files()}
    assert not [path for path in held if "caisson.db" in path]
    assert os.fspath(place.home / "caisson.db") in {
        file.path for file in psutil.Process(worker.pid).open_files()
    }


def test_celerys_own_command_works_too(redis_place):
    command = [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker", "-c", "1"]
    worker = subprocess.Popen(
        command,
        env=redis_place.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert redis_place.finished(redis_place.submit("x = 1"))
        long = redis_place.submit(LONG)
        eventually(lambda: is_held(redis_place, long))
        worker.terminate()
        assert worker.wait(20) == 0
        assert redis_place.job(long).status is Status.QUEUED
    finally:
        worker.kill()
        worker.wait()


def test_sandboxes_that_nobody_owns_are_listed_and_removed(settled):
    place, _ = settled
    done = subprocess.run(
        [*COMMAND, "reap", "--dry-run", "--json"],
        env={**place.environment, "CAISSON_DRIVER": "docker"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 5}
    if done.returncode == 0:
        assert isinstance(json.loads(done.stdout), list)
    else:  # there is no engine
        assert len(done.stderr.splitlines()) == 1
