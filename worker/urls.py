"""Addresses of databases and brokers: which may be given, and how they are shown."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_NAMED = re.compile(r"([?&](?:ssl)?password=)[^&#]*", re.IGNORECASE)  # as libpq takes it too
DATABASES = ("postgresql", "postgresql+psycopg", "sqlite")
BROKERS = ("redis", "rediss", "redis+socket", "amqp", "amqps")
_WITHOUT_HOST = ("sqlite", "db+sqlite", "redis+socket")
RESULTS = ("redis", "rediss", "redis+socket", "db+postgresql+psycopg", "db+sqlite")


def scheme(url: str) -> str:
    """What kind of address it is; empty if it is none."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def without_password(url: str) -> str:
    """The address as it may be shown and logged."""
    url = _NAMED.sub(r"\1***", url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # a port that is no number: nothing of it can be told apart safely
        return f"{scheme(url)}://…"
    if parts.password is not None:
        who = f"{parts.username or ''}:***"
    elif parts.username and parts.scheme in {"http", "https"}:  # there it is mostly a token
        who = "***"
    else:
        return url
    place = f"{host}:{port}" if port else host
    return urlunsplit(parts._replace(netloc=f"{who}@{place}"))


def check_database(url: str) -> str:
    """Return the address as the driver takes it. Raises `ValueError`."""
    if scheme(url) in {"postgres", "postgresql"}:
        url = _SCHEME.sub("postgresql+psycopg://", url, count=1)
    return _check(url, DATABASES)


def check_broker(url: str) -> str:
    if scheme(url).startswith("redis") and _NAMED.search(url):
        raise ValueError("has a password among its options; write redis://:PASSWORD@HOST")
    return _check(url, BROKERS)


def check_results(url: str) -> str:
    return _check(url, RESULTS)


def _check(url: str, known: tuple[str, ...]) -> str:
    if scheme(url) not in known:
        # Never the text itself: what is no address may still hold a password.
        raise ValueError(f"is not an address that starts with one of {', '.join(known)} and ://")
    if scheme(url) not in _WITHOUT_HOST and not _is_clear(url):
        raise ValueError(
            "cannot be told apart into password, host and port; "
            "within a password write / ? # @ : as %2F %3F %23 %40 %3A"
        )
    return url


def _is_clear(url: str) -> bool:
    """Whether everybody reads the same host in it, so that a password stays one."""
    try:
        parts = urlsplit(url)
        return (parts.port or 1) > 0 and "@" not in parts.path + parts.fragment
    except ValueError:  # a port that is no number
        return False
