"""`worker.tasks.run` in chains, groups and chords of another application."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu.exceptions import OperationalError

from tests.queue import pipeline
from tests.queue.conftest import Place, eventually, recording
from tests.services import PostgresServer
from worker import celery_app
from worker.cancelling import cancel
from worker.delivery import JobFailed, JobResult, job_id_of, tell
from worker.errors import BrokerUnavailable, InputInvalid
from worker.messages import Status
from worker.settings import Settings
from worker.tasks import run

WAIT_S = 40
PAUSE_S = 3.0  # asking for what is untold counts as telling it, so not more often than a sweep does


@contextmanager
def foreign_worker(url, notes):
    """The other application's own worker."""
    options = ["-P", "solo", "-l", "WARNING", "--without-gossip", "--without-mingle"]
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.queue.pipeline", "worker", *options],
        env={**os.environ, pipeline.BROKER: url, pipeline.NOTES: str(notes)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Stage:
    """A place for jobs, and an application that has pipelines."""

    def __init__(self, place, url, stack, results=None):
        self.place = place
        self.notes = place.home / "notes"
        self.notes.touch()
        self.app = pipeline.application(url, results)
        stack.callback(self.close)
        stack.enter_context(foreign_worker(url, self.notes))

    def close(self):
        self.app.pool.force_close_all()
        self.app.close()

    def task(self, name):
        return self.app.tasks[f"pipeline.{name}"]

    def step(self, *cells, answer="done", **fields):
        replay = recording(self.place.files, *cells, answer=answer)
        return self.bound(run.s("do it", replay=str(replay), **fields))

    def bound(self, step):
        """Let it go through their application, which knows our task by its name alone."""
        step._type, step._app = None, self.app
        return step

    def read(self):
        return sorted(self.notes.read_text().splitlines())


@contextmanager
def staged(folder, server, **settings):
    with ExitStack() as stack:
        url = server.database()
        celery_app._in_force.clear()
        yield Stage(Place(folder / "home", stack, broker_url=url, **settings), url, stack)
        celery_app._in_force.clear()


@pytest.fixture(scope="module")
def shared(tmp_path_factory, redis_server):
    """A stage with a worker of ours."""
    with staged(tmp_path_factory.mktemp("stage"), redis_server) as stage:
        stage.place.worker()
        yield stage


@pytest.fixture
def stage(shared):
    shared.notes.write_text("")
    return shared


@pytest.fixture
def empty_stage(tmp_path, redis_server):
    """A stage without a worker of ours."""
    with staged(tmp_path, redis_server) as stage:
        yield stage


def is_told(place, job_id):
    """Whether a pipeline has been told the end of its job."""
    return job_id not in dict(place.store.undelivered())


def pipeline_of(stage, *cells):
    steps = [stage.task("extract").s(), stage.step(*cells), stage.task("notify").s()]
    return chain(*steps, app=stage.app)


def test_a_chain_goes_through_a_job_which_is_told_what_came_before(stage):
    result = pipeline_of(stage, "x = 1").apply_async()
    assert result.get(timeout=WAIT_S) == "done"
    assert stage.read() == ["extract", "notify succeeded done"]
    told = JobResult.model_validate(result.parent.get(timeout=WAIT_S))
    assert told.status is Status.SUCCEEDED
    assert told.id == result.parent.id
    assert '"rows"' in stage.place.job(told.id).goal
    eventually(lambda: is_told(stage.place, told.id), 30, PAUSE_S)


def test_a_chain_completes_once_when_its_worker_is_killed_in_the_middle(empty_stage):
    stage = empty_stage
    first = stage.place.worker()
    result = pipeline_of(stage, "import time\ntime.sleep(2)").apply_async()
    job_id = result.parent.id
    eventually(lambda: read_worker(stage.place, job_id), WAIT_S)
    first.kill()
    stage.place.worker()
    assert result.get(timeout=WAIT_S) == "done"
    time.sleep(1.5)  # for a sweep to tell it twice, if it would
    assert stage.read() == ["extract", "notify succeeded done"]
    assert len(stage.place.store.attempts(job_id)) == 2


def read_worker(place, job_id):
    """Whether somebody works on a job that may not be there yet."""
    return any(one.job.id == job_id and one.is_held for one in place.store.jobs())


def test_a_chord_is_told_when_all_of_its_jobs_have_ended(stage):
    steps = [stage.step("x = 1", answer=text) for text in ("a", "b", "c")]
    header = group(steps, app=stage.app)
    result = chord(header, stage.task("gather").s(), app=stage.app).apply_async()
    assert result.get(timeout=WAIT_S) == ["a", "b", "c"]
    assert stage.read() == ["gather"]


def test_a_group_gives_all_results(stage):
    steps = [stage.step(answer=text) for text in ("a", "b")]
    found = group(steps, app=stage.app).apply_async().get(timeout=WAIT_S)
    assert [each["answer"] for each in found] == ["a", "b"]


def test_a_job_without_an_answer_fails_the_pipeline_and_its_errback_is_called(stage):
    step = stage.step("x = 1", options={"max_steps": 1})
    step.link_error(stage.task("complain").s())
    result = chain(step, stage.task("notify").s(), app=stage.app).apply_async()
    with pytest.raises(JobFailed, match=f"job {result.parent.id} \\(failed, budget\\): "):
        result.get(timeout=WAIT_S)
    eventually(lambda: stage.read() == [f"complain {result.parent.id}"])


def test_a_failure_is_a_result_where_that_is_asked_for(stage):
    step = stage.step("x = 1", options={"max_steps": 1}, raise_on_failure=False)
    found = JobResult.model_validate(step.apply_async().get(timeout=WAIT_S))
    assert found.status is Status.FAILED
    assert found.finish_reason == "budget"


def test_an_answer_that_is_too_long_becomes_its_beginning_and_a_reference(stage):
    result = stage.step(answer="x" * 100_000).apply_async()
    found = JobResult.model_validate(result.get(timeout=WAIT_S))
    assert found.reference.job == result.id
    assert found.reference.bytes > 100_000
    assert 50_000 < len(found.answer) < 65_536
    assert stage.place.job(result.id).answer == "x" * 100_000


def test_much_data_becomes_a_file(stage):
    step = stage.step("import json\nprint(len(json.load(open('data.json'))))")
    step.args = ([*range(5000)], *step.args)
    result = step.apply_async()
    result.get(timeout=WAIT_S)
    _, events = stage.place.store.load(result.id)
    shown = [event.result.text for event in events if event.kind == "result"]
    assert "5000" in shown[0]


def test_wrong_arguments_of_whoever_knows_our_task_by_name_alone_are_its_failure(stage):
    wrong = {"args": ["do it"], "kwargs": {"colour": "red"}, "queue": celery_app.PIPELINE}
    result = stage.app.signature(celery_app.RUN, **wrong).apply_async()
    with pytest.raises(InputInvalid, match=r"worker\.tasks\.run: there is no argument 'colour'"):
        result.get(timeout=WAIT_S)


def test_tasks_of_one_key_are_one_job(stage):
    steps = [stage.step("x = 1", idempotency_key="monthly") for _ in range(3)]
    found = [step.apply_async() for step in steps]
    assert len({each.get(timeout=WAIT_S)["id"] for each in found}) == 1


def test_an_end_that_is_told_again_changes_nothing(stage):
    result = pipeline_of(stage).apply_async()
    assert result.get(timeout=WAIT_S) == "done"
    place = stage.place.store.order(result.parent.id).deliver
    with celery_app.connect(stage.place.settings) as connection:
        tell(connection, result.parent.id, place)
    eventually(lambda: not stage.place.waiting(celery_app.PIPELINE))
    time.sleep(1)
    assert stage.read() == ["extract", "notify succeeded done"]


def test_an_end_that_nobody_told_is_told_by_a_sweep(stage):
    store, deliver = stage.place.store, {"options": {"task_id": "t1"}, "raise_on_failure": True}
    too_big = {"memory": 2**40}  # so that no worker takes it
    job_id = stage.place.submit("x = 1", id="t1", deliver=deliver, options=too_big)
    assert cancel(store, job_id) is Status.CANCELLED
    with pytest.raises(JobFailed, match="cancelled"):
        stage.app.AsyncResult("t1").get(timeout=WAIT_S)


def test_revoking_a_task_cancels_its_job(stage):
    result = stage.step("import time\ntime.sleep(30)").apply_async()
    eventually(lambda: read_worker(stage.place, result.id), WAIT_S)
    result.revoke()
    assert stage.place.finished(result.id, 10).status is Status.CANCELLED
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WAIT_S)
    eventually(lambda: is_told(stage.place, result.id), 30, PAUSE_S)


