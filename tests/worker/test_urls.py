"""Addresses with passwords: refused where nobody can tell them apart, shown without them."""

from __future__ import annotations

import pytest

from worker import urls
from worker.errors import SettingsInvalid
from worker.settings import load_settings

SECRET = "TOPSECRET"


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("database_url", f"postgresql://bob:12/{SECRET}@127.0.0.1:1/jobs"),
        ("database_url", f"postgresql://bob:p@ss:{SECRET}/ord@127.0.0.1:1/jobs"),
        ("database_url", f"postgresql://bob:#{SECRET}@127.0.0.1:1/jobs"),
        ("broker_url", f"redis://bob:12/{SECRET}@127.0.0.1:1/0"),
        ("broker_url", f"redis://:{SECRET}/x@127.0.0.1:1/0"),
        ("broker_url", f"redis://127.0.0.1:1/0?password={SECRET}"),
        ("broker_url", f"amqp://bob:{SECRET}/x@127.0.0.1:1//"),
        ("result_url", f"redis://:{SECRET}/x@127.0.0.1:1/0"),
        ("database_url", f"bob:{SECRET}@127.0.0.1"),
    ],
)
def test_an_address_that_hides_its_password_badly_is_refused_without_it(setting, url):
    with pytest.raises(SettingsInvalid) as refused:
        load_settings({setting: url})
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("database_url", f"postgresql://bob:{SECRET}@127.0.0.1:1/jobs"),
        ("database_url", f"postgresql://127.0.0.1:1/jobs?user=bob&password={SECRET}"),
        ("database_url", f"postgresql://bob:a%2F%40{SECRET}@[::1]/jobs"),
        ("broker_url", f"amqp://bob:{SECRET}@127.0.0.1:1//"),
        ("broker_url", f"rediss://:{SECRET}@127.0.0.1/0"),
    ],
)
def test_any_other_is_shown_without_it(setting, url):
    loaded = load_settings({setting: url})
    shown = {name: value for name, value, _ in [*loaded.rows(), *loaded.said_rows()]}[setting]
    assert SECRET not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "url", ["sqlite:////data/a@b/c#d.db", "redis+socket:///run/a@b.sock", "redis://[::1]:6379/0"]
)
def test_an_address_without_a_password_is_shown_as_it_is(url):
    check = urls.check_database if url.startswith("sqlite") else urls.check_broker
    assert check(url) == url
    assert urls.without_password(url) == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://sk-secret@host/v1", "https://***@host/v1"),
        ("http://me:sk-secret@host:80/v1", "http://me:***@host:80/v1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_a_token_in_place_of_a_name_is_no_more_shown_than_a_password(url, shown):
    assert urls.without_password(url) == shown
