"""Copying artefacts out: into the folder and nowhere else, all or none, never over another file."""

from __future__ import annotations

import io

import pytest

from worker.copying import copy_out
from worker.errors import BlobMissing, InputInvalid
from worker.messages import Artifact
from worker.store.blobs import Blobs


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")


@pytest.fixture
def made(blobs):
    """An artefact of this name and content, which lies among the blobs alone."""

    def make(name, content=b"new"):
        blob = blobs.add(io.BytesIO(content))
        return Artifact(name=name, size=blob.size, mime="x", path="/gone", sha256=blob.sha256)

    return make


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "to"


def test_copies_are_files_of_ones_own(made, folder, blobs):
    (copied,) = copy_out([made("t/a.txt")], folder, blobs)
    path = folder / "t" / "a.txt"
    assert (copied.path, path.read_bytes()) == (str(path), b"new")
    assert path.stat().st_mode & 0o200
    assert path.stat().st_nlink == 1


def test_without_a_blob_the_file_itself_is_copied(folder, blobs, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"file")
    artifact = Artifact(name="a.txt", size=4, mime="x", path=str(tmp_path / "a.txt"))
    copy_out([artifact], folder, blobs)
    assert (folder / "a.txt").read_bytes() == b"file"


def test_what_is_not_on_this_host_is_named_and_nothing_is_copied(made, folder, blobs):
    elsewhere = Artifact(name="b", size=1, mime="x", path="/there/b", sha256="0" * 64)
    with pytest.raises(BlobMissing, match="/there/b is not on this host"):
        copy_out([made("a"), elsewhere], folder, blobs)
    assert not folder.exists()


def test_a_file_that_is_damaged_is_named_and_nothing_is_copied(made, folder, blobs, tmp_path):
    artifact = made("a", b"content").model_copy(update={"path": str(tmp_path / "a")})
    kept = blobs.path(artifact.sha256)
    (tmp_path / "a").hardlink_to(kept)
    kept.chmod(0o644)
    kept.write_bytes(b"")
    with pytest.raises(BlobMissing, match=r"/a is damaged: it has 0 bytes and had 7"):
        copy_out([made("b"), artifact], folder, blobs)
    assert not folder.exists()
    (tmp_path / "a").unlink()
    (tmp_path / "a").write_bytes(b"content")  # where artefacts are no links
    copy_out([artifact], folder, blobs)
    assert (folder / "a").read_bytes() == b"content"


def test_the_same_content_may_be_there_already(made, folder, blobs):
    for _ in range(2):
        copy_out([made("a")], folder, blobs)
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_another_content_stops_everything(made, folder, blobs):
    folder.mkdir()
    (folder / "b").write_bytes(b"mine")
    with pytest.raises(InputInvalid, match=r"/b is there with another content; nothing was copied"):
        copy_out([made("a"), made("b")], folder, blobs)
    assert [path.name for path in folder.iterdir()] == ["b"]
    copy_out([made("a"), made("b")], folder, blobs, overwrite=True)
    assert (folder / "b").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["../a", "/etc/a", "out/a", "t/../../a", ".."])
def test_no_name_and_no_link_leads_out_of_the_folder(made, folder, blobs, tmp_path, name):
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (folder / "out").symlink_to(tmp_path / "outside")
    for overwrite in (False, True):
        with pytest.raises(InputInvalid, match="would leave"):
            copy_out([made(name)], folder, blobs, overwrite=overwrite)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(made, folder, blobs, tmp_path):
    folder.mkdir()
    (tmp_path / "mine").write_bytes(b"mine")
    (folder / "a").symlink_to(tmp_path / "mine")
    with pytest.raises(InputInvalid, match="another content"):
        copy_out([made("a")], folder, blobs)
    copy_out([made("a")], folder, blobs, overwrite=True)
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert (folder / "a").read_bytes() == b"new"


def test_a_folder_that_cannot_be_is_said_to_be(made, blobs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputInvalid, match=r"cannot copy to .*: Not a directory"):
        copy_out([made("a")], tmp_path / "file" / "to", blobs)
    with pytest.raises(InputInvalid, match="cannot copy to"):
        copy_out([made("a")], tmp_path / "file", blobs)
