"""What happens to a store in a database when processes die and databases go away."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import delete, event, text

from worker.errors import LeaseLost, SettingsInvalid, StoreUnavailable
from worker.messages import ArtifactsAdded, Job, Order, Remarked
from worker.store.base import WorkerSeen
from worker.store.connections import Undecided
from worker.store.database import open_store
from worker.store.tables import jobs

ROOT = Path(__file__).parents[2]
WORKER = WorkerSeen(name="w", engine="e1")
LONG_S = 60.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/caisson.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def opened():
    """Opens stores, and closes them after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(open_store(url)))


@pytest.fixture
def store(opened, url):
    return opened(url)


@contextlib.contextmanager
def processes(*commands):
    """Run functions of `store_process`, each to where it is ready."""
    program = (sys.executable, "-m", "tests.worker.store_process")
    started = [
        subprocess.Popen(
            [*program, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def go(*started):
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()


def rest(process):
    """The lines that a process prints until it ends of its own accord."""
    lines = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    return lines


# ---- other processes


def test_four_processes_take_each_job_exactly_once(store, url):
    for number in range(200):
        store.create(Job(id=f"j{number}", goal="g"), Order(priority=number % 3))
    with processes(*(("claim_all", url, f"w{i}") for i in range(4))) as started:
        go(*started)
        taken = [rest(process) for process in started]
    claims = [line.split() for lines in taken for line in lines]
    assert sorted(job_id for job_id, _ in claims) == sorted(f"j{n}" for n in range(200))
    assert {generation for _, generation in claims} == {"1"}
    assert sum(bool(lines) for lines in taken) > 1
    assert store.counts().claimable == 0
    assert all(len(store.attempts(f"j{number}")) == 1 for number in range(200))


def test_two_processes_make_one_store_of_an_empty_database(url):
    with processes(*(("opened", url) for _ in range(2))) as started:
        go(*started)
        names = {line for process in started for line in rest(process)}
    assert len(names) == 1


@pytest.mark.parametrize("after_s", [0.05, 0.3])
def test_a_process_that_is_killed_leaves_whole_events(store, url, after_s):
    store.create(Job(id="one", goal="g"))
    with processes(("append_for_ever", url, "one")) as (process,):
        go(process)
        assert process.stdout.readline() == "1\n"
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0].split()
    events = store.events("one")
    assert [e.text for e in events] == [f"{n} " * 2000 for n in range(1, len(events) + 1)]
    assert int(said[-1] if said else 1) <= len(events)
    assert store.get("one").events == len(events)
    with pytest.raises(LeaseLost):
        store.append("one", Remarked(text="x"), generation=7)
    store.append("one", Remarked(text="x"), generation=1)
    assert store.get("one").events == len(events) + 1


def test_a_process_whose_lease_is_over_writes_nothing(store, url):
    store.create(Job(id="one", goal="g"))
    with processes(("append_late", url, "one")) as (process,):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.25)
        claim = store.claim("one", "new", LONG_S)
        before = store.get("one")
        process.send_signal(signal.SIGCONT)
        go(process)
        assert rest(process) == ["lost"] * 3
    assert claim.losses == 1
    assert store.get("one") == before
    assert store.events("one") == ()
    assert [a.ending for a in store.attempts("one")] == ["lost", ""]


def test_a_forked_process_has_connections_of_its_own(url):
    command = [sys.executable, "-m", "tests.worker.store_process", "fork", url, "4"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[0, 0, 0, 0] last True\n", "")


# ---- databases that cannot be used

PASSWORD = "s3cret-word"


def one_line(info, *words):
    message = str(info.value)
    assert "\n" not in message
    assert PASSWORD not in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        f"mysql://u:{PASSWORD}@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        f"sqlite://u:{PASSWORD}@host/x.db",
        "sqlite://caisson.db",
        f"postgresql+psycopg://u:{PASSWORD}@host:port/db",
        f"postgresql://u:{PASSWORD}@host:99999999/db",
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises((SettingsInvalid, StoreUnavailable)) as info:
        open_store(address)
    one_line(info)
    assert not Path("x.db").exists()


def test_a_server_that_is_not_there_is_said_at_once():
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"postgresql://me:{PASSWORD}@127.0.0.1:1/db")
    one_line(info, "me:***@127.0.0.1:1/db", "Connection refused")
    assert time.monotonic() - started < 3


def test_a_password_among_the_options_is_not_said():
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"postgresql://127.0.0.1:1/db?user=me&password={PASSWORD}&sslmode=disable")
    one_line(info, "user=me&password=***&sslmode=disable", "Connection refused")


