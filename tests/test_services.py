"""The real servers of the tests answer, keep their data, and end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import psutil
import psycopg
import pytest
import redis
from amqp.exceptions import PreconditionFailed
from kombu import Connection

from tests.services import (
    SERVERS,
    PostgresServer,
    RabbitServer,
    RedisServer,
    ServerFailed,
    is_alive,
)

ROOT = Path(__file__).resolve().parents[1]


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def set_key(url):
    with redis.Redis.from_url(url) as client:
        client.set("key", "kept")


def get_key(url):
    with redis.Redis.from_url(url) as client:
        return client.get("key")


def plain(url):
    """A URL as psycopg itself reads it."""
    return url.replace("+psycopg", "")


def create_table(url):
    with psycopg.connect(plain(url)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")


def read_table(url):
    with psycopg.connect(plain(url)) as connection:
        return connection.execute("SELECT value FROM kept").fetchall()


@pytest.mark.servers("redis")
@pytest.mark.parametrize("end", [RedisServer.stop, RedisServer.kill])
def test_redis_keeps_its_port_and_its_data_when_it_is_started_again(end):
    with RedisServer() as server:
        set_key(server.url)
        end(server)
        assert not is_listening(server.port)
        server.start()
        assert get_key(server.url) == b"kept"
    assert not is_listening(server.port)
    assert not server.folder.exists()


@pytest.mark.servers("postgres")
@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
def test_postgres_keeps_its_port_and_its_data_when_it_is_started_again(end):
    with PostgresServer() as server:
        create_table(server.url)
        end(server)
        assert not is_listening(server.port)
        server.start()
        assert read_table(server.url) == [(7,)]
    assert not is_listening(server.port)
    assert not server.folder.exists()


@pytest.mark.servers("rabbit")
def test_rabbit_keeps_its_messages_when_killed_and_closes_a_channel_that_does_not_acknowledge():
    with RabbitServer(consumer_timeout_s=1) as server:
        with Connection(server.url, transport_options={"confirm_publish": True}) as connection:
            connection.SimpleQueue("kept").put("hello")
        server.kill()
        assert not is_listening(server.port)
        server.start()
        with Connection(server.url) as connection:
            first = connection.SimpleQueue("kept").get(timeout=5)
            with pytest.raises(PreconditionFailed, match="timeout"):
                connection.drain_events(timeout=10)
        with Connection(server.url) as connection:
            again = connection.SimpleQueue("kept").get(timeout=5)
            again.ack()
        assert first.payload == again.payload == "hello"
    assert not is_listening(server.port)
    assert not is_listening(server.epmd_port)
    assert not server.folder.exists()


def test_each_test_gets_a_rabbit_without_queues(rabbit_server, rabbit_url):
    with Connection(rabbit_url) as connection:
        connection.SimpleQueue("mine").put("hello")
    assert rabbit_server.control("list_queues", "name") == ""


def test_rabbit_is_for_this_machine_alone(rabbit_server):
    nodes = [psutil.Process(rabbit_server.process.pid), psutil.Process(rabbit_server.epmd.pid)]
    listening = [c.laddr.ip for node in nodes for c in node.net_connections() if not c.raddr]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_redis_listens_on_a_socket_as_well(redis_server):
    with redis.Redis(unix_socket_path=str(redis_server.socket)) as client:
        assert client.ping()


def test_each_test_gets_an_empty_redis_database(redis_server, redis_url):
    set_key(redis_url)
    assert get_key(redis_server.database()) is None
    assert get_key(redis_url) == b"kept"


def test_each_test_gets_an_empty_postgres_database(postgres_server, postgres_url):
    create_table(postgres_url)
    with pytest.raises(psycopg.errors.UndefinedTable):
        read_table(postgres_server.database())
    assert read_table(postgres_url) == [(7,)]


def test_postgres_asks_for_the_password(postgres_server):
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(plain(postgres_server.url).replace("secret", "guess"))


@pytest.mark.servers("redis")
def test_a_server_that_a_thread_has_started_outlives_the_thread():
    with RedisServer() as server:
        server.stop()
        thread = Thread(target=server.start)
        thread.start()
        thread.join()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.3)
        assert is_listening(server.port)


OWNER = """
from tests.services import SERVERS
server = SERVERS["{name}"]()
server.start()
print(server.process.pid, server.folder, flush=True)
input()
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.servers(name)) for name in SERVERS]
)
def test_a_server_ends_with_the_process_that_started_it(name):
    command = [sys.executable, "-c", OWNER.format(name=name)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        pid, folder = owner.stdout.readline().split()
        tree = psutil.Process(owner.pid).children(recursive=True)
        assert int(pid) in {process.pid for process in tree}
        owner.kill()
    deadline = time.monotonic() + 10
    while any(map(is_alive, tree)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [process for process in tree if is_alive(process)]
    shutil.rmtree(folder)
    assert not left


@pytest.mark.servers("redis")
def test_a_server_that_does_not_start_says_why():
    with RedisServer() as server:
        rival = RedisServer()
        rival.port = server.port
        with pytest.raises(ServerFailed, match="Address already in use"), rival:
            pass
    assert not rival.folder.exists()
