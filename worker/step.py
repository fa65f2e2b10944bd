"""What `worker.tasks.run` takes in a pipeline, and how it refuses what it does not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from worker.errors import InputInvalid
from worker.messages import Record, Wire
from worker.settings import JOB_SETTINGS, Settings, nearest

_TASK = "worker.tasks.run"
_MOST_SHOWN = 80  # characters of a value


class Step(Record):
    """The arguments; a description says what is expected."""

    goal: str = Field(description="text")
    data: Any = Field(None, description="what the task before it returned")
    files: tuple[Path, ...] = Field((), description="a list of paths where the worker is")
    mounts: tuple[Path, ...] = Field((), description="a list of paths where the worker is")
    options: Wire = Field(
        default_factory=dict, description="a dict of settings of a job, by their names"
    )
    replay: Path | None = Field(None, description="the path of a recording")
    idempotency_key: str | None = Field(None, description="text")
    priority: int = Field(0, ge=-100, le=100, description="a whole number from -100 to 100")
    raise_on_failure: bool = Field(default=True, description="True or False")


def read_step(texts: Sequence[Any], fields: Mapping[str, Any]) -> Step:
    """The arguments of `run`. Raises `InputInvalid`, in one line."""
    given = _named(texts, fields)
    try:
        step = Step.model_validate(given)
    except ValidationError as error:
        raise InputInvalid(_complaint(error.errors(include_url=False)[0])) from None
    _check_names(step.options)
    return step


def check_step(texts: Sequence[Any], fields: Mapping[str, Any]) -> None:
    """Raise `InputInvalid` for what no further argument can make right."""
    given = _named(texts, fields)
    read_step((), {"goal": "", **given})


def _named(texts: Sequence[Any], fields: Mapping[str, Any]) -> Wire:
    given, rest = dict(fields), list(texts)
    if "goal" not in given and rest:
        given["goal"] = rest.pop()
    if rest and "data" not in given:
        given["data"] = rest.pop()
    if rest:
        raise InputInvalid(f"{_TASK} takes a goal and what the task before it returned")
    return given


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse names of no setting; values are checked beside the settings of a worker."""
    for name in options:
        if name not in JOB_SETTINGS:
            is_other = name in Settings.model_fields
            more = "; it is the worker's own" if is_other else nearest(name, JOB_SETTINGS)
            raise InputInvalid(f"{_TASK}: options: {name} is no setting of a job{more}")


def _complaint(error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{_TASK}: there is no argument {name!r}{_meant(name)}"
    expected = Step.model_fields[name].description
    if error["type"] == "missing":
        return f"{_TASK}: {name} is missing; it must be {expected}"
    shown = repr(error["input"])
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
    return f"{_TASK}: {name} must be {expected}, which {shown} is not"


def _meant(name: str) -> str:
    """What may have been meant, and where settings go."""
    if name in JOB_SETTINGS:
        return f"; it is a setting of a job: options={{{name!r}: …}}"
    near = nearest(name, [*Step.model_fields, *JOB_SETTINGS])
    return f"{near} (settings of a job go into options={{…}})"
