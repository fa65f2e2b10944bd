"""One worker's way of doing queued jobs, with real containers and a store that workers share."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.errors import EngineUnavailable
from sandbox.types import Outcome, SandboxSpec
from worker import assembly
from worker.errors import Cancelled, SchemaMismatch, Stop, StoreUnavailable
from worker.history import History
from worker.hooks import Run
from worker.lease import Lease, clock
from worker.messages import FinishReason, Input, Order, Status
from worker.models.recorded import replies_in
from worker.runner import new_job
from worker.settings import Settings
from worker.station import Station, _Shift
from worker.store.blobs import Blobs
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ok, say

LEASE_S = 1.5


def python(code):
    return say(None, ("python_interpreter", {"code": code}))


# Each cell leaves a letter behind; the last says whether the variables of the first are there.
STEPS = (
    python("x = 1\nopen('log', 'a').write('a')"),
    python("import time; time.sleep(2)\nx += 1\nopen('log', 'a').write('b')"),
    python("open('log', 'a').write(f\"c{globals().get('x', '?')}\")"),
    say("the end"),
)


class Yard:
    """A store with jobs, and workers that take them."""

    def __init__(self, home, store, job):
        self.home, self.store, self.job = home, store, job
        self.settings = Settings(data_dir=home, lease_s=LEASE_S, linger_s=20)

    def submit(self, *turns, number=1, **order):
        recording = "\n".join(map(json.dumps, turns)).encode()
        blob = Blobs(self.home / "blobs").add(io.BytesIO(recording))
        job_id = f"{self.job}-{number}"
        job = new_job("Do it.", self.settings, replay=Path("recording"), job_id=job_id)
        return self.store.create(job, Order(replay=blob.sha256, **order))

    def station(self, name, **options):
        return Station(options.pop("settings", self.settings), self.store, name, **options)

    def until_called(self, job_id, number):
        deadline = time.monotonic() + 20
        while sum(event.kind == "call" for event in self.store.events(job_id)) < number:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kinds(self, job_id):
        return [event.kind for event in self.store.events(job_id)]

    def log(self, job_id):
        (artifact,) = self.store.get(job_id).job.artifacts
        return Path(artifact.path).read_text()


@pytest.fixture
def yard(tmp_path, job):
    return Yard(tmp_path, MemoryStore(), job)


@pytest.fixture
def containers(job):
    """Find the containers of a job by its id; all of this test's are removed at its end."""
    with closing(Engine()) as engine:
        seen = set()

        def find(job_id):
            seen.add(job_id)
            return [found["Id"] for found in engine.labelled(f"caisson.job={job_id}")]

        yield find
        for job_id in seen:
            for container in find(job_id):
                engine.remove(container)


def test_a_worker_that_lets_go_takes_nothing_up_again(yard):
    job_id = yard.submit(say("the end"))
    assert yard.station("one", is_draining=lambda: True).work_next() is None
    assert not yard.store.attempts(job_id)


def hand_over(yard, job_id):
    """Let a worker begin the job's second call, and then let go of it."""
    draining = threading.Event()
    station = yard.station("one", is_draining=draining.is_set)
    working = threading.Thread(target=station.work_next)
    working.start()
    yard.until_called(job_id, 2)
    draining.set()
    working.join(10)
    assert not working.is_alive()


@pytest.mark.engine
def test_a_job_that_is_handed_over_keeps_its_cell_and_its_variables(yard, containers):
    job_id = yard.submit(*STEPS)
    hand_over(yard, job_id)
    assert yard.store.get(job_id).job.status is Status.QUEUED
    (kept,) = containers(job_id)
    assert yard.station("two").work_next().status is Status.SUCCEEDED
    assert yard.store.get(job_id).place == kept[:12]
    assert yard.log(job_id) == "abc2"
    assert [a.ending for a in yard.store.attempts(job_id)] == ["released", "finished"]
    assert not containers(job_id)


class Forgetful(MemoryStore):
    """A store that cannot be reached by whoever it is told to."""

    is_away = False

    def renew(self, *arguments, **named):
        if self.is_away:
            raise StoreUnavailable("it is away")
        super().renew(*arguments, **named)


