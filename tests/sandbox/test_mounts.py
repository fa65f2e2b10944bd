import os
import socket
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandbox.mounts
from sandbox.errors import SpecInvalid
from sandbox.hardening import container_options
from sandbox.mounts import check_mounts
from sandbox.types import Mount, SandboxSpec


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    place.mkdir(mode=0o755)
    (place / "a.csv").write_text("x\n1\n")
    return place


def refusal_of(path, **arguments):
    with pytest.raises(SpecInvalid) as caught:
        check_mounts([path], **arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_folder_and_a_file_are_mounted_by_their_name(folder):
    file = folder / "a.csv"
    assert check_mounts([folder, str(file)]) == (
        Mount(source=folder, target=PurePosixPath("/mnt/data")),
        Mount(source=file, target=PurePosixPath("/mnt/a.csv")),
    )


def test_a_link_is_mounted_as_what_it_leads_to(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert check_mounts([tmp_path / "link"])[0].source == folder


def test_a_relative_path_is_made_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert check_mounts(["data"])[0].source == folder


def test_names_that_clash_are_numbered_and_the_same_path_is_mounted_once(tmp_path):
    files = []
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / ("Set.csv" if name == "two" else "set.csv"))
        files[-1].write_text("x")
    targets = [str(mount.target) for mount in check_mounts([*files, files[0]])]
    assert targets == ["/mnt/set.csv", "/mnt/Set-2.csv", "/mnt/set-3.csv"]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("my data (1)", "/mnt/my_data_1_"),
        (".hidden", "/mnt/hidden"),
        ("..", None),
        ("…", "/mnt/data"),
        ("-rf", "/mnt/rf"),
        ("a\nb", "/mnt/a_b"),
        ("x" * 200, "/mnt/" + "x" * 80),
    ],
)
def test_names_become_plain(tmp_path, name, target):
    if target is None:
        (tmp_path / "up").mkdir()
        tmp_path.chmod(0o755)
        assert check_mounts([tmp_path / "up" / name])[0].source == tmp_path
        return
    (tmp_path / name).mkdir(mode=0o755)
    assert str(check_mounts([tmp_path / name])[0].target) == target


def test_what_is_allowed_is_accepted_by_the_hardening(folder):
    spec = SandboxSpec(mounts=check_mounts([folder, folder / "a.csv"]))
    host = container_options(spec, command=["x"], deadline=0, uid=61184)["HostConfig"]
    assert [mount["ReadOnly"] for mount in host["Mounts"]] == [True, True]


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/proc", "/proc/self", "/proc/self/root/etc", "/sys/fs", "/dev", "/dev/null"),
        *("/run", "/var/run", "/etc", "/etc/passwd", "/var", "/var/lib", "/boot", "/usr/.."),
    ],
)
def test_the_systems_own_places_are_refused(path):
    if not Path(path).exists():
        pytest.skip("not on this machine")
    text = refusal_of(path)
    assert text.startswith(f"{Path(path)}")
    assert "cannot be mounted" in text
    assert "--file" in text or "nothing else" in text


def test_links_to_the_systems_places_are_refused(tmp_path):
    (tmp_path / "innocent").symlink_to("/etc")
    text = refusal_of(tmp_path / "innocent")
    assert "(which is /etc)" in text


def test_the_engines_data_is_refused_when_it_is_there(tmp_path, monkeypatch):
    engine = tmp_path / "docker"
    (engine / "volumes").mkdir(parents=True)
    monkeypatch.setitem(sandbox.mounts._REFUSED, str(engine), "the engine's data")
    tmp_path.chmod(0o755)
    assert "lies in" in refusal_of(engine / "volumes")
    assert "lies in" in refusal_of(engine)
    assert "contains" in refusal_of(tmp_path)


def test_our_own_data_is_refused_from_above_and_below(tmp_path):
    own = tmp_path / "own" / "data"
    own.mkdir(parents=True)
    (tmp_path / "link").symlink_to(own)
    (tmp_path / "beside").mkdir()
    for path in (own, own.parent, tmp_path):
        assert "no sandbox may see" in refusal_of(path, forbidden=[tmp_path / "link"])
    assert check_mounts([tmp_path / "beside"], forbidden=[tmp_path / "link"])


def test_own_data_that_is_not_there_yet_is_refused_too(tmp_path):
    tmp_path.chmod(0o755)
    assert "no sandbox may see" in refusal_of(tmp_path, forbidden=[tmp_path / "later" / "on"])


@pytest.mark.parametrize("name", ["missing", "missing/deeper", "file/below", "nul\0", "x" * 5000])
def test_what_is_not_there_is_named(tmp_path, name):
    (tmp_path / "file").write_text("")
    text = refusal_of(tmp_path / name)
    assert text.startswith(str(tmp_path))
    assert "check the path" in text


def test_a_circle_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "cannot be mounted" in refusal_of(tmp_path / "a")


def test_a_name_that_is_not_utf_8_cannot_be_given_to_the_engine(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).mkdir(mode=0o755)
    assert "not UTF-8" in refusal_of(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path):
    assert "a\\nb" in refusal_of(tmp_path / "a\nb")


def test_sockets_and_pipes_are_refused_however_deep(folder, monkeypatch):
    deep = folder / "one" / "two"
    deep.mkdir(parents=True)
    os.mkfifo(deep / "pipe")
    text = refusal_of(folder)
    assert "contains a named pipe" in text
    assert "one/two/pipe" in text
    (deep / "pipe").unlink()
    monkeypatch.chdir(deep)  # the address of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("engine.sock")
        assert "contains a socket" in refusal_of(folder)
        assert "is a socket" in refusal_of(deep / "engine.sock")
        assert "is a socket" in refusal_of(deep.parent / "two" / "engine.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="devices are made by root")
def test_devices_are_refused(folder):
    try:
        os.mknod(folder / "disk", 0o020666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device can be made here")
    assert "contains a device" in refusal_of(folder)


def test_links_inside_are_not_followed(folder):
    (folder / "socket").symlink_to("/run")
    (folder / "loop").symlink_to(folder)
    (folder / "dangling").symlink_to("/nowhere")
    assert check_mounts([folder])


def test_looking_ends(folder, monkeypatch):
    monkeypatch.setattr(sandbox.mounts, "MAX_ENTRIES", 10)
    for number in range(30):
        (folder / f"{number}").mkdir()
        (folder / f"{number}" / "file").write_text("")
    assert check_mounts([folder])


def test_what_the_user_inside_may_not_read_is_said_before_the_start(folder):
    (folder / "a.csv").chmod(0o600)
    assert "chmod o+rX" in refusal_of(folder / "a.csv")
    assert check_mounts([folder])
    folder.chmod(0o750)
    assert "chmod o+rX" in refusal_of(folder)


@given(st.text(min_size=1, max_size=60))
def test_any_text_is_a_mount_or_a_clear_refusal(text):
    said, mounts = "", ()
    try:
        mounts = check_mounts([text])
    except SpecInvalid as refusal:
        said = str(refusal)
    assert "\n" not in said
    assert said.encode() or str(mounts[0].target).startswith("/mnt/")
