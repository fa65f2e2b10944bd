"""Connections to a database, transactions over them, and what is done when they break.

A connection belongs to the process that made it: after a fork each process makes its own. SQLite
also keeps for itself, once per process, which locks it has; a child that inherits this believes to
have locks that it has not. So no file is open while a process forks.

What SQLite promises here: a transaction that was committed survives the end of every process, by
whatever signal (WAL). With `synchronous=NORMAL` it is not waited for the disk, which would take
milliseconds for each event of each job. So a loss of power, and nothing less, may take the last
transactions with it; the database is whole in any case, and the sandboxes are gone then too.
A process that is stopped (SIGSTOP) within a transaction keeps the others from writing; it is
within one for less than a millisecond at a time. PostgreSQL ends such a transaction by itself.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from worker.errors import SettingsInvalid, StoreUnavailable
from worker.urls import check_database, without_password

T = TypeVar("T")

_BUSY_S = 15.0  # how long a process waits for the writing of others
_POSTGRES = {
    "connect_timeout": 5,
    "application_name": "caisson",
    # A worker that is stopped within a transaction must not hold up the others.
    "options": "-c statement_timeout=30s -c idle_in_transaction_session_timeout=15s",
    # A server that is gone without a word is noticed before a lease is over.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_PRAGMAS = ("PRAGMA synchronous=NORMAL", "PRAGMA foreign_keys=ON")
_ROLLED_BACK = {"40001", "40P01"}  # by PostgreSQL, in favour of another transaction
_SAID = 300  # characters of a reason


class Undecided(StoreUnavailable):
    """The connection died in a commit, and the store is away: nobody knows whether it is stored.

    `found` is what the transaction had found.
    """

    def __init__(self, message: str, found: Any) -> None:  # noqa: ANN401 - the caller's own
        super().__init__(message)
        self.found = found


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """What a transaction found; with a `doubt`, its connection died while it was committed."""

    found: T
    doubt: DBAPIError | None = None


def _never(_connection: Connection, _found: object) -> bool:
    return False


class _Gate:
    """Lets threads use connections, and none while the process forks."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Be as new: in a child there are no other threads."""
        self._changed = threading.Condition()
        self._inside = 0
        self._closings = 0

    @contextmanager
    def passed(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closings)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in until `open`, and wait for those inside."""
        with self._changed:
            self._closings += 1
            self._changed.wait_for(lambda: not self._inside, _BUSY_S)

    def open(self) -> None:
        with self._changed:
            self._closings -= 1
            self._changed.notify_all()


class Database:
    """One database by its address. Nothing is connected before it is needed.

    Everything raises `StoreUnavailable`, in one line and without the password.
    """

    def __init__(self, url: str) -> None:
        self.url = _parsed(url)
        self.shown = without_password(url)
        self._engines: dict[int, tuple[Engine, Engine, Engine]] = {}
        self._gate = _Gate()
        if self.is_sqlite:
            _files.add(self)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def close(self) -> None:
        """Let go of this process's connections; the next use makes new ones."""
        for engine in self._engines.pop(os.getpid(), ())[:1]:
            engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` reads, each statement by itself; twice if the connection was dead."""
        with self._speaking():
            try:
                return self._read(work)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            return self._read(work)

    def write(
        self,
        work: Callable[[Connection], T],
        is_done: Callable[[Connection, T], bool] = _never,
        doubt: T | None = None,
    ) -> T:
        """Run `work` in a transaction; once more if the connection was dead.

        Once more also when it died in the commit, but then only if `is_done` finds that what
        the first time found is not stored: without `is_done`, `work` may be done twice. Raises
        `Undecided` if that cannot be asked. A `doubt` is what such an error had found: it is
        asked first.
        """
        with self._speaking():
            done = self._first(work, is_done, doubt)
            if done.doubt is None:
                return done.found
            try:
                return self._settle(work, is_done, done.found).found
            except (DBAPIError, PoolTimeout) as error:
                raise Undecided(self._said(error), done.found) from error

    @contextmanager
    def alone(self) -> Iterator[Connection]:
        """A transaction during which nobody else writes to the schema."""
        with self._speaking(), self._engine(writing=True).begin() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(-1, 0)")
            yield connection

    def before_fork(self) -> None:
        self._gate.close()
        self.close()

    def after_fork(self) -> None:
        self._gate.open()

    def after_fork_in_child(self) -> None:
        self._gate.reset()

    # ---- transactions

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._engine(writing=False).connect() as connection:
            return work(connection)

    def _first(
        self,
        work: Callable[[Connection], T],
        is_done: Callable[[Connection, T], bool],
        doubt: T | None,
    ) -> _Done[T]:
        for is_last in (False, True):
            try:
                if doubt is not None:
                    return self._settle(work, is_done, doubt)
                return self._transact(work)
            except DBAPIError as error:
                if is_last or not _is_undone(error):
                    raise
        raise AssertionError  # the loop ends by itself

    def _settle(
        self, work: Callable[[Connection], T], is_done: Callable[[Connection, T], bool], found: T
    ) -> _Done[T]:
        done = self._transact(lambda c: found if is_done(c, found) else work(c))
        if done.doubt is not None:
            raise done.doubt
        return done

    def _transact(self, work: Callable[[Connection], T]) -> _Done[T]:
        done: _Done[T] | None = None
        try:
            with self._engine(writing=True).begin() as connection:
                done = _Done(work(connection))
        except DBAPIError as error:
            if done is None or not error.connection_invalidated:
                raise
            done = replace(done, doubt=error)
        return done

    # ---- engines

    def _engine(self, *, writing: bool) -> Engine:
        pid = os.getpid()
        if pid not in self._engines:
            # Those of the parent stay as they are: to close them would end its connections.
            self._engines.setdefault(pid, self._made())
        return self._engines[pid][writing + 1]

    def _made(self) -> tuple[Engine, Engine, Engine]:
        defaults = {"timeout": _BUSY_S} if self.is_sqlite else _POSTGRES
        arguments = {k: v for k, v in defaults.items() if k not in self.url.query}
        # Parameters are hidden because they are what jobs say; errors are logged.
        engine = create_engine(
            self.url, connect_args=arguments, hide_parameters=True, pool_timeout=_BUSY_S
        )
        if not self.is_sqlite:
            return engine, engine.execution_options(isolation_level="AUTOCOMMIT"), engine
        event.listen(engine, "connect", _prepare)
        writer = engine.execution_options()
        event.listen(writer, "begin", _begin)
        return engine, engine, writer

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            with self._gate.passed():
                yield
        except (DBAPIError, PoolTimeout) as error:
            raise StoreUnavailable(self._said(error)) from error

    def _said(self, error: SQLAlchemyError) -> str:
        cause = getattr(error, "orig", None) or error
        # PostgreSQL's own answer comes with the statement; that of its library has several lines.
        said = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
        reason = "; ".join(line.strip() for line in said.splitlines())
        return f"{self.shown}: {reason[:_SAID]}"


def _is_undone(error: DBAPIError) -> bool:
    """Whether a transaction that failed before its commit may be tried again at once."""
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _ROLLED_BACK


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(check_database(url))
    except (ValueError, ArgumentError) as error:
        reason = str(error) if isinstance(error, ValueError) else "cannot be read"
        raise SettingsInvalid(f"the address of the database {reason}") from None
    is_file = parsed.database not in {None, "", ":memory:"} and not parsed.host
    if parsed.get_backend_name() == "sqlite" and not is_file:
        raise SettingsInvalid("the address of the database names no file; write sqlite:////…")
    return parsed


# ---- SQLite: the driver would begin transactions where it sees fit, and as readers that cannot
# always become writers. So it is told to leave them alone, and whoever writes says so at once.


def _prepare(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    _use_wal(cursor)
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _use_wal(cursor: Any) -> None:  # noqa: ANN401 - the driver's own
    """Keep a write-ahead log. SQLite does not wait for others when it turns to one."""
    give_up_at = time.monotonic() + _BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


_files: WeakSet[Database] = WeakSet()


def _each_file(tell: Callable[[Database], None]) -> Callable[[], None]:
    def tell_each() -> None:
        for database in tuple(_files):
            tell(database)

    return tell_each


os.register_at_fork(
    before=_each_file(Database.before_fork),
    after_in_parent=_each_file(Database.after_fork),
    after_in_child=_each_file(Database.after_fork_in_child),
)