@pytest.mark.engine
def test_a_worker_that_cannot_renew_its_lease_stops_and_writes_nothing(yard, containers):
    yard.store = store = Forgetful()
    job_id = yard.submit(*STEPS[:1], python("import time; time.sleep(4); done = 1"), *STEPS[2:])
    first = yard.station("one")
    statuses = []
    working = threading.Thread(target=lambda: statuses.append(first.work_next().status))
    working.start()
    yard.until_called(job_id, 2)
    written = yard.kinds(job_id)
    store.is_away = True
    working.join(LEASE_S + 1.5)
    assert statuses == [Status.RUNNING]
    assert yard.kinds(job_id) == written
    assert len(containers(job_id)) == 1
    store.is_away = False
    time.sleep(LEASE_S)
    assert yard.station("two").work_next().status is Status.SUCCEEDED
    assert yard.log(job_id) == "ac1"
    assert [a.ending for a in store.attempts(job_id)] == ["lost", "finished"]


@pytest.mark.engine
def test_a_container_that_is_gone_is_replaced_with_the_files_the_job_had_made(yard, containers):
    job_id = yard.submit(*STEPS)
    hand_over(yard, job_id)
    (gone,) = containers(job_id)
    with closing(Engine()) as engine:
        engine.remove(gone)
    assert yard.station("two").work_next().status is Status.SUCCEEDED
    told = [e for e in yard.store.events(job_id) if e.kind == "notice"]
    assert "except the input files, log, which were restored" in told[0].text
    assert yard.log(job_id) == "ac?"  # nobody knows of the second; it is not run again


def remade(yard, job_id, monkeypatch):
    """Lose the sandbox of a job at its last call; returns the second one and the job's end."""
    sandboxes = []

    def start(_settings, spec, _spares=None):
        sandboxes.append(FakeSandbox(respond, spec))
        return sandboxes[-1]

    def respond(sandbox, kind, text):
        if text == "lose":
            sandbox.is_lost = sandbox is sandboxes[0]
            return ok()
        made = json.loads(text)
        for name in made.get("gone", ()):
            del sandbox.contents[name]
        files = {name: b"x" * size for name, size in made["files"].items()}
        sandbox.contents.update(files)
        return ok(files=tuple(sandbox.info(name) for name in files))

    monkeypatch.setattr(assembly, "start_sandbox", start)
    settings = yard.settings.model_copy(update={"driver": "process"})
    assert yard.station("one", settings=settings).work_next().status is Status.SUCCEEDED
    (told,) = [e.text for e in yard.store.events(job_id) if e.kind == "notice"]
    return sandboxes[1], told


def making(files, gone=()):
    return python(json.dumps({"files": files, "gone": gone}))


def test_a_file_that_cannot_be_put_back_is_left_out_and_the_job_goes_on(yard, monkeypatch):
    turns = (
        making({"out": 1, "other": 2}),
        making({"out/t.csv": 3}, gone=["out"]),
        python("lose"),
        say("the end"),
    )
    job_id = yard.submit(*turns)
    second, told = remade(yard, job_id, monkeypatch)
    assert {name: len(data) for name, data in second.contents.items()} == {
        "out/t.csv": 3,
        "other": 2,
    }
    assert "except the input files, out/t.csv, other, which were restored" in told


def test_an_input_is_put_back_whatever_the_job_had_made_of_its_name(yard, monkeypatch):
    blob = Blobs(yard.home / "blobs").add(io.BytesIO(b"hello"))
    given = Input(name="data", size=blob.size, sha256=blob.sha256)
    turns = (making({"data/t.csv": 3}, gone=["data"]), python("lose"), say("the end"))
    job_id = yard.submit(*turns, inputs=(given,))
    second, told = remade(yard, job_id, monkeypatch)
    assert second.contents == {"data": b"hello"}
    assert "except the input files, which were restored" in told


def test_what_is_put_back_takes_half_of_the_workspace_at_most_the_latest_first(yard, monkeypatch):
    mib = 2**20
    turns = (
        making({"a": 3 * mib, "b": 3 * mib}),
        making({"c": 4 * mib}),
        making({"a": 3 * mib}),
        python("lose"),
        say("the end"),
    )
    job_id = yard.submit(*turns, options={"memory": 100 * mib, "workspace_size": 16 * mib})
    second, told = remade(yard, job_id, monkeypatch)
    assert sorted(second.contents) == ["a", "c"]
    for folder in ("blobs", "artifacts"):  # not for others to look into
        assert (yard.home / folder).stat().st_mode & 0o777 == 0o700
    assert "except the input files, a, c, which were restored" in told


