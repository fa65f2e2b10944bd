"""Real servers for tests: each on a free port of the loopback interface, with data of its own.

Each is a context manager, ready when `start` returns. It may be stopped (`stop`), killed (`kill`)
and started again on the same port with the same data. It ends with this process, however that
ends, because the kernel tells it so. What is not covered: after a SIGKILL of this process its
folder stays behind.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import psutil
import psycopg
import redis
from kombu import Connection

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # which the PATH of a plain user may lack
# Below the ports that the system gives to clients: nobody takes one while its server is down.
PORTS = range(20_000, 32_000)

# The kernel sends the "death of the parent" when the *thread* dies that started the child. So all
# are started by one thread, which lives as long as the process; tests may use any.
_starter = ThreadPoolExecutor(1, "starter")


class ServerFailed(Exception):
    """A server did not start or did not end; the message has the end of its log."""


def find_program(name, *patterns):
    """The newest program of that name in folders given by patterns, or on the PATH."""
    found = sorted(
        (path for pattern in patterns for path in Path("/usr").glob(f"{pattern}/{name}")),
        key=lambda path: [int(n) if n.isdigit() else 0 for n in path.parts],
    )
    if found:
        return str(found[-1])
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")


def free_port():
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def is_alive(process):
    """Whether it runs: one that nobody has waited for yet has ended all the same."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Server(ABC):
    """One server process and its folder."""

    name: ClassVar[str]
    package: ClassVar[str]  # Debian's
    death_signal: ClassVar[str] = "KILL"  # what it gets when this process dies
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self):
        why = self.why_missing()
        if why:
            raise ServerFailed(why)
        self.port = free_port()
        # Not pytest's: that is for its user alone, and too long for the name of a unix socket.
        self.folder = Path(tempfile.mkdtemp(prefix=f"caisson-{self.name}-"))
        self.log = self.folder / "log"
        self.process = None
        self.started_in_s = 0.0

    @classmethod
    def why_missing(cls):
        """Why it cannot be started here; empty if it can."""
        for program in ("setpriv", *cls.programs()):
            if not cls.program(program):
                return f"there is no {program} here (Debian's package {cls.package} has it)"
        return ""

    @classmethod
    def programs(cls):
        return (cls.name,)

    @classmethod
    def program(cls, name):
        """Where a program of this server is, or None."""
        return find_program(name)

    @property
    @abstractmethod
    def url(self): ...

    @abstractmethod
    def command(self): ...

    @abstractmethod
    def is_ready(self): ...

    def environment(self):
        return dict(os.environ)

    def privileges(self):
        """Options of setpriv."""
        return ()

    def prepare(self):  # noqa: B027 - most need nothing
        """Make what a start needs and is not there yet."""

    def start(self):
        """Start it and wait until it answers; nothing if it runs."""
        if self.is_running():
            return
        started = time.monotonic()
        self.prepare()
        self.process = self.spawn(self.command())
        while not self.is_ready():
            waited_s = time.monotonic() - started
            if not self.is_running() or waited_s > START_TIMEOUT_S:
                self.kill()
                raise ServerFailed(f"{self.name} is not ready after {waited_s:.1f} s: {self.end()}")
            time.sleep(0.02)
        self.started_in_s = time.monotonic() - started

    def spawn(self, command):
        guarded = [
            *("setpriv", *self.privileges(), "--pdeathsig", self.death_signal, "--"),
            *map(str, command),
        ]
        with self.log.open("ab") as log:
            return _starter.submit(
                subprocess.Popen,
                guarded,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt of the tests is not theirs
            ).result()

    def end(self):
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-8:]) or "it said nothing"

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        """End it as its operator would, with everything written."""
        if not self.is_running():
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"{self.name} does not stop: {self.end()}") from None

    def kill(self):
        """End it and its children with SIGKILL, at once."""
        if not self.is_running():
            return
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(STOP_TIMEOUT_S)
        while any(map(is_alive, tree)):
            time.sleep(0.01)

    def close(self):
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()


class RedisServer(Server):
    """Redis, on a port and on the unix socket `socket`; what it has answered is on disk."""

    name = "redis-server"
    package = "redis-server"
    databases = 256

    def __init__(self):
        super().__init__()
        self.socket = self.folder / "redis.sock"
        self._numbers = itertools.count(1)

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self):
        return f"redis+socket://{self.socket}?virtual_host=0"

    def command(self):
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "unixsocket": self.socket,
            "dir": self.folder,
            "databases": self.databases,
            # Written before the answer, left to the system to sync: survives every kill.
            "appendonly": "yes",
            "appendfsync": "no",
            "save": "",
        }
        pairs = ((f"--{key}", value) for key, value in options.items())
        return (self.program(self.name), *itertools.chain.from_iterable(pairs))

    def client(self, number=0):
        return redis.Redis(port=self.port, db=number, socket_timeout=10)

    def is_ready(self):
        with self.client() as client:
            try:
                return client.info("server")["process_id"] == self.process.pid
            except redis.exceptions.ConnectionError:  # BusyLoadingError is one as well
                return False

    def database(self):
        """The URL of an empty database, another one each time."""
        number = next(self._numbers) % self.databases
        with self.client(number) as client:
            client.flushdb()
        return f"redis://127.0.0.1:{self.port}/{number}"


