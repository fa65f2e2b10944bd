"""A store in a database, SQLite or PostgreSQL, that several processes share.

Each method is one transaction of a few statements, and every time is the database's clock.
Who takes a job is decided by the database alone: SQLite lets one process write at a time, and
PostgreSQL lets one at a time admit jobs to the same engine. Why a job waits is kept for the
first hundred that are due and were passed over; nobody looks behind them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Row

from sandbox.types import Standing
from worker.admission import PATIENCE_S, PREFERRED_S, Reserved, can_ever_fit, lacking, room
from worker.errors import JobExists, JobTaken, JobUnknown, LeaseLost
from worker.messages import (
    Artifact,
    ArtifactsAdded,
    Ended,
    Event,
    FinishReason,
    Job,
    JobError,
    Order,
    ReplyAdded,
    SandboxOpened,
    Status,
    SummaryAdded,
    Usage,
    Wire,
)
from worker.store import statements as sql
from worker.store.base import Attempt, Claim, Counts, Listed, WorkerSeen, is_progress
from worker.store.connections import Database, Undecided
from worker.store.packing import event as unpacked_event
from worker.store.packing import event_body, packed, unpacked, wire

_FORGOTTEN_S = 86_400.0
_LOOKED_AT = 100  # jobs of which it is said why they wait
_TRIED = 10  # jobs that fit; another engine's worker may just be taking the first of them
_AT_ONCE = 500  # ids in one query
_MOST = 2**40  # tokens of one reply, bytes of one sandbox: no sum of them overflows
_LONG_KEY = 200  # characters; an index of PostgreSQL takes no more than 2,700 bytes
_ADMISSION = 0x0CA1  # sets our locks apart from those of others in the same database
_ADVANCES = {ReplyAdded: sql.ADVANCE_BY_REPLY, SummaryAdded: sql.ADVANCE_BY_SUMMARY}
_Row = Row[*tuple[Any, ...]]
_SHOWN = tuple(name for name in Listed.model_fields if name not in {"job", "order"})


class SqlStore:
    """See `worker.store.base.Store`. After a fork, each process has connections of its own."""

    def __init__(
        self,
        database: Database,
        identity: str,
        *,
        preferred_s: float = PREFERRED_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.identity = identity
        self._database = database
        self._dialect = database.url.get_backend_name()
        self._preferred_s = preferred_s
        self._patience_s = patience_s
        self._doubts: dict[str, int] = {}  # numbers of events that may be stored, by job

    def close(self) -> None:
        self._database.close()

    # ---- whoever submits and looks

    def create(self, job: Job, order: Order | None = None) -> str:
        order = order or Order()
        texts = {"job": packed(job), "asked": packed(order)}

        def is_there(connection: Connection, _id: str) -> bool:
            found = connection.execute(sql.ORDERED, {"of_job": job.id}).one_or_none()
            return found is not None and found._asdict() == texts

        return self._database.write(lambda c: self._create(c, job, order, texts), is_there)

    def keyed(self, key: str) -> str | None:
        return self._database.read(lambda c: _keyed(c, key))

    def load(self, job_id: str) -> tuple[Job, tuple[Event, ...]]:
        return self._database.read(lambda c: (_ordered(c, job_id)[0], _events(c, job_id, 0)))

    def events(self, job_id: str, after: int = 0) -> tuple[Event, ...]:
        return self._database.read(lambda c: _events(c, job_id, after))

    def get(self, job_id: str) -> Listed:
        return self._database.read(lambda c: _one(c, job_id))

    def jobs(self, status: Status | None = None, limit: int = 100) -> tuple[Listed, ...]:
        wanted = {"most": limit, "of_status": status.value if status else None}
        query = sql.NEWEST_OF if status else sql.NEWEST
        rows = self._database.read(lambda c: c.execute(query, wanted).all())
        return tuple(map(_listed, rows))

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        return self._database.read(lambda c: _attempts(c, job_id))

    def request_cancel(self, job_id: str) -> None:
        self._database.write(lambda c: _change(c, sql.CANCEL, job_id))

    # ---- whoever works

    def claim(self, job_id: str, worker: str = "", lease_s: float = 0.0) -> Claim:
        def work(connection: Connection) -> Claim:
            found = connection.execute(sql.TO_CLAIM, {"of_job": job_id}).one_or_none()
            return _claim(connection, _claimable(job_id, found), worker, lease_s)

        return self._database.write(work, lambda c, claim: _is_claimed(c, claim, worker))

    def claim_next(self, worker: WorkerSeen, lease_s: float) -> Claim | None:
        return self._database.write(
            lambda c: self._claim_next(c, worker, lease_s),
            lambda c, claim: claim is None or _is_claimed(c, claim, worker.name),
        )

    def order(self, job_id: str) -> Order:
        return self._database.read(lambda c: _ordered(c, job_id)[1])

    def append(self, job_id: str, event: Event, *, generation: int) -> None:
        row = {
            "job_id": job_id,
            "generation": generation,
            "kind": event.kind,
            "at": event.at,
            "body": event_body(event),
        }
        try:
            self._database.write(
                lambda c: self._append(c, row, event),
                lambda c, number: _is_appended(c, row, number),
                self._doubts.get(job_id),
            )
        except Undecided as error:
            # Whoever appends the same event again must not store it twice.
            self._doubts[job_id] = error.found
            raise
        except (LeaseLost, JobUnknown):
            self._doubts.pop(job_id, None)
            raise
        self._doubts.pop(job_id, None)

    def renew(self, job_id: str, *, generation: int, lease_s: float, figures: Wire) -> None:
        owner, texts = _owner(job_id, generation), {"figures": packed(figures)}

        def work(connection: Connection) -> None:
            _owned(connection, sql.RENEW, {**owner, "lease_s": lease_s})
            connection.execute(sql.REPORT, {**owner, **texts})

        self._database.write(work)

    def lose(self, worker: str) -> tuple[str, ...]:
        whose = {"of_worker": worker}
        rows = self._database.write(lambda c: c.execute(sql.LOSE, whose).all())
        return tuple(row.id for row in rows)

    def is_cancel_requested(self, job_id: str) -> bool:
        asked = {"of_job": job_id}
        found = self._database.read(lambda c: c.execute(sql.IS_CANCELLING, asked).scalar())
        if found is None:
            raise _unknown(job_id)
        return bool(found)

    def release(self, job_id: str, *, generation: int) -> Status:
        owner = _owner(job_id, generation)

        def work(connection: Connection) -> Status:
            status = Status(_owned(connection, sql.RELEASE, owner))
            ending = "finished" if status.is_final else "released"
            connection.execute(sql.END_ATTEMPT, {**owner, "ending": ending})
            return status

        return self._database.write(work, lambda c, _status: _is_released(c, owner))

    # ---- whoever tends

    def counts(self) -> Counts:
        found = self._database.read(lambda c: c.execute(sql.COUNTS).one())
        return Counts(claimable=found.claimable, held=found.held, lapses_in_s=found.lapses_in_s)

    def standing(self, job_ids: Sequence[str]) -> Mapping[str, Standing]:
        return self._database.read(lambda c: {row.id: _stands(row) for row in _rows(c, job_ids)})

    def tenants(self, places: Sequence[str]) -> Mapping[str, str]:
        def work(connection: Connection) -> dict[str, str]:
            rows = (connection.execute(sql.TENANTS, {"places": p}) for p in _batches(places))
            return {row.place: row.id for some in rows for row in some}

        return self._database.read(work)

    def see(self, worker: WorkerSeen) -> None:
        def work(connection: Connection) -> None:
            seen = {"name": worker.name, "body": packed(worker)}
            connection.execute(sql.SEE[self._dialect], seen)
            connection.execute(sql.FORGET, {"forgotten_s": _FORGOTTEN_S})

        self._database.write(work)

    def workers(self, within_s: float = 60.0) -> tuple[WorkerSeen, ...]:
        lately = {"within_s": within_s}
        rows = self._database.read(lambda c: c.execute(sql.SEEN, lately).all())
        seen = ((unpacked(WorkerSeen, row.body), row.seen_at) for row in rows)
        return tuple(worker.model_copy(update={"seen_at": at}) for worker, at in seen)

    def undelivered(self, older_than_s: float = 0.0) -> tuple[tuple[str, Wire], ...]:
        older = {"older_than_s": older_than_s}
        rows = self._database.write(lambda c: c.execute(sql.TELL, older).all())
        return tuple((row.id, wire(row.deliver)) for row in sorted(rows, key=lambda r: r.number))

    def delivered(self, job_id: str) -> None:
        self._database.write(lambda c: _change(c, sql.DELIVERED, job_id))

    # ---- within a transaction

    def _create(
        self, connection: Connection, job: Job, order: Order, texts: Mapping[str, str]
    ) -> str:
        added = connection.execute(sql.ADD_JOB[self._dialect], _new_row(job, order))
        if added.one_or_none() is None:
            known = None if order.key is None else _keyed(connection, order.key)
            if known is None:
                raise JobExists(f"there is a job {job.id} already")
            return known
        connection.execute(sql.ADD_ORDER, {"job_id": job.id, **texts})
        self._keep(connection, job.id, job.artifacts, 0)
        return job.id

    def _append(self, connection: Connection, row: Wire, event: Event) -> int:
        statement = _ADVANCES.get(type(event), sql.ADVANCE)
        owner = _owner(row["job_id"], row["generation"])
        number: int = _owned(connection, statement, {**owner, **_changes(event)})
        connection.execute(sql.ADD_EVENT, {**row, "number": number})
        if isinstance(event, ArtifactsAdded):
            self._drop(connection, row["job_id"], event.gone)
            self._keep(connection, row["job_id"], event.artifacts, number)
        return number

    def _drop(self, connection: Connection, job_id: str, gone: Sequence[str]) -> None:
        for start in range(0, len(gone), _AT_ONCE):
            some = list(gone[start : start + _AT_ONCE])
            connection.execute(sql.DROP_ARTIFACTS, {"of_job": job_id, "gone": some})

    def _keep(
        self, connection: Connection, job_id: str, artifacts: Iterable[Artifact], event: int
    ) -> None:
        rows = [
            {"job_id": job_id, "position": event * 2**32 + i, **artifact.model_dump()}
            for i, artifact in enumerate(artifacts)
        ]
        if rows:
            connection.execute(sql.KEEP_ARTIFACT[self._dialect], rows)

    def _claim_next(
        self, connection: Connection, worker: WorkerSeen, lease_s: float
    ) -> Claim | None:
        self._admit_alone(connection, worker.engine)
        held = _reserved(connection, worker.engine)
        asked = {"on_engine": worker.engine, "preferred_s": self._preferred_s}
        first = connection.execute(sql.CANDIDATES, {**asked, "most": _LOOKED_AT}).all()
        waiting: dict[str, list[str]] = {}
        claim, is_kept_free = None, False
        for row in first:
            why = _lacking(row, held, worker)
            claim = None if why else _claim_if_due(connection, row.id, worker, lease_s)
            if claim is not None:
                break
            if why != row.waits_for:
                waiting.setdefault(why, []).append(row.id)
            is_kept_free = bool(why) and self._is_next(row, worker)
            if is_kept_free:
                break
        for why, ids in waiting.items():
            connection.execute(sql.EXPLAIN, {"why": why, "passed": ids})
        if claim is None and not is_kept_free and len(first) == _LOOKED_AT:
            claim = self._claim_beyond(connection, worker, lease_s, held)
        return claim

    def _claim_beyond(
        self, connection: Connection, worker: WorkerSeen, lease_s: float, held: Reserved
    ) -> Claim | None:
        """Look behind jobs that do not fit for one that does; the database leaves out the others.

        They may be thousands.
        """
        most = room(held, worker)
        asked = {
            "on_engine": worker.engine,
            "preferred_s": self._preferred_s,
            "room_bytes": most.memory_bytes,
            "room_cpus": most.cpus,
            "most": _TRIED,
        }
        for row in connection.execute(sql.FITTING, asked).all():
            if not _lacking(row, held, worker):
                claim = _claim_if_due(connection, row.id, worker, lease_s)
                if claim is not None:
                    return claim
        return None

    def _is_next(self, row: _Row, worker: WorkerSeen) -> bool:
        """Whether a job has been passed over for so long that room must be made for it."""
        return row.age_s > self._patience_s and can_ever_fit(_need(row), worker)

    def _admit_alone(self, connection: Connection, engine: str) -> None:
        """Let no other worker admit jobs to this engine until the transaction is over.

        SQLite lets nobody else write at all.
        """
        if self._dialect == "postgresql":
            hashed = zlib.crc32(engine.encode(errors="replace")) - 2**31
            lock = {"purpose": _ADMISSION, "engine_hash": hashed}
            connection.execute(sql.ADMIT, lock)


# ---- rows and records


def _new_row(job: Job, order: Order) -> Wire:
    return {
        "id": job.id,
        "key": None if order.key is None else _short(order.key),
        "status": Status.QUEUED.value,
        "priority": order.priority,
        "memory_bytes": min(order.memory_bytes, _MOST),
        "cpus": order.cpus,
        "steps": job.steps,
        "input_tokens": min(job.usage.input_tokens, _MOST),
        "output_tokens": min(job.usage.output_tokens, _MOST),
        "cost": job.usage.cost,
        "finish_reason": job.finish_reason,
        "answer": job.answer,
        "error": packed(job.error) if job.error else None,
        "deliver": None if order.deliver is None else packed(order.deliver),
    }


def _keyed(connection: Connection, key: str) -> str | None:
    found: str | None = connection.execute(sql.BY_KEY, {"of_key": _short(key)}).scalar()
    return found


def _short(key: str) -> str:
    """What stands for a key: itself, or what fits into a column."""
    if len(key) <= _LONG_KEY:
        return key
    return f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"


def _changes(event: Event) -> Wire:
    """What an event changes in the row of its job, as `worker.history.fold` does in the record."""
    return {**_told(event), **({"losses": 0} if is_progress(event) else {})}


def _told(event: Event) -> Wire:
    match event:
        case ReplyAdded():
            return _paid(event.reply.usage)
        case SummaryAdded():
            return _paid(event.usage)
        case SandboxOpened(place=place, engine=engine):
            return {"place": place, "engine": engine}
        case Ended():
            return {
                "ended_status": event.status.value if event.status.is_final else None,
                "finish_reason": event.finish_reason.value,
                "answer": event.answer,
                "error": packed(event.error) if event.error else None,
            }
    return {}


def _paid(usage: Usage) -> Wire:
    return {
        "more_input": min(usage.input_tokens, _MOST),
        "more_output": min(usage.output_tokens, _MOST),
        "more_cost": usage.cost,
    }


def _listed(row: _Row, artifacts: tuple[Artifact, ...] = ()) -> Listed:
    usage = Usage(input_tokens=row.input_tokens, output_tokens=row.output_tokens, cost=row.cost)
    changed = {
        "status": Status(row.status),
        "finish_reason": FinishReason(row.finish_reason) if row.finish_reason else None,
        "answer": row.answer,
        "steps": row.steps,
        "usage": usage,
        "artifacts": artifacts,
        "error": unpacked(JobError, row.error) if row.error else None,
    }
    return Listed(
        job=unpacked(Job, row.job).model_copy(update=changed),
        order=unpacked(Order, row.asked),
        **{name: getattr(row, name) for name in _SHOWN},
    )


def _attempt(row: _Row) -> Attempt:
    figures = wire(row.figures)
    return Attempt(**{**row._asdict(), "figures": figures})


def _stands(row: _Row) -> Standing:
    names = ("is_held", "generation", "place", "engine")
    known = {name: getattr(row, name) for name in names}
    return Standing(is_over=row.ended_at is not None, **known)


# ---- reading


def _unknown(job_id: str) -> JobUnknown:
    return JobUnknown(f"no job {job_id}")


def _check_known(connection: Connection, job_id: str) -> None:
    if not connection.execute(sql.IS_KNOWN, {"of_job": job_id}).scalar():
        raise _unknown(job_id)


def _ordered(connection: Connection, job_id: str) -> tuple[Job, Order]:
    found = connection.execute(sql.ORDERED, {"of_job": job_id}).one_or_none()
    if found is None:
        raise _unknown(job_id)
    return unpacked(Job, found.job), unpacked(Order, found.asked)


def _events(connection: Connection, job_id: str, after: int) -> tuple[Event, ...]:
    asked = {"of_job": job_id, "after": after}
    found = tuple(unpacked_event(*row) for row in connection.execute(sql.EVENTS, asked))
    if not found:
        _check_known(connection, job_id)
    return found


def _one(connection: Connection, job_id: str) -> Listed:
    asked = {"of_job": job_id}
    found = connection.execute(sql.ONE, asked).one_or_none()
    if found is None:
        raise _unknown(job_id)
    rows = connection.execute(sql.ARTIFACTS, asked).mappings()
    kept = tuple(Artifact(**{name: row[name] for name in Artifact.model_fields}) for row in rows)
    return _listed(found, kept)


def _attempts(connection: Connection, job_id: str) -> tuple[Attempt, ...]:
    found = tuple(map(_attempt, connection.execute(sql.ATTEMPTS, {"of_job": job_id})))
    if not found:
        _check_known(connection, job_id)
    return found


def _rows(connection: Connection, job_ids: Sequence[str]) -> Iterator[_Row]:
    for some in _batches(job_ids):
        yield from connection.execute(sql.STANDING, {"ids": some})


def _batches(values: Sequence[str]) -> Iterator[list[str]]:
    """As many as a database takes in one statement."""
    return (list(values[i : i + _AT_ONCE]) for i in range(0, len(values), _AT_ONCE))


# ---- claiming


def _claimable(job_id: str, row: _Row | None) -> _Row:
    if row is None:
        raise _unknown(job_id)
    if row.ended_at is not None:
        raise JobTaken(f"job {job_id} is over: {row.status}")
    if row.is_held:
        raise JobTaken(f"worker {row.worker} holds job {job_id}")
    return row


def _claim_if_due(
    connection: Connection, job_id: str, worker: WorkerSeen, lease_s: float
) -> Claim | None:
    """Claim a job unless another worker is taking it at this moment."""
    found = connection.execute(sql.TO_CLAIM_IF_DUE, {"of_job": job_id}).one_or_none()
    if found is None:
        return None
    return _claim(connection, found, worker.name, lease_s, worker.engine)


def _claim(
    connection: Connection, row: _Row, worker: str, lease_s: float, engine: str | None = None
) -> Claim:
    if row.lease_until is not None:  # it was not given back
        lost = {**_owner(row.id, row.generation), "when_ended": row.lease_until}
        connection.execute(sql.LOSE_ATTEMPT, lost)
    taken = {"of_job": row.id, "by_worker": worker, "on_engine": engine, "lease_s": lease_s}
    generation, losses, until = connection.execute(sql.CLAIM, taken).one()
    attempt = {"job_id": row.id, "generation": generation, "worker": worker}
    connection.execute(sql.ADD_ATTEMPT, attempt)
    return Claim(job_id=row.id, generation=generation, losses=losses, claimed_at=until - lease_s)


def _reserved(connection: Connection, engine: str) -> Reserved:
    memory_bytes, cpus = connection.execute(sql.RESERVED, {"on_engine": engine}).one()
    return Reserved(memory_bytes=memory_bytes, cpus=cpus)


def _lacking(row: _Row, held: Reserved, worker: WorkerSeen) -> str:
    return lacking(_need(row), held, worker)


def _need(row: _Row) -> Order:
    return Order(memory_bytes=row.memory_bytes, cpus=row.cpus)


# ---- holding


def _owner(job_id: str, generation: int) -> Wire:
    return {"of_job": job_id, "of_generation": generation}


def _owned(connection: Connection, statement: Executable, values: Wire) -> Any:  # noqa: ANN401
    """Run what only the holder of a job may do; returns what it returns."""
    found = connection.execute(statement, values).one_or_none()
    if found is None:
        job_id = values["of_job"]
        _check_known(connection, job_id)
        raise LeaseLost(f"job {job_id} does not belong to generation {values['of_generation']} now")
    return found[0]


def _change(connection: Connection, statement: Executable, job_id: str) -> None:
    if connection.execute(statement, {"of_job": job_id}).rowcount == 0:
        _check_known(connection, job_id)


# ---- after a commit of which nobody knows whether it was done. The row of the job is asked for
# with a lock: the server may still be at it.


def _is_claimed(connection: Connection, claim: Claim, worker: str) -> bool:
    row = connection.execute(sql.TO_CLAIM, {"of_job": claim.job_id}).one()
    return (row.generation, row.worker) == (claim.generation, worker)


def _is_appended(connection: Connection, row: Wire, number: int) -> bool:
    connection.execute(sql.TO_CLAIM, {"of_job": row["job_id"]}).one()
    asked = {"of_job": row["job_id"], "of_number": number}
    found = connection.execute(sql.EVENT, asked).one_or_none()
    return found is not None and found._asdict().items() <= row.items()


def _is_released(connection: Connection, owner: Wire) -> bool:
    connection.execute(sql.TO_CLAIM, {"of_job": owner["of_job"]}).one()
    return connection.execute(sql.ENDING, owner).scalar() in {"released", "finished"}