# ---- what is wrong where a pipeline is written


@pytest.fixture
def alone(tmp_path):
    """A process without a worker, whose settings are these."""
    celery_app._in_force.clear()
    yield lambda **settings: celery_app.use(Settings(data_dir=tmp_path, **settings))
    celery_app._in_force.clear()


def refused(send):
    """What is said within two seconds, as one error without others before it."""
    started = time.monotonic()
    with pytest.raises(OperationalError) as caught:
        send()
    assert time.monotonic() - started < 2
    assert isinstance(caught.value, BrokerUnavailable)
    assert caught.value.__context__ is None
    return str(caught.value)


def test_without_a_worker_a_task_is_refused_at_once_with_the_remedies(alone, tmp_path):
    alone()
    for send in (run.delay, run.s("do it").delay, lambda *_: chain(run.s("do it")).delay()):
        said = refused(lambda send=send: send("do it"))
        assert said.startswith(f"no worker runs at {tmp_path}, and so no broker; ")
        assert "caisson worker" in said
        assert "CAISSON_BROKER_URL" in said


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_a_task_for_a_broker_that_is_away_is_refused_without_its_password(alone, kind):
    alone(broker_url=f"{kind}://me:s3cret@127.0.0.1:1/")
    said = refused(lambda: run.delay("do it"))
    assert f"the broker {kind}://me:***@127.0.0.1:1/ cannot be reached" in said


