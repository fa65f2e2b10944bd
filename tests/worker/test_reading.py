"""Reading what somebody named: plain files as they are, and nothing that has to be waited for."""

from __future__ import annotations

import os

import pytest

from worker.errors import InputInvalid
from worker.reading import open_plain


def test_a_plain_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000 + b"end")
    with open_plain(path) as source:
        assert source.readline(10) == b"x" * 10
        assert source.read(99_990) + source.read() == b"x" * 99_990 + b"end"
        assert source.read(1) == b""


def test_of_a_file_that_grows_one_more_byte_is_read_and_no_more(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"123")
    with open_plain(path) as source, path.open("ab") as writer:
        writer.write(b"456")
        writer.flush()
        assert source.read() == b"1234"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path, kind):
    path = {"device": "/dev/zero"}.get(kind, tmp_path / kind)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(InputInvalid, match="is a folder" if kind == "folder" else "regular file"):
        open_plain(type(tmp_path)(path))


def test_what_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "none")
