"""The words that the model is given. They are files, so that they can be read and measured."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources


@cache
def text(name: str) -> str:
    """The file `name` of this folder."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8").strip()


@cache
def _table(name: str) -> dict[str, str]:
    return {key: value.strip() for key, value in tomllib.loads(text(name)).items()}


@cache
def mistakes() -> tuple[dict[str, str], ...]:
    """The rows of `mistakes.toml`."""
    return tuple(tomllib.loads(text("mistakes.toml"))["mistake"])


def notice(key: str, **values: object) -> str:
    """A text of `notices.toml` with its blanks filled in."""
    return _table("notices.toml")[key].format(**values)


def hint_text(key: str, **values: object) -> str:
    """A text of `hints.toml` with its blanks filled in."""
    return _table("hints.toml")[key].format(**values)