def test_wrong_arguments_are_refused_where_they_are_written():
    with pytest.raises(InputInvalid, match="did you mean files"):
        run.s("do it", file=["a.csv"])
    with pytest.raises(InputInvalid, match="files must be a list of paths"):
        run.si("do it", files="a.csv")
    with pytest.raises(InputInvalid, match="goal is missing"):
        run.s(files=["a.csv"]).delay()


def test_settings_are_taken_once_in_a_process(alone, tmp_path):
    alone()
    alone()
    with pytest.raises(RuntimeError, match="this process has other settings already"):
        alone(broker_url="redis://127.0.0.1:1/")
    assert celery_app.in_force() == Settings(data_dir=tmp_path)


# ---- messages that are delivered again; ids; outages


def sent_again(stage, signature, task_id, *, linked=True):
    """Send a task as if its message was delivered once more."""
    again = signature.clone()
    if linked:
        again.link(stage.task("notify").s())
        again.link_error(stage.task("complain").s())
    return again.apply_async(task_id=task_id)


def test_a_task_that_is_delivered_again_after_its_file_is_gone_is_told_the_end(stage):
    file = stage.place.files / "input.csv"
    file.write_text("a\n1\n")
    step = stage.step("import time\ntime.sleep(1)", files=[str(file)])
    result = sent_again(stage, step, "gone-file")
    eventually(lambda: known(stage.place, "gone-file"))
    file.unlink()
    sent_again(stage, step, "gone-file")
    assert result.get(timeout=WAIT_S)["status"] == "succeeded"
    eventually(lambda: stage.read() == ["notify succeeded done"])
    eventually(lambda: not stage.place.waiting(celery_app.PIPELINE))
    time.sleep(1)
    assert stage.read() == ["notify succeeded done"]
    assert result.state == "SUCCESS"


