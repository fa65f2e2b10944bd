"""How many spare sandboxes a worker may keep, and how it says so."""

from __future__ import annotations

import pytest

from worker.settings import Settings
from worker.spares import room, said

READY = "ready before they are asked for"


@pytest.mark.parametrize(
    ("fields", "most", "expected"),
    [
        ({"pool_memory": "300m"}, 3, f"up to 3 sandboxes (288 MiB), {READY}"),
        ({"pool_memory": "96m"}, 1, f"up to 1 sandbox (96 MiB), {READY}"),
        ({"pool_memory": "32m"}, 0, "none (pool_memory is 32 MiB, one takes 96 MiB)"),
        ({"pool_memory": "0"}, 0, "none (pool_memory = 0)"),
        ({"driver": "process", "allow_unisolated": True}, 0, "none (driver process)"),
    ],
)
def test_a_worker_says_how_many_spares_it_may_keep_or_why_none(fields, most, expected):
    settings = Settings(**fields)
    assert room(settings, 2) == most
    assert said(settings, 2) == expected


def test_without_a_setting_there_is_one_for_each_slot_and_one_more_at_most():
    assert 1 <= room(Settings(), 2) <= 3
    assert room(Settings(), 1024) < 1025  # an eighth of the host's memory is not exceeded