def test_a_server_that_does_not_answer_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(StoreUnavailable) as info:
            open_store(f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/db?connect_timeout=2")
    one_line(info, "timeout")
    assert time.monotonic() - started < 4


def test_a_host_without_an_address_is_said():
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"postgresql://me:{PASSWORD}@nowhere.invalid/db")
    one_line(info, "nowhere.invalid")


def test_a_wrong_password_and_a_missing_database_are_said(postgres_url):
    with pytest.raises(StoreUnavailable) as info:
        open_store(postgres_url.replace(":secret@", f":{PASSWORD}@"))
    one_line(info, "password authentication failed")
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"{postgres_url}_not")
    assert "secret" not in one_line(info, "does not exist")


def test_a_file_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"sqlite:///{tmp_path}/file/caisson.db")
    one_line(info, f"{tmp_path}/file", "Not a directory")
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"sqlite:///{tmp_path}")
    one_line(info, str(tmp_path))


def test_a_file_that_is_no_database_is_said_and_kept(tmp_path):
    path = tmp_path / "letter"
    path.write_text("Dear all,\n" * 100)
    with pytest.raises(StoreUnavailable) as info:
        open_store(f"sqlite:///{path}")
    one_line(info, "file is not a database")
    assert path.read_text() == "Dear all,\n" * 100


def test_a_database_that_may_only_be_read_is_read(opened, tmp_path):
    store = opened(f"sqlite:///{tmp_path}/caisson.db")
    store.create(Job(id="one", goal="g"))
    reader = opened(f"sqlite:///file:{tmp_path}/caisson.db?mode=ro&uri=true")
    assert reader.load("one")[0].goal == "g"
    with pytest.raises(StoreUnavailable) as info:
        reader.claim("one")
    one_line(info, "readonly database")


