"""The commands for queued jobs, as people and programs use them.

The worker is in this process, and does one thing when a test says so.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, PARTS, Ended, wait_for
from worker.cli_app import guarded
from worker.history import History
from worker.hooks import Run
from worker.messages import Remarked, Status
from worker.settings import Settings
from worker.station import Station
from worker.store.database import open_store
from worker.store.tables import VERSION_TABLE

KEYS = ["id", "status", "finish_reason", "answer", "steps", "usage", "artifacts", "error"]
WORK = {"python_interpreter": {"code": "open('out.txt', 'w').write('10')"}}
SLOW = {"python_interpreter": {"code": "print('here', flush=True)\nimport time\ntime.sleep(60)"}}
UNISOLATED = {"driver": "process", "allow_unisolated": True}


class Office:
    """The queue of one data folder: its store, and a worker that works when it is told to."""

    def __init__(self, home):
        self.settings = Settings(data_dir=home, **UNISOLATED)
        self.store = open_store(self.settings.database)
        self.station = Station(self.settings, self.store, name="here-1.1")

    def work(self):
        """Do all that is due."""
        while self.station.work_next() is not None:
            pass

    def be_seen(self):
        self.store.see(self.station.seen())

    @property
    def jobs(self):
        return self.store.jobs()


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def office(home):
    made = Office(home)
    yield made
    made.store.close()


@pytest.fixture
def call(home, tmp_path, monkeypatch, capsys):
    """Run a command on that queue, in this process, where it is loaded already."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(PARTS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CAISSON_DATA_DIR", str(home))

    def run(*arguments, **env):
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            code = guarded([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def start(begin, home):
    """Start a command on that queue, without waiting for it."""
    return lambda *arguments, **env: begin(*arguments, **{"CAISSON_DATA_DIR": home, **env})


@pytest.fixture
def submitted(call, recording):
    """Submit a job of these turns and return its id."""

    def run(*turns, goal="add up", options=()):
        ended = call("submit", goal, "--replay", recording(*turns), *options)
        assert ended.code == 0, ended
        return ended.out.strip()

    return run


@pytest.fixture
def refused(call):
    """Run a command and check that it is answered with one line and exit code 2."""

    def run(*arguments, says, code=2, **env):
        ended = call(*arguments, **env)
        assert ended.code == code, ended
        assert not ended.out
        assert ended.err.startswith("caisson: ")
        assert ended.err.count("\n") == 1, ended.err
        for part in [says] if isinstance(says, str) else says:
            assert part in ended.err
        return ended.err

    return run


# ---- submit


def test_a_submitted_job_is_an_id_and_what_to_do_next(call, recording, office):
    ended = call("submit", "add up", "--replay", recording("10"))
    (job_id,) = (found.job.id for found in office.jobs)
    assert (ended.code, ended.out) == (0, f"{job_id}\n")
    assert ended.err == (
        "caisson: waits for a worker; none runs (caisson worker starts one); "
        f"watch it: caisson watch {job_id}\n"
    )


def test_programs_are_given_the_object_of_run(call, recording, office):
    office.be_seen()
    ended = call("submit", "add up", "--replay", recording("10"), "--json")
    assert list(ended.object) == KEYS
    assert (ended.object["status"], ended.object["answer"]) == ("queued", None)
    assert not ended.err


def test_what_was_given_goes_with_the_job(call, recording, office, tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "data").mkdir()
    options = ["--file", "a.csv", "--mount", "data", "--memory", "100m", "--priority", "7"]
    options += ["--max-steps", "3", "--timeout", "60", "--idempotency-key", "k"]
    call("submit", "add up", "--replay", recording("10"), *options, CAISSON_PIDS="32")
    (found,) = office.jobs
    order = office.store.order(found.job.id)
    assert [file.name for file in order.inputs] == ["a.csv"]
    assert order.mounts == (str(tmp_path / "data"),)
    assert (order.priority, order.key, order.memory_bytes) == (7, "k", 100 * 1024**2)
    chosen = {"max_steps": 3, "job_timeout_s": 60.0, "memory": 100 * 1024**2, "pids": 32}
    assert order.options.items() >= chosen.items()


def test_no_secret_goes_with_a_job(call, home, office):
    call("submit", "x", "--model", "m", OPENAI_API_KEY="sk-secret", OPENAI_BASE_URL="http://x/v1")
    (found,) = office.jobs
    options = office.store.order(found.job.id).options
    assert options["model"] == "m"
    assert not options.keys() & {"api_key", "base_url"}
    ended = call("submit", "x")
    assert "no model is chosen here (CAISSON_MODEL or --model)" in ended.err
    assert not any(b"sk-secret" in path.read_bytes() for path in home.rglob("*.db*"))


def test_one_key_is_one_job(submitted, call, recording, office):
    job_id = submitted("10", options=("--idempotency-key", "k"))
    again = call("submit", "other", "--replay", recording("10"), "--idempotency-key", "k")
    assert (again.code, again.out) == (0, f"{job_id}\n")
    assert f"job {job_id} has this idempotency key already" in again.err
    assert len(office.jobs) == 1


def test_whoever_waits_is_given_the_end_and_the_exit_code_of_run(start, recording, office):
    process = start("submit", "x", "--replay", recording(WORK, "10"), "--wait", "--json")
    wait_for(lambda: office.jobs)
    office.work()
    out, err = process.communicate(timeout=20)
    found = json.loads(out)
    assert process.returncode == 0
    assert (found["status"], found["answer"]) == ("succeeded", "10")
    assert Path(found["artifacts"][0]["path"]).read_text() == "10"
    assert err in {"", "· it waits for a worker; none runs (caisson worker starts one)\n"}


def test_a_budget_that_was_spent_elsewhere_is_exit_code_3(start, recording, office, tmp_path):
    turns = recording(*({"calculate": {"expression": f"{n}"}} for n in range(5)), "late")
    options = ("--max-steps", "2", "--wait", "--record", "again.jsonl")
    process = start("submit", "x", "--replay", turns, *options)
    wait_for(lambda: office.jobs)
    office.work()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "✗ budget" in out
    assert "Ctrl-C ends the waiting, not the job" in err
    lines = (tmp_path / "again.jsonl").read_text().splitlines()
    assert [json.loads(line)["role"] for line in lines] == ["assistant"] * 3


def test_ctrl_c_ends_the_waiting_and_not_the_job(start, recording, office):
    process = start("submit", "x", "--replay", recording("10"), "--wait")
    wait_for(lambda: office.jobs)
    wait_for(lambda: "it waits" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    (found,) = office.jobs
    assert (process.returncode, out) == (130, "")
    assert err == f"caisson: the job goes on; end it with: caisson cancel {found.job.id}\n"
    assert (found.job.status, found.is_cancelling) == (Status.QUEUED, False)


def test_a_broker_that_does_not_answer_loses_no_job(call, recording, office):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    broker = f"redis://:pa55word@127.0.0.1:{port}/0"
    ended = call("submit", "x", "--replay", recording("10"), CAISSON_BROKER_URL=broker)
    assert "none runs" not in ended.err
    assert ended.code == 0
    assert len(office.jobs) == 1
    first, _ = ended.err.splitlines()
    assert first.startswith("caisson: the job is stored, and a worker will find it; ")
    assert f"127.0.0.1:{port}" in first
    assert "pa55word" not in ended.err


def test_what_cannot_be_is_refused_and_nothing_is_stored(refused, recording, office, tmp_path):
    replay = ("--replay", recording("10"))
    refused("submit", " ", *replay, says="the goal is empty")
    refused("submit", "x", *replay, "--file", "nope.csv", says="nope.csv")
    refused("submit", "x", *replay, "--model", "m", says=["--model", "--replay"])
    refused("submit", "x", *replay, "--record", "r.jsonl", says=["--record", "--wait"])
    refused("submit", "x", *replay, "--priority", "101", says="--priority 101: must be")
    refused("submit", "x", *replay, "--priority", "high", says="--priority high: is not a whole")
    refused("submit", "x", *replay, "--idempotency-key", "", says="idempotency key")
    refused("submit", "x", *replay, "--memory", "1k", says="--memory")
    assert not (tmp_path / "r.jsonl").exists()
    assert office.jobs == ()


# ---- jobs, show


def test_a_list_says_who_works_and_what_waits_for_what(submitted, call, office):
    done = submitted("10", goal="first")
    office.be_seen()
    office.work()
    waiting = submitted("10", goal="second\nwith\x1b[31m lines", options=("--memory", "999g"))
    office.work()
    lines = call("jobs").out.splitlines()
    assert lines[0].split() == ["id", "status", "steps", "age", "goal", "note"]
    assert lines[1].split()[:4] == [waiting, "○", "queued", "0"]
    assert "second with" in lines[1]
    assert "waits for 999 GiB of memory" in lines[1]
    assert "\x1b" not in lines[1]
    assert lines[2].split()[:4] == [done, "✓", "succeeded", "1"]
    assert lines[-1] == "1 worker was seen in the last minute: here-1.1"
    assert call("jobs", "--status", "succeeded", "--limit", "1").out.count(done) == 1


def test_a_list_for_programs(submitted, call, office):
    job_id = submitted("10")
    (found,) = call("jobs", "--json").object
    assert (found["id"], found["status"], found["goal"]) == (job_id, "queued", "add up")
    assert found["waits_for"] == "a worker; none runs (caisson worker starts one)"
    assert found["worker"] is None
    office.work()
    (found,) = call("jobs", "--json").object
    assert (found["status"], found["waits_for"]) == ("succeeded", None)


def test_a_list_without_jobs_says_how_to_get_one(call):
    ended = call("jobs")
    assert ended.out.splitlines() == [
        "no jobs yet; submit one: caisson submit GOAL",
        "no worker was seen in the last minute; start one with: caisson worker",
    ]
    assert call("jobs", "--status", "dead").out.startswith("no job is dead\n")
    assert call("jobs", "--json").object == []


def test_a_terminal_is_never_too_narrow_for_ids(submitted, environment, home, tmp_path):
    job_id = submitted("10", goal="long " * 50)
    lines = on_terminal(["jobs"], {**environment, "COLUMNS": "60"}, home, tmp_path).splitlines()
    assert lines[1].startswith(job_id)
    assert all(len(line) <= 60 for line in lines[:3])
    assert lines[1].endswith("…")
    assert lines[2].startswith("  waits for a worker")


def on_terminal(arguments, environment, home, folder):
    """What a command writes to a terminal, without its colours."""
    main, other = pty.openpty()
    env = {**environment, "TERM": "xterm-256color", "CAISSON_DATA_DIR": str(home)}
    process = subprocess.Popen(
        [COMMAND, *arguments], cwd=folder, env=env, stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    out = b""
    with suppress(OSError):  # how Linux says that the other end of a terminal is closed
        while data := os.read(main, 4096):
            out += data
    os.close(main)
    assert process.wait(30) == 0
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.decode()).replace("\r", "")


def test_a_job_is_shown_to_programs_as_run_shows_it_at_any_time(submitted, call, office):
    job_id = submitted(WORK, "10")
    before = call("show", job_id, "--json").object
    assert list(before) == KEYS
    assert (before["status"], before["steps"]) == ("queued", 0)
    office.work()
    after = call("show", job_id, "--json").object
    assert list(after) == KEYS
    assert (after["status"], after["answer"], after["steps"]) == ("succeeded", "10", 2)
    (artifact,) = after["artifacts"]
    assert list(artifact) == ["name", "size", "mime", "path"]


def test_a_person_is_shown_all_about_a_job(submitted, call, office):
    job_id = submitted(WORK, "The **sum** is 10.", options=("--priority", "3"))
    shown = call("show", job_id).out
    assert f"watch it: caisson watch {job_id}" in shown
    office.store.release(job_id, generation=office.store.claim(job_id, "w1", 30).generation)
    office.work()
    lines = [" ".join(line.split()) for line in call("show", job_id).out.splitlines()]
    assert lines[:2] == [f"job {job_id}", "status ✓ succeeded"]
    assert "priority +3" in lines
    place = lines.index("── attempts")
    assert re.fullmatch(r"1 [\d:]+ w1 let go of it \d+ ms", lines[place + 1])
    assert re.fullmatch(r"2 [\d:]+ here-1\.1 finished .+", lines[place + 2])
    assert lines[lines.index("── goal") + 1] == "add up"
    assert lines[lines.index("── answer") + 1] == "The **sum** is 10."
    assert "✓ answered 2 steps" in lines
    assert "+ out.txt 2 B text/plain" in lines


def test_a_part_of_an_id_will_do_and_a_wrong_one_is_asked_about(submitted, call, refused):
    first, second = submitted("10"), submitted("10")
    assert call("show", first[-6:], "--json").object["id"] == first
    wrong = ("x" if first[-1] != "x" else "y").join([first[:-1], ""])
    refused("show", wrong, says=[f"there is no job {wrong!r}; did you mean ", first])
    refused("show", first[:8], says=[f"{first[:8]!r} may be any of ", first, second])
    refused("show", "", says="there is no job ''")
    refused("show", "202", says="there is no job '202'")
    refused("show", "\udcff", says="there is no job")
    for command in ("show", "watch", "artifacts", "cancel"):
        refused(command, "nope", says="there is no job 'nope'; caisson jobs lists those there are")


def test_a_list_that_cannot_be(refused):
    refused("jobs", "--status", "done", says=["--status done", "queued, running", "dead"])
    refused("jobs", "--limit", "0", says="--limit")


@pytest.fixture
def away():
    """Settings with a broker that is not there, and what is said of it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    address = f"redis://me:pa55word@127.0.0.1:{port}/0"
    said = f"the broker redis://me:***@127.0.0.1:{port}/0 cannot be reached: "
    return {"CAISSON_BROKER_URL": address}, said


def test_a_broker_that_is_away_is_named_wherever_workers_would_be_blamed(submitted, call, away):
    settings, said = away
    job_id = submitted("10")
    listed = call("jobs", **settings).out.splitlines()
    assert f"waits for the broker; {said}" in listed[1]
    assert listed[-1].startswith(said)
    assert "caisson worker" not in str(listed)
    (found,) = call("jobs", "--json", **settings).object
    assert found["waits_for"].startswith(f"the broker; {said}")
    shown = call("show", job_id, **settings).out
    assert f"waits for the broker; {said}" in shown
    assert "pa55word" not in f"{listed}{found}{shown}"


def test_the_health_check_names_a_broker_that_is_away(call, office, away):
    settings, said = away
    own = {"CAISSON_DRIVER": "process", "CAISSON_ALLOW_UNISOLATED": "true"}
    ended = call("worker", "--check", **own, **settings)
    assert (ended.code, ended.out) == (5, "")
    assert ended.err.startswith(f"caisson: {said}")
    assert "pa55word" not in ended.err
    assert "no worker on " in call("worker", "--check", **own).err


# ---- watch


def test_watching_a_job_that_is_over_shows_its_trace(submitted, call, office):
    job_id = submitted({"say": "I count.", **WORK}, "The sum is 10.")
    office.work()
    ended = call("watch", job_id)
    lines = [line.strip() for line in ended.out.splitlines()]
    wanted = ["add up", "I count.", "open('out.txt', 'w').write('10')", "The sum is 10."]
    places = [lines.index(line) for line in wanted]
    assert places == sorted(places)
    assert any("29 steps · 60 min left" in line or "59 min left" in line for line in lines)
    assert "✓ answered  2 steps" in lines
    assert ended.code == 0


def test_watching_for_programs_is_events_and_at_last_the_job(submitted, call, office):
    job_id = submitted(WORK, "10", goal="x")
    office.work()
    ended = call("watch", job_id, "--json")
    *events, last = map(json.loads, ended.out.splitlines())
    kinds = [event["kind"] for event in events]
    assert kinds[:4] == ["message", "message", "opened", "reply"]
    assert kinds.index("ended") > kinds.index("result")
    assert last == {"kind": "job", "job": call("show", job_id, "--json").object}


def test_programs_are_given_any_text_and_no_raw_control_characters(submitted, call, office):
    said = "half \ud83d, \x9b31m and \x85"
    job_id = submitted("10")
    claim = office.store.claim(job_id, "w")
    office.store.append(job_id, Remarked(text=said, at=time.time()), generation=claim.generation)
    office.store.release(job_id, generation=claim.generation)
    office.work()
    ended = call("watch", job_id, "--json")
    assert ended.code == 0
    assert ended.out.isascii()
    assert json.loads(ended.out.splitlines()[0])["text"] == said


def test_a_job_can_be_watched_while_it_works_and_left_alone(submitted, start, office):
    job_id = submitted(SLOW, "no")
    worker = threading.Thread(target=office.work)
    process = start("watch", job_id)
    assert "it waits for" in process.stdout.readline()
    worker.start()
    seen = []
    wait_for(lambda: seen.append(process.stdout.readline()) or "time.sleep(60)" in seen[-1])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err == f"caisson: the job goes on; end it with: caisson cancel {job_id}\n"
    assert office.store.get(job_id).job.status is Status.RUNNING
    office.store.request_cancel(job_id)
    worker.join(20)
    assert office.store.get(job_id).job.status is Status.CANCELLED


def test_a_reader_that_goes_away_ends_the_watching(submitted, start, office):
    job_id = submitted("10")
    for options in ([], ["--json"]):
        process = start("watch", job_id, *options)
        if not options:
            assert "it waits for" in process.stdout.readline()
        process.stdout.close()
        remark(office, job_id)
        assert process.wait(20) == 141
        assert not process.stderr.read()


def remark(office, job_id):
    """Let a line of the trace be written."""
    claim = office.store.claim(job_id, "w1", 0)
    run = Run(History(*office.store.load(job_id)), office.store, claim.generation)
    run.remark("a word")
    office.store.release(job_id, generation=claim.generation)


def test_a_dead_job_is_exit_code_5_with_its_reason(submitted, call, office):
    job_id = submitted("10")
    kill(office, job_id)
    ended = call("watch", job_id)
    assert ended.code == 5
    assert "✗ dead  0 steps\n  no engine at all\n" in ended.out
    assert ended.err == ""
    lines = call("watch", job_id, "--json")
    assert (lines.code, lines.err) == (5, "caisson: no engine at all\n")
    assert "  no engine at all" in call("show", job_id).out.splitlines()


def kill(office, job_id):
    claim = office.store.claim(job_id, "w1", 30)
    run = Run(History(*office.store.load(job_id)), office.store, claim.generation)
    run.give_up(RuntimeError("no engine at all"))
    office.store.release(job_id, generation=claim.generation)


# ---- cancel


def test_cancelling_in_the_queue_and_in_a_call(submitted, call, office):
    queued = submitted("10")
    ended = call("cancel", queued)
    assert (ended.code, ended.out, ended.err) == (0, f"– cancelled  {queued}\n", "")
    running = submitted(SLOW, "no")
    worker = threading.Thread(target=office.work)
    worker.start()
    wait_for(lambda: any(e.kind == "call" for e in office.store.events(running)))
    ended = call("cancel", running[-6:], "--json")
    worker.join(20)
    (found,) = ended.object
    assert (ended.code, found["id"], found["status"]) == (0, running, "cancelled")


def test_cancelling_a_job_whose_worker_does_not_answer(submitted, call, office):
    job_id = submitted("10")
    office.store.claim(job_id, "w1", 300)
    ended = call("cancel", job_id)
    assert ended.code == 0
    assert ended.out == f"● running, asked to end; w1 has not done so yet  {job_id}\n"
    assert call("jobs").out.splitlines()[1].endswith("on w1, is being cancelled")


def test_cancelling_what_is_over_is_wrong_use_unless_it_was_cancelled(submitted, call, office):
    done = submitted("10")
    office.work()
    queued = submitted("10")
    ended = call("cancel", done, queued)
    assert (ended.code, ended.out) == (2, f"– cancelled  {queued}\n")
    assert ended.err == f"caisson: job {done} is over: succeeded\n"
    ended = call("cancel", queued)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"caisson: job {queued} is cancelled already\n"


def test_with_one_id_that_is_wrong_nothing_is_cancelled(submitted, refused, office):
    job_id = submitted("10")
    refused("cancel", job_id, "nope", says="none of the others is cancelled")
    assert not office.store.is_cancel_requested(job_id)


# ---- artifacts


def test_artefacts_are_listed_and_copied_but_never_over_others(submitted, call, refused, office):
    job_id = submitted(WORK, "10")
    assert call("artifacts", job_id).out == f"job {job_id} has no artefacts yet\n"
    office.work()
    listed = call("artifacts", job_id, "--json").object
    assert listed == call("show", job_id, "--json").object["artifacts"]
    assert "+ out.txt  2 B  text/plain" in call("artifacts", job_id).out
    (copied,) = call("artifacts", job_id, "--to", "to/here", "--json").object
    path = Path(copied["path"])
    assert path.parts[-3:] == ("to", "here", "out.txt")
    assert path.read_text() == "10"
    path.write_text("mine")
    refused("artifacts", job_id, "--to", "to/here", says=["out.txt", "--overwrite"])
    assert path.read_text() == "mine"
    assert call("artifacts", job_id, "--to", "to/here", "--overwrite").code == 0
    assert path.read_text() == "10"


# ---- the database


def test_a_database_that_cannot_be_reached_is_named_without_its_password(refused, recording):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    url = f"postgresql://me:pa55word@127.0.0.1:{port}/jobs"
    for command in (["jobs"], ["submit", "x", "--replay", recording("10")], ["db", "upgrade"]):
        said = refused(*command, says=f"127.0.0.1:{port}", code=5, CAISSON_DATABASE_URL=url)
        assert "pa55word" not in said
    refused("jobs", says="CAISSON_DATABASE_URL", CAISSON_DATABASE_URL="mysql://x")


def test_the_same_commands_on_postgresql(call, recording, postgres_url):
    def ask(*arguments):
        return call(*arguments, CAISSON_DATABASE_URL=postgres_url)

    job_id = ask("submit", "add", "--replay", recording("10"), "--idempotency-key", "k").out.strip()
    again = ask("submit", "add", "--replay", recording("10"), "--idempotency-key", "k", "--json")
    assert again.object["id"] == job_id
    assert [found["id"] for found in ask("jobs", "--status", "queued", "--json").object] == [job_id]
    assert ask("show", "\udcff").code == 2
    assert ask("cancel", job_id[-6:]).out == f"– cancelled  {job_id}\n"
    assert ask("watch", job_id).code == 130
    assert f"job     {job_id}\n" in ask("show", job_id).out


def test_a_schema_of_another_version_names_the_remedy(call, refused, office):
    set_revision(office, "newer")
    refused("jobs", says="install a newer caisson")
    refused("db", "upgrade", says="install a newer caisson")


def test_a_database_is_upgraded_once(call):
    first, again = call("db", "upgrade", "--json"), call("db", "upgrade", "--json")
    assert first.object["before"] is None
    assert again.object == {"before": first.object["after"], "after": first.object["after"]}
    assert "already" in call("db", "upgrade").out


def set_revision(office, revision):
    import sqlite3  # noqa: PLC0415 - only here

    with closing(sqlite3.connect(office.settings.home / "caisson.db")) as database:
        database.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (revision,))
        database.commit()


# ---- all of them


def test_help_loads_nothing_heavy():
    code = (
        "import sys, worker.cli_app; "
        "print({'celery', 'sqlalchemy', 'pydantic', 'rich.console', 'docker'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("command", ["submit", "jobs", "show", "watch", "cancel", "artifacts"])
def test_each_command_explains_itself(caisson, command):
    ended = caisson(command, "--help")
    assert ended.code == 0
    assert f"Usage: caisson {command}" in ended.out
    assert "Exit codes: 0 " in ended.out
