"""The commands: read options, call one part, and turn how it ended into an exit code.

What is heavy is imported by the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox.errors import SandboxError, SpecInvalid
from worker import cli_jobs, cli_submit, cli_worker
from worker.cli_options import (
    DONE_CODES,
    EXIT_CODES,
    AsJson,
    Exit,
    Files,
    Goal,
    JobTimeout,
    MaxSteps,
    Memory,
    Model,
    Mounts,
    Record,
    Replay,
    Schema,
    complain,
    exit_of,
    read_schema,
    refuse_empty,
)
from worker.errors import CaissonError, Cancelled, InputInvalid, UsageError
from worker.output import Output, OutputLost, guard_output
from worker.stopping import interrupt_on_signals, stoppable

if TYPE_CHECKING:
    from sandbox.doctor import Check
    from worker.cli_exec import Call
    from worker.trace import Glance, Trace


# ---- how a command is run


def run_command(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. A signal is a `KeyboardInterrupt` meanwhile."""
    interrupt_on_signals()
    # What a log would say is on the screen already, in better words.
    logging.getLogger().addHandler(logging.NullHandler())
    output = guard_output()
    return _delivered(guarded(arguments), output)


def _delivered(code: int, output: Output) -> int:
    """The exit code, unless what was printed could not be written."""
    with suppress(OutputLost):
        output.flush()
    if output.lost is None or output.lost.is_closed:
        return code
    return complain(f"cannot write the output: {output.lost}", Exit.INFRASTRUCTURE)


def guarded(arguments: Sequence[str]) -> int:
    """Run a command; every failure that we know becomes one line on stderr and an exit code."""
    try:
        return int(
            app(list(arguments) or ["--help"], prog_name="caisson", standalone_mode=False) or 0
        )
    except typer.TyperException as error:
        return complain(_wrong_use(error), Exit.USAGE)
    except (UsageError, SpecInvalid) as error:
        return complain(error, Exit.USAGE)
    except (KeyboardInterrupt, Cancelled):
        return complain("cancelled", Exit.CANCELLED)
    except (CaissonError, SandboxError) as error:
        return complain(error, Exit.INFRASTRUCTURE)
    except OutputLost as error:
        return Exit.CLOSED if error.is_closed else Exit.INFRASTRUCTURE


def _wrong_use(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "caisson"
    return f"{error.format_message().rstrip('.')} (see {command} --help)"


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"caisson {version('caisson')}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show it.")
    ] = False,
) -> None:
    """An agent worker whose code runs in throwaway, locked-down containers."""
    del version


# ---- run