def test_a_job_whose_workers_are_lost_again_and_again_is_buried_with_its_last_words(yard):
    job_id = yard.submit(*STEPS)
    for number in range(3):
        yard.store.claim(job_id, f"victim-{number}", lease_s=0)
    settings = yard.settings.model_copy(update={"max_losses": 3, "driver": "process"})
    assert yard.station("undertaker", settings=settings).work_next().status is Status.DEAD
    error = yard.store.get(job_id).job.error
    assert error.type == "WorkersLost"
    assert "3 workers in a row were lost while working on it" in error.message
    assert all(f"victim-{number}" in error.message for number in range(3))
    assert yard.station("two", settings=settings).work_next() is None


class Killed(BaseException):
    """The process is gone; nothing catches this."""


class Deadly(MemoryStore):
    """Kills whoever writes an event after so many more; its clock is set by hand."""

    def __init__(self):
        self.now, self.left = 1000.0, 99
        super().__init__(clock=lambda: self.now)

    def append(self, job_id, event, *, generation):
        if not self.left:
            raise Killed
        self.left -= 1
        super().append(job_id, event, generation=generation)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_job_whose_undertaker_is_killed_in_the_middle_is_buried_by_the_next(yard, written):
    yard.store = store = Deadly()
    job_id = yard.submit()
    calls = [("python_interpreter", {"code": "1"}), ("shell", {"command": "true"})]
    run = Run(History(*store.load(job_id)), store, store.claim(job_id, "first").generation)
    run.clock = lambda: store.now
    (reply,) = replies_in(json.dumps(say(None, *calls)).encode(), Path("recording"))
    run.add_reply(reply)
    run.begin(run.history.last.calls[0], "somewhere")
    for number in (1, 2):
        store.now += 1
        store.claim(job_id, f"victim-{number}")
    settings = yard.settings.model_copy(update={"max_losses": 3, "driver": "process"})
    store.now, store.left = store.now + 1, written
    with pytest.raises(Killed):
        yard.station("undertaker", settings=settings).work_next()
    store.now, store.left = store.now + LEASE_S, 99
    assert yard.station("next", settings=settings).work_next().status is Status.DEAD
    results = [e.result for e in store.events(job_id) if e.kind == "result"]
    assert [r.call_id for r in results] == [call.id for call in run.history.last.calls]
    said = store.get(job_id).job.error.message
    assert said.startswith(
        "3 workers in a row were lost while working on it; "
        "each time in call 1 (python_interpreter), which was first begun at"
    )
    assert all(name in said for name in ("first", "victim-1", "victim-2"))
    assert "undertaker" not in said


@pytest.mark.parametrize(
    ("order", "kind", "named"),
    [
        ({"options": {"memory": "3"}}, "SettingsInvalid", "memory = '3' (the job)"),
        ({"options": {"api_key": "x"}}, "SettingsInvalid", "api_key is no setting that a job"),
        ({"mounts": ["/etc/none"]}, "SpecInvalid", "/etc/none"),
    ],
)
def test_what_no_worker_can_do_fails_with_its_reason(yard, order, kind, named):
    job_id = yard.submit(*STEPS, **order)
    settings = yard.settings.model_copy(update={"driver": "process"})
    assert yard.station("one", settings=settings).work_next().status is Status.FAILED
    job = yard.store.get(job_id).job
    assert (job.finish_reason, job.error.type) == (FinishReason.FAILED, kind)
    assert named in job.error.message