def test_a_database_that_another_has_locked_is_said(opened, tmp_path):
    store = opened(f"sqlite:///{tmp_path}/caisson.db?timeout=0.1")
    store.create(Job(id="one", goal="g"))
    claim = store.claim("one")
    with contextlib.closing(sqlite3.connect(tmp_path / "caisson.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable) as info:
            store.append("one", Remarked(text="x"), generation=claim.generation)
        one_line(info, "database is locked")
        assert store.events("one") == ()
    store.append("one", Remarked(text="x"), generation=claim.generation)
    assert len(store.events("one")) == 1


# ---- no room


def fill(store):
    """Append until there is no room; returns what was said then, and how many were stored."""
    store.create(Job(id="one", goal="g"))
    generation = store.claim("one").generation
    for number in range(1000):
        try:
            store.append("one", Remarked(text=f"{number} " * 5000), generation=generation)
        except StoreUnavailable as error:
            return str(error), number
    raise AssertionError("there was room for everything")


def check_whole(store, count):
    """Whether exactly so many events are there; the next one goes behind them."""
    assert store.get("one").events == len(store.events("one")) == count
    store.append("one", Remarked(text="on"), generation=store.get("one").generation)
    assert store.events("one")[-1].text == "on"
    assert store.get("one").events == count + 1


def test_a_full_database_keeps_what_it_has(opened, tmp_path):
    store = opened(f"sqlite:///{tmp_path}/caisson.db")
    pages = 300

    def limit(connection, _record, _proxy):
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(store._database._engine(writing=True), "checkout", limit)
    said, count = fill(store)
    assert "database or disk is full" in said
    pages = 10_000
    check_whole(store, count)


def test_a_full_disk_keeps_what_it_has(opened, tmp_path):
    def mount(*arguments):
        return subprocess.run(arguments, check=False, capture_output=True).returncode == 0

    if not mount("mount", "-t", "tmpfs", "-o", "size=2m", "none", tmp_path):
        pytest.skip("only root can make a small disk")
    try:
        ballast = tmp_path / "ballast"
        ballast.write_bytes(bytes(2**20))
        with contextlib.closing(open_store(f"sqlite:///{tmp_path}/caisson.db")) as store:
            said, count = fill(store)
            assert "disk" in said
            ballast.unlink()
            check_whole(store, count)
    finally:
        assert mount("umount", tmp_path)


def test_a_disk_that_fails_is_said(opened, tmp_path):
    store = opened(f"sqlite:///{tmp_path}/caisson.db")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        said, count = fill(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "disk I/O error" in said
    check_whole(store, count)


# ---- PostgreSQL away


@pytest.fixture(scope="module")
def made_url(postgres_server):
    """One database for what follows: to make one takes longer than to use it."""
    postgres_server.start()
    return postgres_server.database()


@pytest.fixture
def kept_url(opened, made_url, postgres_server):
    """That database, without jobs."""
    opened(made_url)._database.write(lambda c: c.execute(delete(jobs)))
    yield made_url
    postgres_server.start()


@pytest.fixture
def working(opened, kept_url):
    """A store, its connections in use, with a job that is held."""
    store = opened(kept_url)
    store.create(Job(id="one", goal="g"))
    store.claim_next(WORKER, LONG_S)
    return store


def sever(store):
    """End every other connection to the database, as an administrator may."""
    store._database.read(
        lambda c: c.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        ).all()
    )


USES = {
    "append": lambda s: s.append("one", Remarked(text="x"), generation=1),
    "renew": lambda s: s.renew("one", generation=1, lease_s=LONG_S, figures={"a": 1}),
    "release": lambda s: s.release("one", generation=1),
    "create": lambda s: s.create(Job(id="two", goal="g")),
    "claim_next": lambda s: s.claim_next(WORKER, LONG_S),
    "get": lambda s: s.get("one"),
    "see": lambda s: s.see(WORKER),
    "undelivered": lambda s: s.undelivered(),
}


@pytest.mark.parametrize("use", USES)
def test_a_connection_that_was_cut_is_made_anew(working, opened, kept_url, use):
    sever(opened(kept_url))
    USES[use](working)
    assert working.get("one").events == (use == "append")


def test_a_server_that_was_restarted_is_used_as_before(working, postgres_server):
    postgres_server.stop()
    postgres_server.start()
    for use in USES.values():
        use(working)
    postgres_server.kill()
    postgres_server.start()
    assert working.get("one").events == 1
    assert working.load("two")[0].goal == "g"


def test_a_server_that_is_away_is_said_and_used_when_it_is_back(working, postgres_server):
    postgres_server.stop()
    for _ in range(2):
        for use in ("append", "get", "claim_next"):
            with pytest.raises(StoreUnavailable) as info:
                USES[use](working)
            assert "secret" not in one_line(info, "caisson:***@127.0.0.1")
    postgres_server.start()
    USES["append"](working)
    assert working.get("one").events == 1


def test_a_stopped_process_does_not_hold_up_the_others_for_ever(working):
    def asked(name):
        return working._database.read(lambda c: c.execute(text(f"SHOW {name}")).scalar())

    assert asked("statement_timeout") == "30s"
    assert asked("idle_in_transaction_session_timeout") == "15s"


def test_transactions_that_block_each_other_are_both_done(opened, kept_url):
    store = opened(kept_url)
    for name in ("a", "b"):
        store.create(Job(id=name, goal="0"))
    gate, turns = threading.Barrier(2), []

    def cross(first, second):
        def work(connection):
            turns.append(first)
            for job_id in (first, second):
                connection.execute(
                    text("UPDATE jobs SET steps = steps + 1 WHERE id = :id"), {"id": job_id}
                )
                if job_id == first and len(turns) <= 2:
                    gate.wait()

        store._database.write(work)

    threads = [threading.Thread(target=cross, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(turns) == 3
    assert [store.get(name).job.steps for name in ("a", "b")] == [2, 2]


# ---- a connection that dies in a commit


class Proxy:
    """Stands before a server; cuts a connection at the next COMMIT, before or after it is done.

    With `is_closed` it takes no new connections.
    """

    def __init__(self, url):
        self.target = int(re.search(r":(\d+)/", url)[1])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = re.sub(r":\d+/", f":{self.listener.getsockname()[1]}/", url)
        self.cut = None
        self.is_closed = False
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                if self.is_closed:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()

    def _ask(self, client, server):
        """Carry what is said to and fro; a client of a database waits for each answer."""
        back = threading.Thread(target=self._answer, args=(server, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(2**20):
                if self.cut and b"COMMIT\0" in data:
                    self._cut(client, server, data)
                    break
                server.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        back.join()
        client.close()
        server.close()

    def _cut(self, client, server, data):
        how, self.cut = self.cut, None
        self.cuts += 1
        client.shutdown(socket.SHUT_RDWR)
        if how == "after":
            server.sendall(data)
            time.sleep(0.2)

    def _answer(self, server, client):
        with contextlib.suppress(OSError):
            while data := server.recv(2**20):
                client.sendall(data)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def proxy(kept_url):
    with contextlib.closing(Proxy(kept_url)) as proxy:
        yield proxy


@pytest.fixture
def behind(opened, proxy):
    """A store whose connections the proxy carries."""
    store = opened(proxy.url)
    store.create(Job(id="one", goal="g"), Order(key="k"))
    return store


@pytest.mark.parametrize("when", ["before", "after"])
class TestCutInTheCommit:
    def test_an_event_is_stored_once(self, behind, proxy, when):
        generation = behind.claim("one", "w", LONG_S).generation
        for number in range(3):
            proxy.cut = when
            behind.append("one", Remarked(text=str(number)), generation=generation)
        assert proxy.cuts == 3
        assert [e.text for e in behind.events("one")] == ["0", "1", "2"]
        assert behind.get("one").events == 3

    def test_equal_events_are_all_stored(self, behind, proxy, when):
        generation = behind.claim("one", "w", LONG_S).generation
        for _ in range(3):
            proxy.cut = when
            behind.append("one", Remarked(text="same"), generation=generation)
        assert len(behind.events("one")) == 3

    def test_an_event_that_is_appended_again_is_stored_once(self, behind, proxy, when):
        generation = behind.claim("one", "w", LONG_S).generation
        again = Remarked(text="x", at=5.0)
        proxy.cut, proxy.is_closed = when, True
        with pytest.raises(Undecided):
            behind.append("one", again, generation=generation)
        with pytest.raises(StoreUnavailable):
            behind.append("one", again, generation=generation)
        proxy.is_closed = False
        behind.append("one", again, generation=generation)
        assert behind.events("one") == (again,)
        behind.append("one", again, generation=generation)
        assert behind.events("one") == (again, again)

    def test_another_event_is_stored_behind_the_doubtful_one(self, behind, proxy, when):
        generation = behind.claim("one", "w", LONG_S).generation
        proxy.cut, proxy.is_closed = when, True
        with pytest.raises(Undecided):
            behind.append("one", Remarked(text="first"), generation=generation)
        proxy.is_closed = False
        behind.append("one", Remarked(text="second"), generation=generation)
        texts = [e.text for e in behind.events("one")]
        assert texts == (["first", "second"] if when == "after" else ["second"])

    def test_a_job_is_created_once(self, behind, proxy, when):
        proxy.cut = when
        assert behind.create(Job(id="two", goal="g")) == "two"
        proxy.cut = when
        assert behind.create(Job(id="three", goal="g"), Order(key="k")) == "one"
        assert len(behind.jobs()) == 2
        assert proxy.cuts == 2

    def test_a_job_is_claimed_once(self, behind, proxy, when):
        behind.create(Job(id="two", goal="g"))
        proxy.cut = when
        first = behind.claim_next(WORKER, LONG_S)
        proxy.cut = when
        second = behind.claim("two", "w", LONG_S)
        assert proxy.cuts == 2
        assert [(c.job_id, c.generation, c.losses) for c in (first, second)] == [
            ("one", 1, 0),
            ("two", 1, 0),
        ]

    def test_a_job_is_given_back_once(self, behind, proxy, when):
        generation = behind.claim("one", "w", LONG_S).generation
        proxy.cut = when
        assert behind.release("one", generation=generation).value == "queued"
        assert proxy.cuts == 1
        assert [a.ending for a in behind.attempts("one")] == ["released"]

    def test_artefacts_are_kept_once(self, behind, proxy, when):
        generation = behind.claim("one", "w", LONG_S).generation
        made = ({"name": "a", "size": 1, "mime": "text/plain", "path": "/a"},)
        proxy.cut = when
        behind.append("one", ArtifactsAdded(artifacts=made), generation=generation)
        assert [a.name for a in behind.get("one").job.artifacts] == ["a"]
        assert behind.get("one").events == 1

    def test_a_lease_is_renewed(self, behind, proxy, when):
        generation = behind.claim("one", "w", 0.0).generation
        proxy.cut = when
        behind.renew("one", generation=generation, lease_s=LONG_S, figures={"a": 1})
        assert behind.get("one").is_held


def test_a_file_of_jobs_is_its_owners_alone(opened, tmp_path):
    folder = tmp_path / "new" / "data"
    old = os.umask(0)
    try:
        store = opened(f"sqlite:///{folder}/caisson.db")
        store.create(Job(id="one", goal="g"))
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes.pop("data") == 0o700
    assert set(modes) == {"caisson.db", "caisson.db-wal", "caisson.db-shm"}
    assert set(modes.values()) == {0o600}


def test_a_folder_that_was_there_is_left_as_it_is(opened, tmp_path):
    tmp_path.chmod(0o755)
    opened(f"sqlite:///{tmp_path}/caisson.db")
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_sqlite_keeps_a_log_and_its_references(opened, tmp_path):
    store = opened(f"sqlite:///{tmp_path}/caisson.db")

    def asked(name):
        return store._database.write(lambda c: c.execute(text(f"PRAGMA {name}")).scalar())

    assert asked("journal_mode") == "wal"
    assert asked("synchronous") == 1
    assert asked("foreign_keys") == 1
    assert asked("busy_timeout") == 15_000
