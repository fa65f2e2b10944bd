"""Records as the JSON text in which they are stored.

What has its default is left out. The defaults of records that are stored (`worker.messages`)
therefore never change their meaning: what was stored under an older one is read under the newer.
Fields that are declared with `exclude` are not stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from worker.errors import SchemaMismatch
from worker.messages import Event, Record, Wire

R = TypeVar("R", bound=Record)
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def packed(value: Record | Wire, *, without: str = "") -> str:
    """A record or a plain JSON object as text, in which surrogates and NaN are what they were.

    pydantic's own JSON refuses the ones and makes null of the others; an endpoint may send both.
    """
    if isinstance(value, Record):
        value = value.model_dump(exclude_defaults=True, exclude={without} if without else None)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=to_jsonable_python)


def unpacked(kind: type[R], text: str) -> R:
    with _explained():
        return kind.model_validate(json.loads(text))


def wire(text: str) -> Wire:
    found: Wire = json.loads(text)
    return found


def event_body(event: Event) -> str:
    """An event without its kind and time, which have columns of their own."""
    return packed(event, without="at")


def event(kind: str, at: float, body: str) -> Event:
    with _explained():
        return _EVENT.validate_python({**wire(body), "kind": kind, "at": at})


@contextmanager
def _explained() -> Iterator[None]:
    """Say what it means that a stored record cannot be read."""
    try:
        yield
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, (error.title, *fault["loc"])))
        raise SchemaMismatch(
            f"the database holds what this version cannot read ({where}: {fault['msg']}); "
            "install a newer caisson"
        ) from error
