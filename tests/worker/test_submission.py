"""Submitting: what can be known to fail is refused, and all that a worker needs is kept."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path

import pytest

from sandbox.errors import SpecInvalid
from worker.errors import (
    InputInvalid,
    JobExists,
    RecordingInvalid,
    SettingsInvalid,
    StoreUnavailable,
)
from worker.messages import Status
from worker.settings import Settings
from worker.store.blobs import Blobs
from worker.store.memory import MemoryStore
from worker.submission import Submission, submit

MIB = 1024 * 1024


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")


@pytest.fixture
def send(store, blobs):
    """Submit a goal: `send("x", files=(path,))`; `own` are settings of whoever submits."""

    def run(goal="Count.", own=None, **fields):
        return submit(Submission(goal=goal, **fields), Settings(**(own or {})), store, blobs)

    return run


@pytest.fixture
def refuses(send, store):
    """Submit and check that it is refused in one line, and that there is no job."""

    def run(error=InputInvalid, says="", **fields):
        with pytest.raises(error) as found:
            send(**fields)
        assert says in str(found.value)
        assert "\n" not in str(found.value)
        assert store.jobs() == ()

    return run


# ---- what never ends


@pytest.mark.parametrize("path", ["/proc/kmsg", "/proc/version", "/sys/kernel/uevent_seqnum"])
def test_the_kernels_own_files_are_refused_at_once(refuses, path, tmp_path):
    if not os.access(path, os.R_OK):
        pytest.skip(f"there is no {path} here")
    started = time.monotonic()
    (tmp_path / "table.csv").symlink_to(path)
    refuses(says="one of the kernel's own files", files=(Path(path),))
    refuses(says="one of the kernel's own files", files=(tmp_path / "table.csv",))
    refuses(says="one of the kernel's own files", replay=Path(path))
    assert time.monotonic() - started < 5


def test_a_recording_through_a_pipe_that_never_ends_is_refused(refuses, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.submission._PIPE_S", 0.3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # somebody who says nothing
    try:
        refuses(says="did not end within", replay=pipe)
    finally:
        os.close(writer)


def test_a_recording_through_a_pipe_is_cut_off_when_it_is_too_long(refuses, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.models.recorded._MOST_BYTES", 5)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        os.write(writer, b"123456")
        refuses(says="longer than 5 bytes", replay=pipe)
    finally:
        os.close(writer)


# ---- what is kept


def test_a_job_waits_with_all_that_was_asked(send, store):
    job_id = send(
        " Count. ", priority=7, deliver={"task": "t"}, options={"memory": 100 * MIB, "cpus": 0.5}
    )
    found = store.get(job_id)
    assert (found.job.status, found.job.goal) == (Status.QUEUED, "Count.")
    order = store.order(job_id)
    assert (order.memory_bytes, order.cpus) == (100 * MIB, 0.5)
    assert (order.priority, order.deliver) == (7, {"task": "t"})
    assert order.options.items() >= {"memory": 100 * MIB, "cpus": 0.5}.items()


def test_what_a_job_may_use_is_settled_and_the_model_is_the_workers_unless_chosen(send, store):
    own = {"max_steps": 9, "model": "m", "api_key": "k", "image": "i"}
    options = store.order(send(own=own)).options
    assert options["max_steps"] == 9
    assert not options.keys() & {"model", "api_key", "image", "base_url"}
    assert store.order(send(own=own, options={"model": "m"})).options["model"] == "m"
    assert Settings(max_steps=1).overlaid(json.loads(json.dumps(options))).max_steps == 9


def test_the_budget_and_the_tools_are_those_of_the_chosen_settings(send, store):
    job_id = send(own={"max_steps": 9}, options={"max_steps": 3, "tools": ["shell"]})
    job = store.get(job_id).job
    assert (job.budget.max_steps, job.tools) == (3, ("shell",))


def test_files_are_copied(send, store, blobs, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"city,stars\nX,1\n")
    job_id = send(files=(path,))
    path.unlink()
    (kept,) = store.order(job_id).inputs
    assert (kept.name, kept.size, kept.header) == ("a.csv", 15, "city,stars")
    assert blobs.path(kept.sha256).read_bytes() == b"city,stars\nX,1\n"


def test_a_recording_is_copied(send, store, blobs, tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text('{"content": "done"}\n')
    job_id = send(replay=path)
    assert store.get(job_id).job.model == f"replay of {path}"
    assert blobs.path(store.order(job_id).replay).read_bytes() == path.read_bytes()


def test_a_recording_may_come_through_a_pipe(send, store, blobs, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('{"content": "done"}\n',))
    descriptor = os.open(pipe, os.O_RDWR)  # until the writer is there the pipe is not at its end
    writer.start()
    writer.join()
    threading.Timer(0.2, os.close, (descriptor,)).start()
    job_id = send(replay=pipe)
    assert blobs.path(store.order(job_id).replay).read_text() == '{"content": "done"}\n'


def test_mounts_are_kept_as_paths_that_mean_the_same_everywhere(send, store, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    job_id = send(mounts=("data",))
    assert store.order(job_id).mounts == (str(tmp_path / "data"),)


def test_an_id_may_be_given_but_not_twice(send, store):
    assert send(id="report-7") == "report-7"
    with pytest.raises(JobExists):
        send(id="report-7")


# ---- keys


def test_two_submissions_with_one_key_are_one_job(send, store):
    assert send("one", key="k") == send("two", key="k")
    assert [found.job.goal for found in store.jobs()] == ["one"]


def test_many_submissions_with_one_key_at_once_are_one_job(send, store):
    found = []
    threads = [threading.Thread(target=lambda: found.append(send(key="k"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == len(store.jobs()) == 1


@pytest.mark.parametrize("key", ["", "  ", "k" * 201])
def test_a_key_that_cannot_have_been_meant(refuses, key):
    refuses(key=key, says="an idempotency key has 1 to 200 characters")


# ---- what is refused


@pytest.mark.parametrize("goal", ["", " \n"])
def test_an_empty_goal(refuses, goal):
    refuses(goal=goal, says="the goal is empty")


@pytest.mark.parametrize("goal", ["a\udcffb", "a\0b"])
def test_a_goal_that_no_database_can_keep(refuses, goal):
    refuses(goal=goal, says="has bytes that are not text")


def test_a_name_that_no_database_can_keep(refuses, tmp_path):
    path = tmp_path / "a\udcff.txt"
    path.touch()
    refuses(files=(path,), says="has bytes that are not text")


def test_files_and_mounts_that_are_not_there(refuses):
    refuses(files=("/nowhere/a.csv",), says="/nowhere/a.csv")
    refuses(SpecInvalid, mounts=("/nowhere",), says="/nowhere")


def test_a_mount_of_our_own_records(refuses, tmp_path):
    refuses(SpecInvalid, mounts=(tmp_path,), own={"data_dir": tmp_path / "caisson"})


def test_files_that_do_not_fit(refuses, tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(100 * MIB)
    refuses(files=(tmp_path / "big",), options={"memory": 64 * MIB}, says="do not fit")


def test_a_recording_that_cannot_be_read(refuses, tmp_path):
    path = tmp_path / "turns.jsonl"
    refuses(replay=path, says="turns.jsonl")
    path.write_text('{"content": "a"}\n{\n')
    refuses(RecordingInvalid, replay=path, says="turns.jsonl, line 2")


def test_settings_that_a_job_cannot_have(refuses):
    refuses(SettingsInvalid, options={"max_steps": 0}, says="max_steps")
    refuses(SettingsInvalid, options={"tools": ["shel"]}, says="did you mean shell?")
    refuses(SettingsInvalid, options={"database_url": "sqlite://"}, says="database_url")


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_that_cannot_be(refuses, priority):
    refuses(priority=priority, says=f"priority {priority}: ")


def test_an_id_that_cannot_be(refuses):
    refuses(id="a b", says="a b")


def test_a_file_that_grows_while_it_is_read(refuses, tmp_path):
    path, done = tmp_path / "log", threading.Event()
    path.write_bytes(b"x" * 30 * MIB)

    def write():
        with path.open("ab", buffering=0) as log:
            while not done.is_set():
                log.write(b"line\n")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        refuses(files=(path,), says="log changed while it was read")
    finally:
        done.set()
        writer.join()


def test_a_file_that_is_written_anew_while_it_is_read(tmp_path, store):
    path = tmp_path / "data"
    path.write_bytes(b"old")

    class Meanwhile(Blobs):
        def add(self, source):
            blob = super().add(source)
            path.write_bytes(b"new")
            os.utime(path, (1, 1))
            return blob

    with pytest.raises(InputInvalid, match="changed while it was read"):
        submit(Submission(goal="x", files=(path,)), Settings(), store, Meanwhile(tmp_path / "b"))
    assert store.jobs() == ()


def test_without_room_for_its_files_there_is_no_job(tmp_path, store, send):
    (tmp_path / "blobs").touch()
    (tmp_path / "a").touch()
    with pytest.raises(StoreUnavailable, match="a file cannot be kept"):
        send(files=(tmp_path / "a",))
    assert store.jobs() == ()


def test_a_submission_is_data_that_a_message_can_carry(store, blobs, tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    what = Submission(goal="x", files=(tmp_path / "a",), options={"max_steps": 2})
    again = Submission.model_validate(json.loads(what.model_dump_json()))
    assert again == what
    order = store.order(submit(again, Settings(), store, blobs))
    assert order.inputs[0].sha256 == blobs.add(io.BytesIO(b"1")).sha256
