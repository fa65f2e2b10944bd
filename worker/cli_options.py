"""What several commands share: their options, what their exit codes say, and how they complain."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.errors import InputInvalid
from worker.output import OutputLost

if TYPE_CHECKING:
    from worker.messages import Job


class Exit(IntEnum):
    """What the exit code of a command says."""

    ANSWERED = 0  # or, of other commands: done
    USAGE = 2  # the person who called must change something
    SPENT = 3  # a budget was used up, or the model went in circles
    FAILED = 4  # the job, or a check of `doctor`, failed
    INFRASTRUCTURE = 5  # our side failed: the engine, the database, the model's endpoint
    CANCELLED = 130  # Ctrl-C, or the job was cancelled
    CLOSED = 141  # nobody read the output to its end, as a shell says it of SIGPIPE


EXIT_CODES = (
    "Exit codes: 0 answered, 2 wrong use, 3 budget or loop, 4 failed, "
    "5 infrastructure, 130 cancelled, 141 nobody read the output."
)
DONE_CODES = "Exit codes: 0 done, 2 wrong use, 5 infrastructure."


def refuse_empty(text: str | None) -> str | None:
    if text == "":
        raise typer.BadParameter("the path is empty")
    return text


def path(text: str) -> Path:
    """A path as it was typed; an empty one would mean the current folder."""
    return Path(refuse_empty(text) or "")


def whole(option: str, text: str, least: int, most: int) -> int:
    """The whole number that was given to an option. Raises `InputInvalid`."""
    try:
        number = int(text)
    except ValueError:
        raise InputInvalid(f"{option} {text}: is not a whole number") from None
    if not least <= number <= most:
        raise InputInvalid(f"{option} {number}: must be from {least} to {most}")
    return number


Goal = Annotated[
    str, typer.Argument(metavar="GOAL", show_default=False, help="What is to be done or found out.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", metavar="PATH", parser=path, help="Put into the workspace, by its name."
    ),
]
Mounts = Annotated[
    list[Path] | None,
    typer.Option(
        "--mount", metavar="PATH", parser=path, help="Offer read-only at /mnt/NAME (large data)."
    ),
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="A name that the endpoint knows.")
]
Replay = Annotated[
    Path | None,
    typer.Option(
        "--replay", metavar="FILE", parser=path, help="Take the model's turns from this recording."
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        "--record", metavar="FILE", parser=path, help="Write the model's turns to this file."
    ),
]
MaxSteps = Annotated[
    str | None, typer.Option("--max-steps", metavar="N", help="Replies the model may give.")
]
JobTimeout = Annotated[
    str | None, typer.Option("--timeout", metavar="S", help="Seconds the job may take.")
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory of the sandbox, like 512m or 2g."),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        "--schema", metavar="FILE", parser=path, help="A JSON Schema that the answer must fit."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, for programs.")]


def read_schema(file: Path | None) -> object:
    """The JSON Schema in a file, as the setting `answer_schema` takes it.

    Raises `InputInvalid`, in one line, for what is no file, no JSON, or no schema that can be
    enforced.
    """
    if file is None:
        return None
    from worker.reading import open_plain
    from worker.schema import MOST_BYTES, check_schema

    try:
        with open_plain(file) as source:
            data = source.read(MOST_BYTES + 1)
        schema = json.loads(data) if len(data) <= MOST_BYTES else None
    except OSError as error:
        raise InputInvalid(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"{file} is not JSON: {error}") from error
    if len(data) > MOST_BYTES:
        raise InputInvalid(
            f"{file}: a schema has {MOST_BYTES:,} bytes at most: the model is told it"
        )
    try:
        check_schema(schema)
    except InputInvalid as error:
        raise InputInvalid(f"{file}: {error}") from error
    return schema


def exit_of(job: Job, *, as_json: bool) -> Exit:
    """The exit code for how a job ended; beside JSON, our own failures are told on stderr."""
    from worker.messages import FinishReason, Status

    if job.status is Status.DEAD:
        if as_json:  # else it stands where the job's end is shown
            tell(job.error.message if job.error else "the job is dead")
        return Exit.INFRASTRUCTURE
    codes = {
        FinishReason.ANSWERED: Exit.ANSWERED,
        FinishReason.BUDGET: Exit.SPENT,
        FinishReason.LOOP: Exit.SPENT,
        FinishReason.CANCELLED: Exit.CANCELLED,
    }
    return codes.get(job.finish_reason, Exit.FAILED) if job.finish_reason else Exit.FAILED


def complain(what: object, code: Exit) -> Exit:
    """Say it in one line that no terminal acts on."""
    tell(what)
    return code


def tell(what: object) -> None:
    """Say something on stderr, beside the result, in one line that no terminal acts on."""
    from sandbox.transcript import clean

    line = " ".join(clean(str(what), 2000).split())
    if line:
        with suppress(OutputLost):
            print(f"caisson: {line}", file=sys.stderr)