class PostgresServer(Server):
    """PostgreSQL, without waiting for the disk; survives every kill but not a loss of power."""

    name = "postgres"
    package = "postgresql"
    # SIGQUIT: all its processes end at once, and its shared memory is given back.
    death_signal = "QUIT"
    stop_signal = signal.SIGINT  # "fast": clients are sent away
    user, password = "caisson", "secret"

    def __init__(self):
        super().__init__()
        self.data = self.folder / "data"
        self._numbers = itertools.count(1)
        if self._is_root():
            shutil.chown(self.folder, "postgres", "postgres")

    @staticmethod
    def _is_root():
        return os.geteuid() == 0

    @classmethod
    def programs(cls):
        return ("postgres", "initdb")

    @classmethod
    def program(cls, name):
        return find_program(name, "lib/postgresql/*/bin", "pgsql-*/bin")

    @property
    def url(self):
        return self._url("caisson")

    def _url(self, database):
        account = f"{self.user}:{self.password}"
        return f"postgresql+psycopg://{account}@127.0.0.1:{self.port}/{database}"

    def privileges(self):
        if not self._is_root():
            return ()
        return ("--reuid", "postgres", "--regid", "postgres", "--init-groups")

    def command(self):
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 300,
            "fsync": "off",
            "full_page_writes": "off",
        }
        pairs = (("-c", f"{key}={value}") for key, value in settings.items())
        chained = itertools.chain.from_iterable(pairs)
        return (self.program("postgres"), "-D", self.data, *chained)

    def prepare(self):
        if self.data.exists():
            return
        secret = self.folder / "password"
        secret.write_text(self.password)
        command = (self.program("initdb"), "-D", self.data, "-U", self.user, "--no-sync")
        how = ("--auth=scram-sha-256", "--locale=C.UTF-8", "--encoding=UTF8")
        done = self.spawn((*command, *how, f"--pwfile={secret}")).wait(START_TIMEOUT_S)
        if done != 0:
            raise ServerFailed(f"initdb failed: {self.end()}")

    def connect(self, database="postgres"):
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=database,
            connect_timeout=10,
            autocommit=True,
        )

    def is_ready(self):
        lock = self.data / "postmaster.pid"
        if not lock.exists() or not lock.read_text().startswith(f"{self.process.pid}\n"):
            return False
        try:
            with self.connect() as connection:
                self._ensure_database(connection)
        except psycopg.OperationalError:
            return False
        return True

    @staticmethod
    def _ensure_database(connection):
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'caisson'")
        if found.fetchone() is None:
            connection.execute("CREATE DATABASE caisson")

    def database(self):
        """The URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)


class RabbitServer(Server):
    """RabbitMQ, a node by itself; durable queues and persistent messages survive a kill.

    With `consumer_timeout_s`, a channel that leaves a message without its acknowledgement for so
    long is closed; that is looked at every half second instead of every minute.
    """

    name = "rabbitmq-server"
    package = "rabbitmq-server"

    def __init__(self, consumer_timeout_s=None):
        super().__init__()
        self.consumer_timeout_s = consumer_timeout_s
        self.epmd_port, self.node_port = free_port(), free_port()
        self.node = f"caisson-{self.port}@localhost"
        self.epmd = None
        self._numbers = itertools.count(1)

    @classmethod
    def programs(cls):
        return (cls.name, "rabbitmqctl", "epmd")

    @classmethod
    def program(cls, name):
        # What Debian has in sbin is a wrapper that becomes the user rabbitmq.
        return find_program(name, "lib/rabbitmq/bin", "lib/rabbitmq/lib/*/sbin")

    @property
    def url(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def environment(self):
        place = {
            "CONF_ENV_FILE": "environment",
            "CONFIG_FILE": "rabbitmq.conf",
            "ADVANCED_CONFIG_FILE": "advanced.config",
            "ENABLED_PLUGINS_FILE": "plugins",
            "PLUGINS_EXPAND_DIR": "expanded",
            "MNESIA_BASE": "data",
            "LOG_BASE": "logs",
            "PID_FILE": "pid",
        }
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))},
            **{f"RABBITMQ_{name}": str(self.folder / file) for name, file in place.items()},
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.node_port),
            # Makes the script become the server instead of watching over it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false"
            " -kernel inet_dist_use_interface {127,0,0,1}",
            # A register of nodes of our own: the usual one outlives everyone who starts it.
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "HOME": str(self.folder),  # where nodes and commands keep what they know each other by
        }

    def prepare(self):
        timeout_ms = round((self.consumer_timeout_s or 1800) * 1000)
        (self.folder / "rabbitmq.conf").write_text(f"consumer_timeout = {timeout_ms}\n")
        (self.folder / "advanced.config").write_text("[{rabbit, [{channel_tick_interval, 500}]}].")
        for empty in ("environment", "plugins"):
            (self.folder / empty).touch()
        if self.epmd is None:
            self.epmd = self.spawn([self.program("epmd"), "-port", self.epmd_port])

    def command(self):
        return (self.program(self.name),)

    def is_ready(self):
        try:
            with Connection(self.url, connect_timeout=5) as connection:
                connection.connect()
        except OSError:
            return False
        return True

    def database(self):
        """The URL of a new virtual host, without queues."""
        name = f"test-{next(self._numbers)}"
        self.control("add_vhost", name)
        self.control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{name}"

    def control(self, *arguments):
        """Run a command of rabbitmqctl; returns what it prints."""
        command = [self.program("rabbitmqctl"), "--quiet", *arguments]
        return subprocess.run(
            command,
            check=True,
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=START_TIMEOUT_S,
        ).stdout

    def close(self):
        try:
            super().close()
        finally:
            if self.epmd is not None:
                self.epmd.kill()
                self.epmd.wait()


SERVERS = {"redis": RedisServer, "postgres": PostgresServer, "rabbit": RabbitServer}
