"""Opening a store: the schema is made where there is none, and checked where there is one.

There is no way back to an older schema: what a newer version stored, an older one cannot keep.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, column, inspect, select, table
from sqlalchemy.exc import OperationalError, ProgrammingError

from worker.admission import PATIENCE_S, PREFERRED_S
from worker.errors import SchemaMismatch, StoreUnavailable
from worker.store.connections import Database
from worker.store.sql import SqlStore
from worker.store.tables import HEAD, REVISIONS, VERSION_TABLE, meta, metadata

_MIGRATIONS = Path(__file__).parent / "migrations"
_INSTALL = "install a newer caisson"
_alembic = threading.Lock()  # it keeps what it works on in a module


class _Stamp(NamedTuple):
    """What a database says of itself; empty: nothing."""

    revision: str = ""
    identity: str = ""


_VERSION = table(VERSION_TABLE, column("version_num"))
_STAMP = select(
    select(_VERSION.c.version_num).scalar_subquery(), select(meta.c.identity).scalar_subquery()
)


def open_store(
    url: str, *, preferred_s: float = PREFERRED_S, patience_s: float = PATIENCE_S
) -> SqlStore:
    """Open the store at an address; an empty database is made into one.

    Args:
        url: The address.
        preferred_s: How long a job is left to the engine on which its sandbox lives.
        patience_s: After how long a job is not passed over any more.

    Raises:
        SchemaMismatch: An older or newer version made it; says what to do.
        StoreUnavailable: It cannot be reached; one line, without the password.
        SettingsInvalid: It is no address of a database.
    """
    database = Database(url)
    try:
        _make_file(database)
        stamp = database.read(_stamp)
        if not stamp.revision:
            stamp = _migrate(database)
        _check(database, stamp, {HEAD})
        return SqlStore(database, stamp.identity, preferred_s=preferred_s, patience_s=patience_s)
    except BaseException:
        database.close()
        raise


def upgrade(url: str) -> tuple[str, str]:
    """Bring a database to this version's schema; returns the revisions before and after.

    The one before is empty where there was no schema. Raises as `open_store` does.
    """
    database = Database(url)
    try:
        _make_file(database)
        stamp = database.read(_stamp)
        _check(database, stamp, {"", *REVISIONS})
        return stamp.revision, _migrate(database).revision
    finally:
        database.close()


def _check(database: Database, stamp: _Stamp, fit: set[str]) -> None:
    if stamp.revision in fit:
        return
    is_older = stamp.revision in REVISIONS
    age, remedy = ("older", "run: caisson db upgrade") if is_older else ("newer", _INSTALL)
    raise SchemaMismatch(
        f"{database.shown} has the schema of a version that is {age} ({stamp.revision}; this one "
        f"needs {HEAD}); {remedy}"
    )


def _make_file(database: Database) -> None:
    """Make SQLite's file, for its owner alone: jobs hold what people gave to them."""
    name = database.url.database
    if not database.is_sqlite or not name or name.startswith("file:"):
        return
    path = Path(name)
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(f"{database.shown}: {error.strerror}: {error.filename}") from error


def _stamp(connection: Connection) -> _Stamp:
    try:
        found = connection.execute(_STAMP).one()
    except (OperationalError, ProgrammingError):
        if not inspect(connection).has_table(VERSION_TABLE):
            return _Stamp()
        # Another process has just made it, or something else is wrong, which is raised again.
        found = connection.execute(_STAMP).one()
    return _Stamp(found[0] or "", found[1] or "")


def _migrate(database: Database) -> _Stamp:
    """Run what is missing of the migrations, in one transaction; another process's is waited for.

    An empty database gets its tables in no other way.
    """
    with database.alone() as connection:
        tables = set(inspect(connection).get_table_names())
        if VERSION_TABLE not in tables and (foreign := tables & metadata.tables.keys()):
            raise SchemaMismatch(
                f"{database.shown} holds tables of something else ({', '.join(sorted(foreign))}); "
                "name a database of its own"
            )
        _run_migrations(connection, HEAD)
        return _stamp(connection)


def _run_migrations(connection: Connection, revision: str) -> None:
    # Loaded only where there is something to migrate: it takes as long as the rest together.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, revision)
