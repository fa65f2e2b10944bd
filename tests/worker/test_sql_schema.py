"""The schema of a store: made, compared, brought up to date, and refused."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tests.worker.store_contract import OF_EVERY_KIND
from worker.errors import SchemaMismatch, StoreUnavailable
from worker.messages import Budget, Job, Order
from worker.store import database as opening
from worker.store.connections import Database
from worker.store.database import open_store, upgrade
from worker.store.packing import event, event_body, packed, unpacked
from worker.store.tables import HEAD, REVISIONS, VERSION_TABLE, metadata

ROOT = Path(__file__).parents[2]
FIRST = REVISIONS[0]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/caisson.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def database(url):
    with contextlib.closing(Database(url)) as database:
        yield database


def made(url):
    open_store(url).close()


def run(database, *statements):
    """Run statements; returns all rows of the last."""

    def work(connection):
        results = [connection.execute(text(statement)) for statement in statements]
        return results[-1].all() if results[-1].returns_rows else None

    return database.write(work)


@pytest.fixture
def old(url, database):
    """A database as the first version made it, with a job."""
    with database.alone() as connection:
        opening._run_migrations(connection, FIRST)
    names = "number, id, status, created_at, updated_at, generation, losses, worker, place, engine"
    values = "1, 'one', 'queued', 1.0, 1.0, 0, 0, '', '', ''"
    more = "is_cancelling, priority, memory_bytes, cpus, waits_for, events, steps"
    run(
        database,
        f"INSERT INTO jobs ({names}, {more}, input_tokens, output_tokens, cost)"
        f" VALUES ({values}, false, 0, 0, 0.0, '', 0, 0, 0, 0, 0.0)",
        "INSERT INTO orders (job_id, job, asked)"
        """ VALUES ('one', '{"id"\\:"one","goal"\\:"g"}', '{}')""",
    )
    return url


# ---- made


def test_what_migrations_make_is_what_the_tables_say(url, database):
    made(url)
    with database.alone() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []


def test_indexes_of_migrations_have_the_conditions_and_orders_of_the_tables(url, database):
    """Comparing leaves out what they are made of."""
    query = (
        "SELECT name, sql FROM sqlite_master WHERE sql LIKE 'CREATE INDEX%' ORDER BY name"
        if database.is_sqlite
        else "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
        f" AND tablename <> '{VERSION_TABLE}' ORDER BY indexname"
    )
    made(url)
    migrated = run(database, query)
    with database.alone() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    plain = [(name, made.replace("jobs.", "")) for name, made in run(database, query)]
    assert [(name, made.replace("jobs.", "")) for name, made in migrated] == plain
    assert len(plain) >= 7


def test_every_migration_is_known_and_has_one_before_it():
    config = Config()
    config.set_main_option("script_location", str(opening._MIGRATIONS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    steps = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(steps)) == REVISIONS


def test_a_store_keeps_its_name(url):
    names = []
    for _ in range(3):
        with contextlib.closing(open_store(url)) as store:
            names.append(store.identity)
    assert len(set(names)) == 1
    assert len(names[0]) == 36


def test_two_stores_have_two_names(tmp_path):
    names = set()
    for number in range(2):
        with contextlib.closing(open_store(f"sqlite:///{tmp_path}/{number}.db")) as store:
            names.add(store.identity)
    assert len(names) == 2


def test_threads_that_open_an_empty_database_at_once_make_one_store(url):
    names, gate = [], threading.Barrier(4)

    def work():
        gate.wait()
        with contextlib.closing(open_store(url)) as store:
            names.append(store.identity)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 4
    assert len(set(names)) == 1


def test_an_installed_wheel_makes_a_store_wherever_it_is_called(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("worker", "sandbox"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", str(tmp_path)], cwd=source, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "100% site"
    with zipfile.ZipFile(wheel) as packed_wheel:
        packed_wheel.extractall(site)
    here = tmp_path / "here"
    here.mkdir()
    (here / "alembic.ini").write_text("[alembic]\nscript_location = nowhere\n")
    (here / "pyproject.toml").write_text('[tool.alembic]\nscript_location = "nowhere"\n')
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import worker; from worker.store.database import open_store\n"
        "store = open_store('sqlite:///relative.db')\n"
        "print(worker.__file__, store.jobs())\n"
        "store.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{site}/worker/__init__.py ()\n", "")
    assert (here / "relative.db").exists()


# ---- older and newer


def test_an_older_schema_is_refused_and_the_command_named(old):
    with pytest.raises(SchemaMismatch, match=r"older.*0001.*run: caisson db upgrade") as info:
        open_store(old)
    assert "secret" not in str(info.value)
    assert "\n" not in str(info.value)


def test_an_older_schema_is_brought_up_to_date_with_its_jobs(old):
    assert upgrade(old) == (FIRST, HEAD)
    with contextlib.closing(open_store(old)) as store:
        assert store.load("one") == (Job(id="one", goal="g"), ())
        assert store.claim("one").generation == 1
    assert upgrade(old) == (HEAD, HEAD)


def test_an_upgrade_of_an_empty_database_makes_the_schema(url):
    assert upgrade(url) == ("", HEAD)
    assert upgrade(url) == (HEAD, HEAD)
    made(url)


def test_two_upgrades_at_once_are_one(old):
    found, gate = [], threading.Barrier(3)

    def work():
        gate.wait()
        found.append(upgrade(old))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert {after for _, after in found} == {HEAD}
    made(old)


@pytest.mark.parametrize("use", [open_store, upgrade])
def test_a_newer_schema_is_refused_and_left_alone(url, database, use):
    made(url)
    run(database, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(SchemaMismatch, match=r"newer.*9999.*install a newer caisson"):
        use(url)
    assert run(database, f"SELECT version_num FROM {VERSION_TABLE}") == [("9999",)]


@pytest.mark.parametrize("use", [open_store, upgrade])
def test_tables_of_something_else_are_left_alone(url, database, use):
    if database.is_sqlite:
        opening._make_file(database)
    run(database, "CREATE TABLE jobs (theirs INTEGER)", "INSERT INTO jobs VALUES (7)")
    with pytest.raises(SchemaMismatch, match=r"tables of something else \(jobs\)"):
        use(url)
    assert run(database, "SELECT theirs FROM jobs") == [(7,)]


def test_tables_of_others_beside_ours_do_no_harm(url, database):
    if database.is_sqlite:
        opening._make_file(database)
    run(
        database,
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        "INSERT INTO alembic_version VALUES ('theirs')",
        "CREATE TABLE celery_taskmeta (id INTEGER)",
    )
    made(url)
    assert upgrade(url) == (HEAD, HEAD)
    assert run(database, "SELECT version_num FROM alembic_version") == [("theirs",)]


def test_an_upgrade_that_fails_leaves_everything_as_it_was(old, database):
    run(database, "CREATE TABLE approvals (theirs INTEGER)")
    with pytest.raises(StoreUnavailable, match="approvals"):
        upgrade(old)
    run(database, "DROP TABLE approvals")
    assert run(database, f"SELECT version_num FROM {VERSION_TABLE}") == [(FIRST,)]
    assert upgrade(old) == (FIRST, HEAD)


# ---- what is stored stays readable

STORED = (
    '{"message":{"role":"system","content":"s"}}',
    '{"message":{"role":"user","content":[{"type":"text","text":"hi"}]}}',
    '{"message":{"role":"assistant","extra":{"content":null}}}',
    '{"place":"abc","engine":"e1"}',
    '{"reply":{"message":{"role":"assistant","content":"hm","tool_calls":[{"id":"c1",'
    '"name":"shell","arguments":"{\\"a\\": 1","repaired":"a brace","extra":{"i":0}}],'
    '"extra":{"reasoning":"x"}},"finish":"length","usage":{"input_tokens":11,"output_tokens":5,'
    '"cost":0.1},"model":"m","duration_s":1.25,"waited_s":0.1}}',
    '{"reply":{"message":{"role":"assistant"},"usage":{"cost":null}}}',
    '{"call_id":"c1","place":"abc"}',
    '{"result":{"call_id":"c1","name":"shell","status":"error","text":"status: error",'
    '"execution":{"outcome":"error","exit_code":-9,"value":"None","output":"out",'
    '"output_truncated":true,"output_bytes":1099511627776,"output_file":"o.txt",'
    '"duration_s":0.30000000000000004,"interpreter":"restarted","lost_names":["df","x"],'
    '"files":[{"name":"a.png","size":3,"mime":"image/png"}]},"hint":"look",'
    '"files":[{"name":"a.png","size":3,"mime":"image/png"}],"duration_s":3.0}}',
    '{"text":"t","reason":"r","landing":"loop","why":"w"}',
    '{"text":""}',
    '{"text":"so far","steps":3,"usage":{"input_tokens":9,"output_tokens":2},"model":"m"}',
    '{"steps":4,"usage":{"input_tokens":5,"cost":0.5},"fault":"the summary was empty"}',
    '{"tokens":4096,"why":"cut"}',
    '{"why":"gone"}',
    '{"artifacts":[{"name":"a","size":1,"mime":"text/plain","path":"/x/a"},{"name":"b","size":1,'
    '"mime":"text/plain","path":"/x/b","source":"b.txt","sha256":"00"}]}',
    '{"status":"failed","finish_reason":"budget","answer":"as far as it came",'
    '"error":{"type":"BudgetSpent","message":"10 of 10 steps"}}',
    '{"artifacts":[{"name":"a","size":2,"mime":"text/plain","path":"/x/a"}]}',
)


@pytest.mark.parametrize(("happened", "body"), [*zip(OF_EVERY_KIND, STORED, strict=True)])
def test_events_are_stored_as_ever(happened, body):
    """A change here makes what was stored before unreadable, or read as something else."""
    assert event_body(happened) == body
    assert event(happened.kind, happened.at, body) == happened


def test_jobs_and_orders_are_stored_as_ever():
    job = Job(id="a", goal="g", tools=("shell",), budget=Budget(max_steps=3))
    stored = '{"id":"a","goal":"g","tools":["shell"],"budget":{"max_steps":3}}'
    assert packed(job) == stored
    assert unpacked(Job, stored) == job
    order = Order(options={"image": "i"}, memory_bytes=5, deliver={})
    stored = '{"options":{"image":"i"},"memory_bytes":5,"deliver":{}}'
    assert packed(order) == stored
    assert unpacked(Order, stored) == order


@pytest.mark.parametrize(
    ("kind", "body"), [("tomorrow", "{}"), ("remark", '{"text":"x","colour":1}'), ("remark", "{}")]
)
def test_what_a_newer_version_stored_is_said_to_be_so(kind, body):
    with pytest.raises(SchemaMismatch, match="install a newer caisson"):
        event(kind, 0.0, body)
