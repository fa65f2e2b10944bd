"""What a job lacks on an engine, in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from worker.admission import Reserved, lacking
from worker.messages import Order


@pytest.mark.parametrize(
    ("need", "held", "said"),
    [
        (99, 0, "99 CPUs; all that vm may give is 4"),
        (99, 3, "99 CPUs; all that vm may give is 4"),
        (2, 3, "2 CPUs on vm, where 3 of 4 are taken"),
        (1, 3, ""),
    ],
)
def test_processors_that_can_never_be_had_are_told_from_those_that_are_taken(need, held, said):
    worker = SimpleNamespace(host="vm", memory_bytes=None, free_bytes=None, cpus=4.0)
    assert lacking(Order(cpus=need), Reserved(cpus=held), worker) == said
