"""What is taken out of a sandbox: when, under which names, and how much of it."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field

import pytest

from sandbox.docker import DockerSandbox
from sandbox.errors import SandboxLost
from sandbox.types import FileInfo, SandboxSpec
from worker.artifacts import Caps, Shelf, collect, safe_names
from worker.builtin import Workplace
from worker.checkpoint import CheckpointHook
from worker.errors import Handover
from worker.history import History
from worker.hooks import Run
from worker.messages import (
    Artifact,
    Job,
    Message,
    Reply,
    ResultStatus,
    Role,
    SandboxReplaced,
    ToolCall,
    ToolResult,
)
from worker.store.blobs import Blobs
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox

from .conftest import Watching

MIB = 1024 * 1024


@dataclass
class Desk:
    """A claimed job, a sandbox, and a shelf for what it makes."""

    run: Run
    sandbox: FakeSandbox
    shelf: Shelf
    caps: Caps = field(default_factory=Caps)
    calls: int = 0

    def made(self, **contents):
        """One call of the job reports these files."""
        for name, data in contents.items():
            self.sandbox.contents[name.replace("__", "/")] = data
        return self.reported(*(self.info(name.replace("__", "/")) for name in contents))

    def info(self, name):
        return self.sandbox.info(name)

    def reported(self, *files):
        self.calls += 1
        call = ToolCall(id=f"x{self.calls}", name="shell")
        self.run.add_reply(Reply(message=Message(role=Role.ASSISTANT, tool_calls=(call,))))
        (call,) = self.run.history.last.calls
        result = ToolResult(
            call_id=call.id, name="shell", status=ResultStatus.OK, text="", files=tuple(files)
        )
        self.run.add_result(result)
        return call, result

    def collect(self, **options):
        collect(self.run, self.sandbox, self.shelf, self.caps, **options)

    @property
    def artifacts(self):
        return {artifact.name: artifact for artifact in self.run.job.artifacts}

    def contents(self):
        folder = self.shelf.folder
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    @property
    def remarks(self):
        return [event.text for event in self.run.observer.of("remark")]


def claimed(store=None):
    store = store or MemoryStore()
    store.create(Job(id="j", goal="g"))
    claim = store.claim("j")
    return Run(History(*store.load("j")), store, claim.generation, Watching())


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")


@pytest.fixture(params=["blobs", "plain"])
def desk(request, tmp_path, blobs):
    shelf = Shelf(tmp_path / "out", blobs if request.param == "blobs" else None)
    return Desk(claimed(), FakeSandbox(), shelf)


@pytest.fixture
def keeping(tmp_path, blobs):
    """A desk whose shelf has blobs."""
    return Desk(claimed(), FakeSandbox(), Shelf(tmp_path / "out", blobs))


# ---- taking


def test_what_calls_reported_is_taken_once(desk):
    desk.made(**{"a.txt": b"one", "t__b.txt": b"two"})
    desk.collect()
    desk.collect()
    assert desk.contents() == {"a.txt": b"one", "t/b.txt": b"two"}
    (event,) = desk.run.observer.of("artifacts")
    assert [(a.source, a.size) for a in event.artifacts] == [("a.txt", 3), ("t/b.txt", 3)]
    assert desk.artifacts["t/b.txt"].path == str(desk.shelf.folder / "t" / "b.txt")


def test_a_later_version_takes_the_place_of_the_earlier_one(desk):
    desk.made(**{"a.txt": b"one", "b.txt": b"b"})
    desk.collect()
    desk.made(**{"a.txt": b"longer"})
    desk.collect()
    assert desk.contents() == {"a.txt": b"longer", "b.txt": b"b"}
    assert [a.name for a in desk.run.observer.of("artifacts")[-1].artifacts] == ["a.txt"]
    assert {name: a.size for name, a in desk.artifacts.items()} == {"a.txt": 6, "b.txt": 1}


def test_the_same_version_again_leaves_no_second_file(desk):
    for _ in range(2):
        desk.made(**{"a.txt": b"one"})
        desk.collect()
    assert desk.contents() == {"a.txt": b"one"}


def test_a_file_is_the_blob_itself(keeping, blobs):
    keeping.made(**{"a.txt": b"one"})
    keeping.collect()
    artifact = keeping.artifacts["a.txt"]
    assert artifact.sha256 == hashlib.sha256(b"one").hexdigest()
    lies_at = keeping.shelf.folder / "a.txt"
    assert lies_at.samefile(blobs.path(artifact.sha256))


def test_the_blob_of_an_earlier_version_is_not_changed(keeping, blobs):
    keeping.made(**{"a.txt": b"one"})
    keeping.collect()
    first = keeping.artifacts["a.txt"].sha256
    keeping.made(**{"a.txt": b"two"})
    keeping.collect()
    assert blobs.path(first).read_bytes() == b"one"


def test_without_blobs_nothing_is_known_of_the_content(tmp_path):
    desk = Desk(claimed(), FakeSandbox(), Shelf(tmp_path / "out"))
    desk.made(**{"a.txt": b"one"})
    desk.collect()
    assert desk.artifacts["a.txt"].sha256 == ""


@pytest.mark.engine
@pytest.mark.parametrize("size", [0, 3 * MIB + 1])
def test_files_come_out_of_a_container_as_they_are(tmp_path, blobs, job, size):
    sandbox = DockerSandbox.start(SandboxSpec(job=job))
    try:
        code = f"open('f.bin', 'wb').write(bytes(range(256)) * {size // 256} + b'x' * {size % 256})"
        files = sandbox.python(code).files
        desk = Desk(claimed(), sandbox, Shelf(tmp_path / "out", blobs))
        desk.reported(*files)
        desk.collect()
    finally:
        sandbox.close()
    expected = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert desk.contents() == {"f.bin": expected}
    assert desk.artifacts["f.bin"].sha256 == hashlib.sha256(expected).hexdigest()


@pytest.mark.engine
def test_only_what_a_container_has_not_any_more_is_left_out(tmp_path, blobs, job):
    sandbox = DockerSandbox.start(SandboxSpec(job=job))
    try:
        made = sandbox.shell(
            "mkdir out; touch empty; for f in gone out/gone kept; do echo > $f; done"
        )
        sandbox.write_file(".hidden", io.BytesIO(b"y" * 3 * MIB))
        desk = Desk(claimed(), sandbox, Shelf(tmp_path / "out", blobs))
        desk.reported(*made.files, FileInfo(name=".hidden", size=3 * MIB, mime="x"))
        desk.collect(most_bytes=4 * MIB)
        assert sorted(desk.artifacts) == ["empty", "gone", "hidden", "kept", "out/gone"]
        sandbox.shell("rm -r gone out")
        desk.collect()
    finally:
        sandbox.close()
    assert sorted(desk.artifacts) == sorted(desk.contents()) == ["empty", "hidden", "kept"]
    assert not (desk.shelf.folder / "out").exists()


# ---- how much


def test_the_number_of_files_counts_over_all_collections(desk):
    desk.caps = Caps(files=2)
    desk.made(a=b"1", b=b"2")
    desk.collect()
    desk.made(a=b"new", c=b"3", d=b"4")
    desk.collect()
    assert desk.contents() == {"a": b"new", "b": b"2"}
    assert desk.remarks == ["2 files more than 2 were left behind"]


def test_the_bytes_count_over_all_collections_but_not_twice_for_a_file(desk):
    desk.caps = Caps(total_bytes=10)
    desk.made(a=b"12345678")
    desk.collect()
    desk.made(a=b"1234567890", b=b"1")
    desk.collect()
    assert desk.contents() == {"a": b"1234567890"}
    assert desk.remarks == ["b was left behind: b: 1 bytes, the limit is 0"]


def test_files_that_the_job_has_removed_leave_room_for_those_there_are(keeping, after):
    keeping.caps = Caps(files=2, total_bytes=8)
    after(*keeping.made(frame1=b"111", frame2=b"222", frame3=b"333"))
    assert list(keeping.artifacts) == ["frame1", "frame2"]
    for name in ("frame1", "frame2", "frame3"):
        del keeping.sandbox.contents[name]
    after(*keeping.made(report=b"8 bytes."))
    assert list(keeping.artifacts) == ["frame1", "frame2"]
    keeping.collect()
    assert keeping.contents() == {"report": b"8 bytes."}
    assert list(keeping.artifacts) == ["report"]
    assert keeping.remarks == []


def test_the_end_is_the_same_with_checkpoints_and_without(tmp_path, blobs):
    ends = []
    for is_checkpointed in (True, False):
        shelf = Shelf(tmp_path / f"out-{is_checkpointed}", blobs)
        desk = Desk(claimed(), FakeSandbox(), shelf, Caps(files=2))
        desk.made(t__a=b"1", t__b=b"2")
        if is_checkpointed:
            desk.collect(most_bytes=10)
        desk.sandbox.contents.clear()
        desk.made(t=b"no folder any more", c=b"3")
        if is_checkpointed:
            desk.collect(most_bytes=10)
        desk.collect()
        ends.append((desk.contents(), sorted(desk.artifacts), desk.remarks))
    assert ends[0] == ends[1]
    assert ends[0][1] == ["c", "t"]


def test_a_file_that_a_listing_does_not_show_is_not_taken_for_gone(keeping, after):
    after(*keeping.made(**{".hidden": b"1", "empty": b"", "gone": b"2"}))
    del keeping.sandbox.contents["gone"]
    keeping.sandbox.files = tuple
    keeping.collect()
    assert keeping.contents() == {"hidden": b"1", "empty": b""}


def test_what_an_earlier_sandbox_had_stays_and_what_was_lost_with_it_is_named(keeping, after):
    after(*keeping.made(small=b"1", large=b"x" * 11))
    keeping.run.append(SandboxReplaced(why="lost"))
    keeping.sandbox.contents.clear()
    after(*keeping.made(new=b"2"))
    keeping.collect()
    assert keeping.contents() == {"small": b"1", "new": b"2"}
    assert keeping.remarks == ["not in the workspace any more: large"]


def test_a_disk_that_is_full_leaves_files_behind_and_says_so(keeping):
    (keeping.shelf.folder.parent / "blobs").touch()
    keeping.made(a=b"1")
    keeping.collect()
    assert keeping.artifacts == {}
    (remark,) = keeping.remarks
    assert remark.startswith("a was left behind: a file cannot be kept: File exists")


def test_what_was_taken_before_a_sandbox_was_lost_is_kept(desk):
    desk.made(a=b"1", b=b"2")
    read = desk.sandbox.read_file

    def read_and_die(name, target, *, max_bytes=None):
        size = read(name, target, max_bytes=max_bytes)
        desk.sandbox.is_lost = True
        return size

    desk.sandbox.read_file = read_and_die
    with pytest.raises(SandboxLost):
        desk.collect()
    assert desk.contents() == {"a": b"1"}
    assert list(desk.artifacts) == ["a"]
    assert list(desk.run.history.uncollected) == ["b"]


# ---- names


def names_of(*names, had=()):
    files = [FileInfo(name=name, size=1, mime="x") for name in names]
    artifacts = [
        Artifact(name=name, source=source, size=1, mime="x", path="/x") for source, name in had
    ]
    return list(safe_names(files, artifacts))


def test_a_known_file_keeps_its_name_and_a_new_one_gets_another():
    had = [("A.png", "A-2.png"), ("a.png", "a.png")]
    assert names_of("A.png", "a.png", "a.PNG", had=had) == ["A-2.png", "a.png", "a-3.PNG"]


def test_a_file_and_a_folder_of_one_name_can_both_be_had():
    had = [("out", "out")]
    assert names_of("out/a", "out/b", had=had) == ["out-2/a", "out-2/b"]
    assert names_of("out", had=[("out/a", "out/a")]) == ["out-2"]
    assert names_of("x/y", "x") == ["x/y", "x-2"]


def test_a_file_in_place_of_a_folder_and_a_folder_in_place_of_a_file(desk):
    desk.made(out=b"file")
    desk.collect()
    del desk.sandbox.contents["out"]
    desk.made(out__plot=b"plot")
    desk.collect()
    assert desk.contents() == {"out/plot": b"plot"}
    del desk.sandbox.contents["out/plot"]
    desk.made(out=b"file")
    desk.collect()
    assert desk.contents() == {"out": b"file"}


def test_ten_thousand_files_take_no_time():
    names = names_of(*(f"f{number}/same.txt" for number in range(10_000)))
    assert len(set(names)) == 10_000


# ---- checkpoints


@pytest.fixture
def after(keeping):
    """Let the hook see one call: `after(*desk.made(…))`."""
    place = Workplace(lambda: keeping.sandbox)
    place.open()

    def keep(run, sandbox, *, most_bytes=None):
        collect(run, sandbox, keeping.shelf, keeping.caps, most_bytes=most_bytes)

    hook = CheckpointHook(place, keep, most_bytes=10)
    return lambda call, result: hook.after_tool(keeping.run, call, result)


def test_after_each_call_small_files_are_taken_and_large_ones_at_the_end(keeping, after):
    after(*keeping.made(small=b"1", large=b"x" * 11))
    assert list(keeping.artifacts) == ["small"]
    keeping.collect()
    assert list(keeping.artifacts) == ["small", "large"]
    assert keeping.remarks == []


def test_a_file_that_is_gone_by_then_is_left_for_the_end_without_a_word(keeping, after):
    call, result = keeping.made(a=b"1", b=b"2")
    del keeping.sandbox.contents["a"]
    after(call, result)
    assert list(keeping.artifacts) == ["b"]
    assert keeping.remarks == []
    keeping.collect()
    assert keeping.remarks == []


def test_a_call_without_files_asks_the_sandbox_nothing(keeping, after):
    keeping.sandbox.is_lost = True
    after(*keeping.reported())
    assert keeping.artifacts == {}


def test_a_lost_sandbox_is_left_to_the_next_call(keeping, after):
    made = keeping.made(a=b"1")
    keeping.sandbox.is_lost = True
    after(*made)
    assert keeping.artifacts == {}
    assert keeping.remarks == []


def test_versions_of_a_file_never_fill_the_disk(keeping, after):
    keeping.caps = Caps(total_bytes=25)
    for number in range(10):
        after(*keeping.made(a=b"%d" % number * 10))
    assert keeping.run.history.collected_bytes == 20
    keeping.collect()
    assert keeping.contents() == {"a": b"9" * 10}


def test_a_cancelled_job_does_not_wait_for_its_files(keeping, after):
    made = keeping.made(a=b"1", b=b"2")
    answers = [False, True]
    keeping.run.is_cancelled = lambda: answers.pop(0)
    after(*made)
    assert list(keeping.artifacts) == ["a"]


def test_a_worker_that_lets_go_keeps_what_it_has_taken(keeping, after):
    made = keeping.made(a=b"1", b=b"2")
    answers = iter([False])

    def is_cancelled():
        for answer in answers:
            return answer
        raise Handover("draining")

    keeping.run.is_cancelled = is_cancelled
    with pytest.raises(Handover):
        after(*made)
    assert list(keeping.artifacts) == ["a"]
    assert list(keeping.run.history.uncollected) == ["b"]
