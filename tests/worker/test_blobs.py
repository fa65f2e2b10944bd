"""Contents of files: whole or not there, once, and safe from each other's writers."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from worker.errors import BlobMissing, StoreUnavailable
from worker.store.blobs import Blobs

WRITER = """
import sys
from pathlib import Path
from worker.store.blobs import Blobs
for number in range(200):
    with Blobs(Path(sys.argv[1])).writer() as sink:
        sink.write(b"%d" % (number % 20) * 1000)
"""
DYING = """
import os, sys
from pathlib import Path
from worker.store.blobs import Blobs
with Blobs(Path(sys.argv[1])).writer() as sink:
    sink.write(b"half" * 1_000_000)
    sink.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")


@pytest.fixture
def files(tmp_path):
    """Every file in the folder of the blobs, by its name."""
    return lambda: {p.name: p for p in (tmp_path / "blobs").rglob("*") if p.is_file()}


def test_a_content_is_found_under_its_hash(blobs):
    blob = blobs.add(io.BytesIO(b"data"))
    assert (blob.sha256, blob.size) == (hashlib.sha256(b"data").hexdigest(), 4)
    assert blobs.path(blob.sha256).read_bytes() == b"data"
    assert blobs.path(blob.sha256).parent.name == blob.sha256[:2]


def test_an_empty_content_is_one_too(blobs):
    assert blobs.path(blobs.add(io.BytesIO()).sha256).read_bytes() == b""


def test_equal_contents_are_kept_once(blobs, files):
    first = blobs.add(io.BytesIO(b"same"))
    before = blobs.path(first.sha256).stat()
    assert blobs.add(io.BytesIO(b"same")) == first
    assert blobs.path(first.sha256).stat().st_ino == before.st_ino
    assert len(files()) == 1


def test_nobody_may_write_to_a_blob(blobs):
    blob = blobs.add(io.BytesIO(b"data"))
    assert blobs.path(blob.sha256).stat().st_mode & 0o777 == 0o444


def test_a_writer_that_fails_leaves_nothing(blobs, files):
    class Source(io.BytesIO):
        def read(self, size=-1):
            data = super().read(4)
            return data or 1 / 0

    with pytest.raises(ZeroDivisionError):
        blobs.add(Source(b"half"))
    assert files() == {}


def test_nothing_is_found_before_it_is_whole(blobs):
    half = hashlib.sha256(b"half").hexdigest()
    with blobs.writer() as sink:
        sink.write(b"half")
        with pytest.raises(BlobMissing):
            blobs.path(half)
    assert blobs.path(half).read_bytes() == b"half"


@pytest.mark.parametrize("name", ["", "x", "../../etc/passwd", "A" * 64, "0" * 64, "0" * 64 + "\n"])
def test_what_is_not_there_is_said_to_be_missing(blobs, name):
    with pytest.raises(BlobMissing):
        blobs.path(name)


def test_processes_that_keep_the_same_contents_do_not_disturb_each_other(blobs, files, tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "blobs")]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(50) for writer in writers] == [0, 0, 0]
    assert len(files()) == 20
    for name, path in files().items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == name


def test_what_a_killed_process_left_is_no_blob_and_tidied_up_later(blobs, files, tmp_path):
    command = [sys.executable, "-c", DYING, str(tmp_path / "blobs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
    (left,) = files().values()
    assert left.name.startswith(".partial-")
    assert blobs.tidy() == 0  # somebody might be writing to it still
    os.utime(left, (time.time() - 90_000,) * 2)
    assert blobs.tidy() == 1
    assert files() == {}


def test_a_disk_that_is_full_is_said_to_be(blobs, files):
    with pytest.raises(StoreUnavailable, match="too large"), blobs.writer() as sink:
        limited(sink, b"x" * 4_000_000)
    assert files() == {}


def limited(sink, data):
    """Write where the system lets no file grow beyond a megabyte, as a full disk would not."""
    import resource  # noqa: PLC0415

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        sink.write(data)
        sink.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_content_that_is_damaged_is_missing_until_it_is_kept_again(blobs):
    blob = blobs.add(io.BytesIO(b"data"))
    path = blobs.path(blob.sha256, blob.size)
    path.chmod(0o644)
    path.write_bytes(b"da")
    with pytest.raises(BlobMissing, match="is damaged: it has 2 bytes and had 4"):
        blobs.path(blob.sha256, blob.size)
    assert blobs.add(io.BytesIO(b"data")) == blob
    assert blobs.path(blob.sha256, blob.size).read_bytes() == b"data"
    assert path.stat().st_mode & 0o777 == 0o444


@pytest.fixture
def disk(tmp_path):
    """A disk of 128 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_the_last_part_of_a_disk_is_left_to_the_database(disk):
    blobs = Blobs(disk / "blobs")
    kept = []
    with pytest.raises(StoreUnavailable, match=r"MiB left, and 64.* are for the database"):
        kept.extend(blobs.add(io.BytesIO(bytes([n]) * 1024 * 1024)) for n in range(200))
    assert len(kept) > 50
    assert shutil.disk_usage(disk).free >= 64 * 1024 * 1024
    assert sum(path.is_file() for path in (disk / "blobs").rglob("*")) == len(kept)
    with (disk / "database").open("wb") as other:
        other.write(b"x" * 60 * 1024 * 1024)


def test_a_file_too_large_for_the_room_is_refused_before_it_fills_it(disk):
    blobs = Blobs(disk / "blobs")
    least = []

    class Endless(io.BytesIO):
        def read(self, size=-1):
            least.append(shutil.disk_usage(disk).free)
            return bytes(size)

    with pytest.raises(StoreUnavailable, match="are for the database"):
        blobs.add(Endless())
    assert 63 * 1024 * 1024 <= min(least) < 66 * 1024 * 1024
    assert shutil.disk_usage(disk).free > 127 * 1024 * 1024


def test_a_folder_that_cannot_be_made_is_said_to_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"File exists \(.*/file\)"):
        Blobs(tmp_path / "file" / "blobs").add(io.BytesIO(b"x"))