def known(place, job_id):
    return any(one.job.id == job_id for one in place.store.jobs())


def test_a_task_of_a_shared_key_that_is_delivered_twice_goes_on_once(stage):
    """It also waits for longer than three tries."""
    slow, step = (
        stage.step(cell, idempotency_key="slow") for cell in ("import time\ntime.sleep(4)", "1")
    )
    first = sent_again(stage, slow, "shared-first", linked=False)
    eventually(lambda: known(stage.place, "shared-first"))
    file = stage.place.files / "shared.csv"
    file.write_text("a\n1\n")
    step.kwargs["files"] = [str(file)]
    second = sent_again(stage, step, "shared-second")
    eventually(lambda: second.state == "RETRY")  # it waits for the end
    file.unlink()
    sent_again(stage, step, "shared-second")
    assert second.get(timeout=WAIT_S)["id"] == first.get(timeout=WAIT_S)["id"] == "shared-first"
    time.sleep(2)  # for the other message to be tried again
    assert stage.read() == ["notify succeeded done"]


def test_revoking_the_first_task_of_a_key_cancels_its_job_and_ends_the_telling(stage):
    step = stage.step("import time\ntime.sleep(30)", idempotency_key="revoked")
    result = step.apply_async()
    eventually(lambda: read_worker(stage.place, result.id), WAIT_S)
    result.revoke()
    assert stage.place.finished(result.id, 10).status is Status.CANCELLED
    eventually(lambda: is_told(stage.place, result.id), 30, PAUSE_S)


def test_a_task_that_is_revoked_while_it_copies_its_files_has_no_job_that_goes_on(stage):
    file = stage.place.files / "large.bin"
    with file.open("wb") as sparse:
        sparse.truncate(600 * 2**20)
    blobs = stage.place.home / "blobs"
    too_big = {"memory": 2**40}  # so that no worker takes it
    step = stage.step("1", files=[str(file)], options=too_big)
    result = step.apply_async(task_id="revoked-early")
    eventually(lambda: list(blobs.glob(".partial*")), WAIT_S, 0.005)
    stage.app.control.revoke(result.id)
    assert not known(stage.place, result.id)
    eventually(lambda: known(stage.place, result.id), WAIT_S)
    assert stage.place.finished(result.id, 15).status is Status.CANCELLED
    eventually(lambda: is_told(stage.place, result.id), 30, PAUSE_S)


@pytest.mark.parametrize("task_id", ["my:task/1", "t" * 250, "aufgabe-ü"])
def test_whatever_can_be_the_id_of_a_task_has_a_job(stage, task_id):
    result = stage.step("1").apply_async(task_id=task_id)
    found = JobResult.model_validate(result.get(timeout=WAIT_S))
    assert found.status is Status.SUCCEEDED
    assert found.id == job_id_of(task_id)
    eventually(lambda: is_told(stage.place, found.id), 30, PAUSE_S)


@pytest.mark.servers("postgres")
def test_a_task_waits_for_a_database_that_is_away_for_many_sweeps(tmp_path, redis_server):
    with PostgresServer() as server:
        settings = {"database_url": server.database(), "sweep_s": "0.2"}
        with staged(tmp_path, redis_server, **settings) as stage:
            worker = stage.place.worker("--no-beat")
            server.kill()
            result = stage.step("1").apply_async(task_id="patient")
            eventually(lambda: result.state == "RETRY")
            time.sleep(4)  # for more than three tries
            assert result.state == "RETRY"
            server.start()
            assert result.get(timeout=WAIT_S)["id"] == "patient"
            assert worker.process.poll() is None


def test_rabbit_carries_messages_and_the_database_keeps_results(place_with, rabbit_url):
    place = place_with(broker_url=rabbit_url)
    place.worker()
    app = pipeline.application(rabbit_url, celery_app.result_address(place.settings))
    step = run.s("do it", replay=str(recording(place.files, "x = 1")))
    step._type, step._app = None, app
    assert step.apply_async().get(timeout=WAIT_S)["answer"] == "done"
    app.pool.force_close_all()
