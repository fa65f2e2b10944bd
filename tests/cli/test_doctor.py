"""`caisson doctor`: what a person and a program are told, and what the exit code says."""

from __future__ import annotations

import pytest

NOWHERE = {"DOCKER_HOST": "unix:///nowhere.sock"}


@pytest.mark.engine
def test_all_limits_hold_with_the_settings_as_they_come(caisson):
    ended = caisson("doctor", "--json")
    assert ended.code == 0, ended
    assert all(set(check) == {"check", "ok", "detail"} for check in ended.object)
    assert all(check["ok"] for check in ended.object)
    assert len({check["check"] for check in ended.object}) == len(ended.object) > 15


@pytest.mark.engine
def test_a_weakened_setting_is_found(caisson):
    ended = caisson("doctor", CAISSON_NETWORK="bridge")
    failed = [line for line in ended.out.splitlines() if line.startswith("✗")]
    assert ended.code == 4
    assert len(failed) == 1
    assert "network" in failed[0]
    assert "✓ memory" in ended.out


def test_without_an_engine_it_fails_and_says_why(caisson):
    ended = caisson("doctor", **NOWHERE)
    assert ended.code == 4
    assert "✗" in ended.out
    assert "nowhere.sock" in ended.out
    assert [check["ok"] for check in caisson("doctor", "--json", **NOWHERE).object] == [False]


def test_the_driver_that_isolates_nothing_is_a_failure(caisson):
    ended = caisson("doctor", "--json", CAISSON_DRIVER="process", **NOWHERE)
    assert ended.code == 4
    (driver, *_) = ended.object
    assert (driver["check"], driver["ok"]) == ("driver", False)
