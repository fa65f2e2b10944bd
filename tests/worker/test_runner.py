"""Jobs from goal to end: inputs, artefacts, lost sandboxes, and what is refused at the door."""

from __future__ import annotations

import json
import threading

import pytest

from sandbox.errors import EngineUnavailable, ProtocolError, SandboxLost, SpecInvalid
from sandbox.types import FileInfo, Limits, SandboxSpec
from worker import assembly
from worker.artifacts import Shelf, safe_names
from worker.builtin import Workplace
from worker.errors import InputInvalid, ModelTimeout, ModelUnavailable, RecordingInvalid, Stop
from worker.history import History
from worker.hooks import Run
from worker.messages import (
    FinishReason,
    Job,
    Message,
    Reply,
    ResultStatus,
    SandboxOpened,
    Status,
    ToolResult,
)
from worker.runner import JobRequest, Runner, collect_rest, keeper, run_job
from worker.settings import Settings
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ScriptedModel, ok, say

from .conftest import Watching

PYTHON = "python_interpreter"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def play(tmp_path):
    """Run a job over a recording and fake sandboxes; returns it and the sandboxes used."""

    def run(*messages, sandboxes=None, request=None, observer=None, is_cancelled=None, **settings):
        (tmp_path / "turns.jsonl").write_text("".join(json.dumps(m) + "\n" for m in messages))
        asked = {"goal": "Count.", "replay": tmp_path / "turns.jsonl", **(request or {})}
        waiting = list(sandboxes or [FakeSandbox()])
        used = []

        def open_sandbox(spec):
            sandbox = waiting.pop(0)
            if isinstance(sandbox, Exception):
                raise sandbox
            used.append(sandbox)
            return sandbox

        job = run_job(
            JobRequest.model_validate(asked),
            Settings(**settings),
            observer=observer,
            is_cancelled=is_cancelled or (lambda: False),
            open_sandbox=open_sandbox,
        )
        return job, used

    return run


def test_input_files_are_there_before_the_model_is_asked_and_are_named(play, tmp_path, bench):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfcity,stars\nX,1\n")
    (tmp_path / "b.bin").write_bytes(b"\0" * 2048)
    files = (tmp_path / "a.csv", tmp_path / "b.bin")
    watching = type(bench().watching)()
    job, used = play(say("2"), request={"files": files}, observer=watching)
    assert job.answer == "2"
    assert used[0].contents["a.csv"].endswith(b"X,1\n")
    goal = watching.events[1].message.text
    assert goal == (
        "Count.\n\nFiles in the current folder:\n- a.csv (18 B), first line: city,stars\n"
        "- b.bin (2.0 KiB)\n\n"
        "Begin with a tool call that loads them, shows their first rows, and "
        "computes what is asked for."
    )


def test_mounts_are_named_and_reach_the_spec(tmp_path, monkeypatch):
    folder = tmp_path / "logs"
    folder.mkdir()
    tmp_path.chmod(0o755)
    mounts = assembly.read_mounts([folder])
    assert str(mounts[0].target) == "/mnt/logs"
    assert "To read only:\n- /mnt/logs" in assembly.opening("g", (), mounts)[1].text


