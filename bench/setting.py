"""What all contestants are told through their environment, and the code that all of them run.

Runs also in the peers' environment, so it imports the standard library alone.
"""

from __future__ import annotations

import os
import uuid

CODE = "print(1 + 1)"
PANDAS = "import pandas; print(pandas.__name__)"

RUN, IMAGE, PEERS_IMAGE = "BENCH_RUN", "BENCH_IMAGE", "BENCH_PEERS_IMAGE"
STORE_LABEL = "caisson.store"  # of all containers of a run, whoever starts them


def peers_image() -> str:
    return os.environ[PEERS_IMAGE]


def labels() -> dict[str, str]:
    """By which whatever is left of this run is found."""
    return {STORE_LABEL: os.environ[RUN]}


def container_name() -> str:
    """The same for what takes no labels."""
    return f"caisson-{os.environ[RUN]}-{uuid.uuid4().hex[:8]}"