@pytest.mark.parametrize(
    ("chosen", "lacking"),
    [({"model": ""}, "no model: set CAISSON_MODEL"), ({"model": "m"}, "no endpoint: set OPENAI_")],
)
def test_a_worker_that_cannot_ask_a_model_says_that_it_is_the_one(yard, chosen, lacking):
    store, wanted = yard.store, {"driver": "process", "base_url": None, "api_key": None, **chosen}
    job_id = store.create(new_job("Do it.", yard.settings, job_id=f"{yard.job}-1"), Order())
    settings = yard.settings.model_copy(update=wanted)
    assert yard.station("one", settings=settings).work_next().status is Status.FAILED
    who = f"worker one on host {socket.gethostname()} cannot ask a model as it is set up: "
    assert store.get(job_id).job.error.message.startswith(who + lacking)


def ended(yard, job_id, **settings):
    """A job whose worker was lost after its end and before it was closed."""
    claim = yard.store.claim(job_id, "lost")
    run = Run(History(*yard.store.load(job_id)), yard.store, claim.generation)
    run.end(Stop("", reason=FinishReason.ANSWERED, answer="42"))
    return yard.settings.model_copy(update={"driver": "process", **settings})


def test_a_job_that_has_ended_is_closed_as_it_ended_however_many_workers_are_lost(yard):
    job_id = yard.submit(*STEPS)
    settings = ended(yard, job_id, max_losses=1)
    for number in range(3):
        yard.store.claim(job_id, f"victim-{number}")
    assert yard.station("one", settings=settings).work_next().status is Status.SUCCEEDED
    assert yard.store.get(job_id).job.answer == "42"
    assert yard.kinds(job_id).count("ended") == 1


def test_a_job_that_has_ended_needs_no_model_to_be_closed(yard):
    job_id = yard.submit(*STEPS)
    settings = ended(yard, job_id)
    for blob in (yard.home / "blobs").glob("*/*"):
        blob.unlink()  # its recording
    assert yard.station("one", settings=settings).work_next().status is Status.SUCCEEDED


def test_after_its_end_nothing_but_a_remark_is_added(yard):
    job_id = yard.submit(*STEPS)
    ended(yard, job_id)
    claim = yard.store.claim(job_id, "two")
    run = Run(History(*yard.store.load(job_id)), yard.store, claim.generation)
    run.end(Cancelled())
    run.give_up(StoreUnavailable("away"))
    assert yard.kinds(job_id) == ["ended", "remark", "remark"]
    assert run.job.answer == "42"


