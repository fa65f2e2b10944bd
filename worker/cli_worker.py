"""The commands that run workers: `worker`, `beat` and `reap`."""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli_options import AsJson, Exit
from worker.cli_store import broker_fault
from worker.errors import CaissonError, Infrastructure, InputInvalid, UsageError

if TYPE_CHECKING:
    from worker.settings import Settings
    from worker.store.base import Store


def worker(
    *,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N", help="Jobs at a time (default: CPUs).")
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--beat/--no-beat", help="Look for jobs without a bell; else `caisson beat` must run."
        ),
    ] = True,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="More Celery tasks, of an application of yours."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether this host's worker consumes.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Work on queued jobs until stopped; a signal hands them over."""
    from worker.settings import load_settings

    settings = load_settings({"concurrency": concurrency}).settings
    if check:
        return _check(settings, as_json=as_json)
    return _work(settings, is_sweeping=sweep, include=include or [], as_json=as_json)


def _work(settings: Settings, *, is_sweeping: bool, include: list[str], as_json: bool) -> int:
    from worker.celery_app import use
    from worker.keeper import Keeper
    from worker.logs import log_to_stdout
    from worker.store.database import open_store

    for module in include:
        _check_module(module)
    use(settings)
    log_to_stdout(as_json=as_json)
    store = open_store(settings.database)
    try:
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        slots = settings.concurrency or os.cpu_count() or 1
        options = [text for module in include for text in ("--include", module)]
        options += ["--json"] if as_json else []
        with Keeper(
            settings, store, name, slots, is_sweeping=is_sweeping, options=tuple(options)
        ) as keeper:
            _introduce(settings, name, slots)
            return Exit.ANSWERED if keeper.run() else Exit.INFRASTRUCTURE
    finally:
        store.close()


def _check_module(name: str) -> None:
    """Refuse what cannot be imported; whether it imports well, only its worker will know."""
    from importlib.util import find_spec

    try:
        is_there = find_spec(name) is not None
    except (ImportError, ValueError):  # of its package, or of no name at all
        is_there = False
    if not is_there:
        raise InputInvalid(
            f"--include {name}: there is no such module; PYTHONPATH names the folders of yours"
        )


def _introduce(settings: Settings, name: str, slots: int) -> None:
    """Say what this worker is and where it works."""
    import logging
    from importlib.metadata import version

    from worker import admission, spares
    from worker.celery_app import shown_broker
    from worker.sizes import said_bytes
    from worker.urls import without_password

    memory = said_bytes(settings.share_memory or admission.share_of_memory())
    cpus = settings.share_cpus or admission.share_of_cpus()
    log = logging.getLogger(__name__)
    log.info("caisson %s, worker %s", version("caisson"), name)
    log.info("database  %s", without_password(settings.database))
    log.info("broker    %s", shown_broker(settings))
    log.info("engine    %s", _engine(settings))
    log.info("model     %s", asked_model(settings))
    log.info("slots     %d; sandboxes may reserve %s of memory and %g CPUs", slots, memory, cpus)
    log.info("spares    %s", spares.said(settings, slots))
    versions = {package: version(package) for package in ("celery", "kombu", "redis", "docker")}
    said = ", ".join(f"{package} {number}" for package, number in versions.items())
    log.info("versions  Python %s, %s", platform.python_version(), said)


def asked_model(settings: Settings) -> str:
    """Which model is asked for jobs that bring none, and where; or what must be set for that."""
    from worker.models.making import OPENAI, check
    from worker.urls import without_password

    if not settings.model:
        return "none: jobs have to bring one, or a recording (CAISSON_MODEL)"
    choice = settings.choice(settings.model)
    try:
        check(choice)
    except InputInvalid as error:  # jobs may bring another
        return f"cannot be asked: {error}"
    return f"{choice.model} at {without_password(choice.base_url or OPENAI)}"


def _engine(settings: Settings) -> str:
    from contextlib import closing

    from sandbox.engine import Engine
    from sandbox.errors import SandboxError

    if settings.driver != "docker":
        return f"none: jobs run on the {settings.driver} driver, where nothing is isolated"
    try:
        with closing(Engine()) as engine:
            return f"Docker {engine.identity()}"
    except SandboxError as error:  # it may come yet; jobs wait for it
        return f"not there: {error}"


# ---- is it well?


def _check(settings: Settings, *, as_json: bool) -> int:
    from sandbox.errors import SandboxError

    try:
        detail = _health(settings)
    except (CaissonError, SandboxError) as error:
        if as_json:
            print(json.dumps({"ok": False, "detail": str(error)}), flush=True)
        raise
    line = json.dumps({"ok": True, "detail": detail}) if as_json else detail
    print(line, flush=True)
    return Exit.ANSWERED


def _health(settings: Settings) -> str:
    """Say that a worker of this host consumes, and its engine answers.

    Raises `Infrastructure` or `EngineUnavailable`; a broker that is away is named before workers,
    which cannot consume without it.
    """
    from contextlib import closing

    from sandbox.engine import Engine
    from worker.keeper import SEEN_WITHIN_S
    from worker.store.database import open_store

    if settings.driver == "docker":
        with closing(Engine()) as engine:
            engine.identity()
    host = socket.gethostname()
    store = open_store(settings.database)
    try:
        seen = [worker for worker in store.workers(SEEN_WITHIN_S) if worker.host == host]
    finally:
        store.close()
    if not seen:
        if fault := broker_fault(settings):
            raise Infrastructure(fault)
        raise Infrastructure(f"no worker on {host} has taken part for {SEEN_WITHIN_S:g} s")
    return f"{len(seen)} on {host}: {', '.join(worker.name for worker in seen)}"


# ---- what runs beside workers


def beat(as_json: AsJson = False) -> int:
    """Ring for waiting jobs, for workers with --no-beat."""
    from worker.beat import Beat
    from worker.celery_app import app, check_broker, use
    from worker.logs import log_to_stdout
    from worker.settings import load_settings

    settings = load_settings().settings
    if settings.broker_url is None:
        raise UsageError("beat is for a broker that is set; a worker with its own sweeps by itself")
    use(settings)
    log_to_stdout(as_json=as_json)
    check_broker(settings)
    # Its usual scheduler keeps a file; one static tick needs none.
    scheduler = "celery.beat:Scheduler"
    Beat(app=app, scheduler=scheduler, quiet=True, max_interval=settings.sweep_s).run()
    return Exit.ANSWERED


def reap(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> int:
    """Remove the sandboxes on this engine that nobody owns any more."""
    from worker.settings import load_settings
    from worker.store.database import open_store

    settings = load_settings().settings
    store = open_store(settings.database)
    try:
        return _reap(settings, store, dry_run=dry_run, as_json=as_json)
    finally:
        store.close()


def _reap(settings: Settings, store: Store, *, dry_run: bool, as_json: bool) -> int:
    from dataclasses import asdict

    from worker.station import Station

    found = Station(settings, store, name="reap").reap(dry_run=dry_run)
    if as_json:
        print(json.dumps([asdict(one) for one in found]), flush=True)
    else:
        for one in found:
            end = one.error or ("would be removed" if dry_run else "removed")
            print(f"{one.name}  job {one.job}  {one.why}: {end}")
        if not found:
            print("nothing to remove")
    return Exit.INFRASTRUCTURE if any(one.error for one in found) else Exit.ANSWERED
