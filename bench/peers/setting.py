"""What a peer is told through its environment, and the code that all contestants run."""

from __future__ import annotations

import os
import uuid

CODE = "print(1 + 1)"
PANDAS = "import pandas; print(pandas.__name__)"


def image() -> str:
    return os.environ["BENCH_PEERS_IMAGE"]


def labels() -> dict[str, str]:
    """By which whatever is left of this run is found."""
    return {"caisson.job": os.environ["BENCH_RUN"]}


def container_name() -> str:
    """The same for what takes no labels."""
    return f"caisson-{os.environ['BENCH_RUN']}-{uuid.uuid4().hex[:8]}"