class Parting(MemoryStore):
    """A store whose workers lose their engine in the moment in which they get a job."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.setenv = monkeypatch.setenv

    def claim_next(self, *arguments):
        claim = super().claim_next(*arguments)
        self.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
        return claim


@pytest.mark.engine
def test_a_job_is_cancelled_while_it_waits_for_its_engine(yard, monkeypatch):
    yard.store = Parting(monkeypatch)
    job_id = yard.submit(*STEPS)
    yard.store.request_cancel(job_id)
    assert yard.station("one").work_next().status is Status.CANCELLED
    assert yard.kinds(job_id)[-1] == "ended"


def test_a_job_keeps_to_the_longest_call_that_it_was_submitted_with(yard):
    code = "import time; time.sleep(30)"
    call = say(None, ("python_interpreter", {"code": code, "timeout_s": 25}))
    options = {"max_call_timeout_s": 1, "call_timeout_s": 1}
    job_id = yard.submit(call, say("done"), options=options)
    settings = yard.settings.model_copy(update={"driver": "process", "allow_unisolated": True})
    assert yard.station("one", settings=settings).work_next().status is Status.SUCCEEDED
    (result,) = [e.result for e in yard.store.events(job_id) if e.kind == "result"]
    assert result.execution.outcome is Outcome.TIMEOUT


@pytest.mark.engine
def test_a_former_worker_removes_no_container_of_a_later_one(yard, containers):
    job_id = yard.submit(*STEPS)
    spec = SandboxSpec(job=job_id, generation=5, linger_s=30, store=yard.store.identity)
    DockerSandbox.start(spec).detach()
    clear_as(yard, job_id)
    assert containers(job_id)


@pytest.mark.engine
def test_a_job_of_the_same_id_in_another_store_keeps_its_container(yard, containers):
    job_id = yard.submit(*STEPS)
    DockerSandbox.start(SandboxSpec(job=job_id, linger_s=30, store="another")).detach()
    clear_as(yard, job_id)
    assert containers(job_id)


@pytest.mark.engine
def test_what_an_earlier_worker_has_left_of_a_job_is_removed(yard, containers):
    job_id = yard.submit(*STEPS)
    DockerSandbox.start(SandboxSpec(job=job_id, linger_s=30, store=yard.store.identity)).detach()
    clear_as(yard, job_id)
    assert not containers(job_id)


def clear_as(yard, job_id):
    """Do what a worker of the second generation does before it opens a sandbox."""
    yard.store.claim(job_id, "lost")
    claim = yard.store.claim(job_id, "late")
    with Lease(yard.store, claim, 60, clock()) as lease:
        _Shift(yard.station("late"), claim, lease)._clear()


class Unreadable(MemoryStore):
    """A store with events of a newer version."""

    def load(self, job_id):
        raise SchemaMismatch("job x: events of a newer version; install a newer caisson")


def test_a_job_that_nobody_here_can_read_is_left_to_newer_workers_and_ends_at_last(yard):
    yard.store = Unreadable()
    job_id = yard.submit(*STEPS)
    settings = yard.settings.model_copy(update={"max_losses": 2, "lease_s": 0.0})
    station = yard.station("old", settings=settings)
    yard.store.claim(job_id, "older")
    assert station.work_next().status is Status.RUNNING
    settings = settings.model_copy(update={"lease_s": 5.0})
    assert yard.station("old", settings=settings).work_next().status is Status.DEAD
    assert "install a newer caisson" in yard.store.get(job_id).job.error.message


def test_a_workers_wrong_clock_does_not_spend_the_time_of_a_job(yard, monkeypatch):
    yard.store = MemoryStore(clock=lambda: time.time() - 7200)  # or the worker's is ahead
    job_id = yard.submit(say("done"))
    events = yard.store.events
    settings = yard.settings.model_copy(update={"driver": "process", "allow_unisolated": True})
    assert yard.station("one", settings=settings).work_next().status is Status.SUCCEEDED
    ahead = time.time() - events(job_id)[-1].at
    assert 7100 < ahead < 7300


@pytest.mark.engine
def test_what_no_worker_can_do_fails_so_also_after_a_worker_was_lost(yard):
    job_id = yard.submit(*STEPS, options={"memory": "3"})
    yard.store.claim(job_id, "lost")
    assert yard.station("one").work_next().status is Status.FAILED
    assert yard.store.get(job_id).job.error.type == "SettingsInvalid"


def test_an_input_that_is_not_here_is_named(yard):
    job_id = yard.submit(*STEPS)
    for blob in (yard.home / "blobs").glob("*/*"):
        blob.unlink()
    settings = yard.settings.model_copy(update={"driver": "process"})
    assert yard.station("one", settings=settings).work_next().status is Status.DEAD
    assert yard.store.get(job_id).job.error.type == "BlobMissing"


@pytest.mark.engine
def test_a_worker_whose_engine_went_away_takes_no_job(yard, monkeypatch):
    station = yard.station("one")
    assert station.work_next() is None
    job_id = yard.submit(*STEPS)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(EngineUnavailable):
        station.work_next()
    with pytest.raises(EngineUnavailable):
        station.seen()
    assert not yard.store.attempts(job_id)


@pytest.mark.engine
def test_a_job_is_cancelled_in_the_middle_of_a_cell_within_a_second_or_two(yard, containers):
    job_id = yard.submit(python("import time; time.sleep(60)"), STEPS[-1])
    working = threading.Thread(target=yard.station("one").work_next)
    working.start()
    yard.until_called(job_id, 1)
    started = time.monotonic()
    yard.store.request_cancel(job_id)
    working.join(10)
    assert time.monotonic() - started < 4
    assert yard.store.get(job_id).job.status is Status.CANCELLED
    assert not containers(job_id)


@pytest.mark.engine
def test_an_engine_that_stays_away_is_named_in_the_end(yard, monkeypatch):
    yard.store = Parting(monkeypatch)
    job_id = yard.submit(*STEPS)
    settings = yard.settings.model_copy(update={"engine_wait_s": 0.1})
    assert yard.station("one", settings=settings).work_next().status is Status.DEAD
    job = yard.store.get(job_id).job
    assert job.error.type == "EngineUnavailable"
    assert "/nowhere/docker.sock" in job.error.message