def run(
    goal: Goal,
    *,
    file: Files = None,
    mount: Mounts = None,
    model: Model = None,
    replay: Replay = None,
    record: Record = None,
    max_steps: MaxSteps = None,
    timeout: JobTimeout = None,
    memory: Memory = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> int:
    """Let an agent work on GOAL, and watch it."""
    from worker.delays import delays_told
    from worker.runner import JobRequest, run_job
    from worker.settings import load_settings

    if model is not None and replay is not None:
        raise InputInvalid("--model and --replay exclude each other; leave one of them out")
    settings = load_settings(
        {
            "model": model,
            "max_steps": max_steps,
            "job_timeout_s": timeout,
            "memory": memory,
            "answer_schema": read_schema(schema),
        }
    ).settings
    request = JobRequest(
        goal=goal, files=tuple(file or ()), mounts=tuple(mount or ()), replay=replay, record=record
    )
    view = _quiet_view() if as_json else _full_view()
    with stoppable() as is_stopped, delays_told(view.on_delay):
        job = run_job(request, settings, observer=view, is_cancelled=is_stopped.is_set)
    view.close(job)
    if as_json:
        print(json.dumps(job.summary()), flush=True)
    return exit_of(job, as_json=as_json)


def _full_view() -> Trace:
    from worker.terminal import make_console
    from worker.trace import Trace

    return Trace(make_console())


def _quiet_view() -> Glance:
    from worker.terminal import make_console
    from worker.trace import Glance

    return Glance(make_console(sys.stderr))


# ---- exec


def execute(
    *,
    python: Annotated[str | None, typer.Option(metavar="CODE", help="Python code.")] = None,
    shell: Annotated[str | None, typer.Option(metavar="CMD", help="A bash command.")] = None,
    expression: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Arithmetic, without a container.")
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            callback=refuse_empty,
            help="JSON lines, each a call; - reads standard input.",
        ),
    ] = None,
    file: Files = None,
    mount: Mounts = None,
    image: Annotated[
        str | None, typer.Option(metavar="NAME", help="Any image with Python 3.9 or newer.")
    ] = None,
    memory: Memory = None,
    cpus: Annotated[str | None, typer.Option(metavar="N", help="How many it may use.")] = None,
    pids: Annotated[str | None, typer.Option(metavar="N", help="Processes and threads.")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="S", help="Seconds a call may take.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(metavar="NAME", help="none, or a Docker network.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run code in a sandbox, without a model."""
    options: dict[str, object] = {
        "image": image,
        "memory": memory,
        "cpus": cpus,
        "pids": pids,
        "call_timeout_s": timeout,
        "network": network,
    }
    from worker.cli_exec import execute_all, print_json, print_text

    calls = _calls({"python": python, "shell": shell, "expression": expression}, script)
    show = print_json if as_json or script is not None else print_text
    everything = execute_all(calls, options, files=file or (), mounts=mount or (), show=show)
    return Exit.ANSWERED if everything else Exit.CANCELLED


def _calls(given: dict[str, str | None], script: str | None) -> Iterable[Call]:
    """The calls that the options ask for. Raises `InputInvalid` unless exactly one does."""
    from worker.cli_exec import Call, read_script

    texts = {kind: text for kind, text in given.items() if text is not None}
    if len(texts) + (script is not None) != 1:
        raise InputInvalid("give exactly one of --python, --shell, --expression and --script")
    if script is not None:
        return read_script(script)
    ((kind, text),) = texts.items()
    return [Call.model_validate({"kind": kind, "text": text})]


# ---- doctor, config


def doctor(
    image: Annotated[
        str | None, typer.Option(metavar="NAME", help="The image to check with.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Prove each limit of a sandbox by trying it."""
    from sandbox.doctor import diagnose
    from worker.settings import load_settings
    from worker.terminal import Activity, make_console, write_check

    settings = load_settings({"image": image}).settings
    console = make_console(sys.stderr if as_json else sys.stdout)
    first = [] if settings.driver == "docker" else [_no_isolation(settings.driver)]
    found = []
    with Activity(console).during("checking, with a sandbox of its own"):
        for check in chain(first, diagnose(settings.spec("doctor"))):
            found.append(check)
            if not as_json:
                write_check(console, check.check, check.detail, is_ok=check.ok)
    if as_json:
        print(json.dumps([check.model_dump(mode="json") for check in found]), flush=True)
    return Exit.ANSWERED if all(check.ok for check in found) else Exit.FAILED


def _no_isolation(driver: str) -> Check:
    from sandbox.doctor import Check

    detail = (
        f"jobs run on the {driver} driver, where nothing is isolated; set CAISSON_DRIVER=docker"
    )
    return Check(check="driver", ok=False, detail=detail)


def config_show(as_json: AsJson = False) -> None:
    """Show every setting, its value, and where it comes from."""
    from worker.settings import load_settings

    loaded = load_settings()
    if as_json:
        keys = ("name", "value", "origin")
        rows = [dict(zip(keys, row, strict=True)) for row in loaded.rows()]
        print(json.dumps(rows), flush=True)
        return
    from worker.terminal import make_console, write_settings

    write_settings(make_console(), loaded.said_rows())


# ---- all of them

_EXEC_CODES = "Exit codes: 0 every call could be run, 2 wrong use, 5 one could not."
_DOCTOR_CODES = (
    "Exit codes: 0 all checks hold, 4 one does not (so also without an engine), 2 wrong use."
)
_WORKER_CODES = (
    "Exit codes: 0 stopped, or consuming (--check); 2 wrong use; 5 infrastructure, or "
    "ended before it had let go of its jobs."
)
_BEAT_CODES = "Exit codes: 0 stopped, 2 wrong use, 5 infrastructure."
_COMMANDS: tuple[tuple[str, Callable[..., object], str], ...] = (
    ("run", run, EXIT_CODES),
    ("submit", cli_submit.submit, EXIT_CODES),
    ("jobs", cli_jobs.jobs, DONE_CODES),
    ("show", cli_jobs.show, DONE_CODES),
    ("watch", cli_jobs.watch, EXIT_CODES),
    ("cancel", cli_jobs.cancel, DONE_CODES),
    ("artifacts", cli_jobs.artifacts, DONE_CODES),
    ("worker", cli_worker.worker, _WORKER_CODES),
    ("beat", cli_worker.beat, _BEAT_CODES),
    ("reap", cli_worker.reap, DONE_CODES),
    ("exec", execute, _EXEC_CODES),
    ("doctor", doctor, _DOCTOR_CODES),
    ("config show", config_show, DONE_CODES),
    ("db upgrade", cli_jobs.upgrade, DONE_CODES),
)
_GROUPS = {"config": "Look at the settings in force.", "db": "Tend the database."}


def _command_line() -> typer.Typer:
    """All commands, each by its whole name."""
    made = typer.Typer(
        name="caisson",
        epilog=EXIT_CODES,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # Rich's help is drawn in 200 ms, plain help in 20
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(root)
    groups = {"": made}
    for name, about in _GROUPS.items():
        # With a callback it is a group although it has one command.
        groups[name] = typer.Typer(rich_markup_mode=None, help=about, callback=lambda: None)
        made.add_typer(groups[name], name=name)
    for full_name, function, codes in _COMMANDS:
        group, _, name = full_name.rpartition(" ")
        groups[group].command(name, epilog=codes)(function)
    return made


app = _command_line()