def test_the_data_folder_cannot_be_mounted(tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    (tmp_path / "data").mkdir()
    with pytest.raises(SpecInvalid):
        assembly.read_mounts([tmp_path / "data"], settings)


# ---- artefacts


def make(*names):
    def respond(sandbox, kind, text):
        for name in names:
            sandbox.contents[name] = b"x" * 10
        files = tuple(sandbox.info(name, "image/png") for name in names)
        return ok("made", files=files)

    return FakeSandbox(respond)


def test_files_that_calls_made_are_taken_out_into_a_folder_of_the_job(play, tmp_path):
    job, used = play(
        say(None, (PYTHON, {"code": "x"}), ("write_file", {"name": "t/n.txt", "content": "hi"})),
        say("done"),
        sandboxes=[make("plot.png")],
    )
    folder = tmp_path / "caisson-out" / job.id
    names = {a.name: (a.size, a.mime, a.path) for a in job.artifacts}
    assert names == {
        "plot.png": (10, "image/png", str(folder / "plot.png")),
        "t/n.txt": (2, "text/plain", str(folder / "t" / "n.txt")),
    }
    assert (folder / "plot.png").read_bytes() == b"x" * 10
    assert used[0].is_closed
    assert job.summary()["artifacts"][0]["path"] == str(folder / "plot.png")


def test_with_a_data_folder_artefacts_lie_there(play, tmp_path):
    job, _ = play(
        say(None, (PYTHON, {"code": "x"})),
        say("done"),
        sandboxes=[make("plot.png")],
        data_dir=tmp_path / "data",
    )
    assert job.artifacts[0].path == str(tmp_path / "data" / "artifacts" / job.id / "plot.png")
    for folder in ("data", "data/artifacts"):  # not for others to look into
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_a_job_that_made_nothing_leaves_no_folder(play, tmp_path):
    play(say("done"))
    assert not (tmp_path / "caisson-out").exists()


def test_full_outputs_of_calls_are_no_artefacts(play):
    def respond(sandbox, kind, text):
        sandbox.contents["output/1.txt"] = b"long"
        files = (sandbox.info("output/1.txt"),)
        return ok("cut", files=files, output_truncated=True, output_file="output/1.txt")

    job, _ = play(say(None, (PYTHON, {"code": "x"})), say("done"), sandboxes=[FakeSandbox(respond)])
    assert job.artifacts == ()


def test_numbers_and_sizes_are_capped_and_what_is_left_behind_is_named(play, bench):
    watching = type(bench().watching)()
    job, _ = play(
        say(None, (PYTHON, {"code": "x"})),
        say("done"),
        sandboxes=[make("a", "b", "c", "d")],
        observer=watching,
        max_artifacts=3,
        max_artifact_bytes=25,
    )
    assert [a.name for a in job.artifacts] == ["a", "b"]
    remarks = " ".join(e.text for e in watching.of("remark"))
    assert "1 files more than 3" in remarks
    assert "c was left behind" in remarks


def test_no_file_is_larger_than_what_may_be_read_from_the_sandbox(play, bench):
    watching = type(bench().watching)()
    sandbox = make("a")
    sandbox.spec = SandboxSpec(limits=Limits(read_bytes=9))
    job, _ = play(
        say(None, (PYTHON, {"code": "x"})), say("done"), sandboxes=[sandbox], observer=watching
    )
    assert job.artifacts == ()
    assert "a was left behind: a: 10 bytes, the limit is 9" in watching.of("remark")[0].text


def test_a_file_that_is_gone_again_does_not_hide_the_others(play, bench):
    sandbox = make("a", "b")
    fine = sandbox.respond

    def respond(sandbox, kind, text):
        execution = fine(sandbox, kind, text)
        del sandbox.contents["a"]
        return execution

    sandbox.respond = respond
    job, _ = play(say(None, (PYTHON, {"code": "x"})), say("done"), sandboxes=[sandbox])
    assert [a.name for a in job.artifacts] == ["b"]


@pytest.mark.parametrize(
    ("names", "safe"),
    [
        (["a.png", "A.png", "a.png"], ["a.png", "A-2.png", "a-3.png"]),
        (["../../etc/passwd"], ["etc/passwd"]),
        (["/abs/x"], ["abs/x"]),
        (["a/../b"], ["a/b"]),
        ([".ssh/id"], ["ssh/id"]),
        (["new\nline\x1b[31m"], ["new_line_[31m"]),
        (["a\u202egnp.exe"], ["a_gnp.exe"]),
        (["", "..", "..."], ["file", "file-2", "file-3"]),
        (["x" * 300 + ".png"], ["x" * 120 + ".png"]),
        (["/".join("abcdefghijkl")], ["e/f/g/h/i/j/k/l"]),
    ],
)
def test_names_are_made_harmless(names, safe):
    files = [FileInfo(name=name, size=1, mime="x") for name in names]
    assert list(safe_names(files)) == safe


# ---- what breaks


def losing(at):
    """A sandbox that is lost in its nth call."""
    calls = []

    def respond(sandbox, kind, text):
        calls.append(text)
        if len(calls) == at:
            sandbox.is_lost = True
        return ok(text)

    return FakeSandbox(respond)


SCRIPT = [say(None, (PYTHON, {"code": f"step({i})"})) for i in range(4)] + [say("done")]


def test_a_lost_sandbox_is_replaced_once_with_its_inputs_and_the_model_is_told(
    play, tmp_path, bench
):
    (tmp_path / "in.txt").write_text("data")
    watching = type(bench().watching)()
    job, used = play(
        *SCRIPT,
        sandboxes=[losing(2), FakeSandbox()],
        request={"files": (tmp_path / "in.txt",)},
        observer=watching,
    )
    assert job.answer == "done"
    assert used[0].is_closed
    assert used[1].is_closed
    assert used[1].contents == {"in.txt": b"data"}
    assert used[1].ran == ["step(2)", "step(3)"]  # the lost call is not silently repeated
    results = [e.result for e in watching.of("result")]
    assert results[1].status is ResultStatus.UNKNOWN
    notice = watching.of("notice")[0].text
    assert "lost (the container was removed from outside)" in notice
    assert "variables and files are gone, except the input files" in notice
    assert watching.of("sandbox")[0].why == "the container was removed from outside"


def test_an_input_that_is_gone_when_a_sandbox_is_replaced_ends_the_job(play, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("data")

    def respond(sandbox, kind, text):
        path.unlink()
        sandbox.is_lost = True
        return ok(text)

    sandboxes = [FakeSandbox(respond), FakeSandbox()]
    job, used = play(*SCRIPT, sandboxes=sandboxes, request={"files": (path,)})
    assert (job.status, job.error.type) == (Status.DEAD, "InputInvalid")
    assert job.error.message == f"cannot read {path}: No such file or directory"
    assert all(s.is_closed for s in used)


def ended_with(tmp_path, sandbox, *, cuts):
    """A job that has ended with a file in its sandbox, whose link breaks `cuts` times."""
    hosts, left = [], [cuts]

    def adopt(place):
        assert place == sandbox.place
        host = sandbox.adopted()
        read = host.read_file

        def read_or_break(name, target, *, max_bytes=None):
            if name == "b" and left[0] > 0:
                left[0] -= 1
                host.is_cut = True
            return read(name, target, max_bytes=max_bytes)

        host.read_file = read_or_break
        hosts.append(host)
        return host

    store = MemoryStore()
    store.create(Job(id="j", goal="g"))
    watching = Watching()
    run = Run(History(*store.load("j")), store, store.claim("j").generation, watching)
    run.append(SandboxOpened(place=sandbox.place))
    reply = say(None, (PYTHON, {"code": "x"}))
    run.add_reply(Reply(message=Message.from_wire(reply)))
    sandbox.contents.update(a=b"1", b=b"2")
    files = (sandbox.info("a"), sandbox.info("b"))
    (call,) = run.history.last.calls
    run.add_result(
        ToolResult(call_id=call.id, name=PYTHON, status=ResultStatus.OK, text="", files=files)
    )
    run.end(Stop("", reason=FinishReason.ANSWERED, answer="42"))
    place = Workplace(FakeSandbox, adopt=adopt)
    collect_rest(run, place, keeper(Shelf(tmp_path / "out"), Settings()))
    place.close()
    return run.job, [event.text for event in watching.of("remark")]


def test_a_link_that_breaks_while_files_are_taken_is_made_anew(tmp_path):
    sandbox = FakeSandbox()
    job, remarks = ended_with(tmp_path, sandbox, cuts=3)
    assert [a.name for a in job.artifacts] == ["a", "b"]
    assert remarks == []
    assert sandbox.is_closed


def test_a_link_that_breaks_again_and_again_loses_files_and_leaves_no_sandbox(tmp_path):
    sandbox = FakeSandbox()
    job, remarks = ended_with(tmp_path, sandbox, cuts=99)
    assert [a.name for a in job.artifacts] == ["a"]
    assert remarks == [
        "files were lost with the sandbox: the link to the sandbox broke; the sandbox runs on"
    ]
    assert sandbox.is_closed


def test_a_second_loss_in_a_row_ends_the_job_as_our_failure(play):
    job, used = play(*SCRIPT, sandboxes=[losing(2), losing(1), FakeSandbox()])
    assert (job.status, job.finish_reason) == (Status.DEAD, FinishReason.FAILED)
    assert job.error.type == "SandboxLost"
    assert len(used) == 2
    assert all(s.is_closed for s in used)


def test_losses_with_work_between_them_are_each_replaced(play):
    job, used = play(*SCRIPT, sandboxes=[losing(1), losing(2), FakeSandbox()])
    assert job.answer == "done"
    assert len(used) == 3


@pytest.mark.parametrize("error", [ProtocolError("odd frame"), SandboxLost("gone")])
def test_a_sandbox_that_cannot_be_replaced_ends_the_job(play, error):
    job, _ = play(*SCRIPT, sandboxes=[losing(1), error])
    assert (job.status, job.error.message) == (Status.DEAD, str(error))


def test_no_engine_is_our_failure_before_anything_is_spent(play):
    job, _ = play(say("done"), sandboxes=[EngineUnavailable("no engine at unix:///x")])
    assert (job.status, job.steps) == (Status.DEAD, 0)
    assert (job.error.type, job.error.message) == ("EngineUnavailable", "no engine at unix:///x")


def test_a_sandbox_that_cannot_be_is_refused_to_the_caller(play):
    with pytest.raises(SpecInvalid, match="no such runtime"):
        play(say("done"), sandboxes=[SpecInvalid("no such runtime")])


def test_a_recording_that_ends_too_early_is_a_failure_not_ours(play):
    job, _ = play(*SCRIPT[:2])
    assert (job.status, job.finish_reason) == (Status.FAILED, FinishReason.FAILED)
    assert job.error.type == "RecordingExhausted"


def test_a_cancelled_job_is_cleaned_up(play):
    cancelled = threading.Event()

    def respond(sandbox, kind, text):
        cancelled.set()
        sandbox.contents["a"] = b"1"
        return ok("x", files=(sandbox.info("a"),))

    job, used = play(*SCRIPT, sandboxes=[FakeSandbox(respond)], is_cancelled=cancelled.is_set)
    assert job.status is Status.CANCELLED
    assert used[0].is_closed
    assert [a.name for a in job.artifacts] == ["a"]  # what was done is not lost


def runner_of(tmp_path, *messages, **settings):
    settings = Settings(**settings)
    store = MemoryStore()
    store.create(Job(id="j", goal="g", budget=settings.budget()))
    place = Workplace(FakeSandbox)
    loop = assembly.build(settings, ScriptedModel(messages), place)
    return Runner(loop, place, keeper(Shelf(tmp_path / "out"), settings)), store


def work(runner, store):
    """Claim the job and work on it, as a worker does each time anew."""
    run = Run(History(*store.load("j")), store, store.claim("j").generation)
    return runner.work(run, assembly.opening("g"))


def test_a_model_that_cannot_be_reached_is_our_failure(tmp_path):
    job = work(*runner_of(tmp_path, SCRIPT[0], ModelUnavailable("nobody there")))
    assert (job.status, job.error.type) == (Status.DEAD, "ModelUnavailable")


def test_a_reply_that_outlasts_the_job_is_the_end_of_its_budget(tmp_path):
    job = work(*runner_of(tmp_path, ModelTimeout("no reply"), job_timeout_s=1e-9))
    assert (job.finish_reason, job.error.type) == (FinishReason.BUDGET, "BudgetSpent")


def test_a_job_that_ended_is_not_worked_on_again(tmp_path):
    runner, store = runner_of(tmp_path, say("done"))
    first = work(runner, store)
    events = store.load("j")[1]
    assert work(runner, store) == first
    assert store.load("j")[1] == events


def test_a_job_that_moves_is_told_that_its_sandbox_is_another(tmp_path):
    runner, store = runner_of(tmp_path, *SCRIPT[:1], ModelUnavailable("away"))

    class Gone(BaseException):
        pass

    def die(*_):
        raise Gone

    runner.place.sandbox.respond = die
    with pytest.raises(Gone):
        work(runner, store)
    runner.place = Workplace(FakeSandbox)
    model = ScriptedModel([SCRIPT[0], say("done")])
    runner.loop = assembly.build(Settings(), model, runner.place)
    assert work(runner, store).answer == "done"
    told = model.requests[-1].messages[-1].text
    assert "nobody knows whether it ran" in told
    assert "its worker was interrupted" in told


# ---- refused at the door


@pytest.mark.parametrize(
    ("request_", "settings", "why"),
    [
        ({"goal": "  \n"}, {}, "the goal is empty"),
        ({"goal": "g", "files": ["missing.csv"]}, {}, "cannot read missing.csv: No such file"),
        ({"goal": "g", "files": ["."]}, {}, "is a folder"),
        ({"goal": "g", "files": ["a/x", "b/x"]}, {}, "two input files are called x"),
        ({"goal": "g", "files": ["/dev/null"]}, {}, "not a regular file"),
        ({"goal": "g", "files": ["big"]}, {}, "big: the input files .* --mount"),
        ({"goal": "g", "id": "../x"}, {}, "cannot be the id"),
        ({"goal": "g", "replay": "missing"}, {}, "cannot read the recording missing"),
        ({"goal": "g", "replay": "broken"}, {}, "broken, line 1"),
        ({"goal": "g", "replay": "fine", "record": "fine"}, {}, "replayed and recorded at once"),
        ({"goal": "g"}, {}, "no model: set CAISSON_MODEL"),
        ({"goal": "g"}, {"model": "m"}, "no endpoint: set OPENAI_API_KEY"),
        ({"goal": "g"}, {"model": "m", "base_url": "localhost:1"}, "no http"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(tmp_path, request_, settings, why):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("")
    with (tmp_path / "big").open("wb") as big:
        big.truncate(2 << 30)
    (tmp_path / "broken").write_text("{")
    (tmp_path / "fine").write_text('{"content": "x"}')
    with pytest.raises((InputInvalid, RecordingInvalid), match=why) as caught:
        run_job(
            JobRequest.model_validate(request_),
            Settings(**settings),
            open_sandbox=lambda spec: pytest.fail("a sandbox was started"),
        )
    assert "\n" not in str(caught.value)


def test_a_file_that_is_gone_since_it_was_checked_is_named(tmp_path):
    (tmp_path / "fine").write_text('{"content": "x"}')
    path = tmp_path / "in.txt"
    path.write_text("data")
    sandbox = FakeSandbox()

    def start(spec):
        path.unlink()
        return sandbox

    request = JobRequest(goal="g", files=(path,), replay=tmp_path / "fine")
    with pytest.raises(InputInvalid, match=r"cannot read .*in\.txt: No such file"):
        run_job(request, Settings(), open_sandbox=start)
    assert sandbox.is_closed


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "secret.csv").write_text("x")
    path = tmp_path / "secret.csv" / "inside"
    with pytest.raises(InputInvalid, match=r"cannot read .*inside: Not a directory"):
        assembly.check_files([path], Limits())


def test_the_process_driver_must_be_allowed():
    with pytest.raises(SpecInvalid, match="allow_unisolated"):
        assembly.start_sandbox(Settings(driver="process"), Settings().spec())


def test_the_model_is_told_whether_there_is_a_network():
    assert "There is no network" in assembly.opening("g")[0].text
    assert "network 'lab' can be reached" in assembly.opening("g", network="lab")[0].text
