"""The sandbox that is measured."""

from __future__ import annotations

import os

from bench.setting import IMAGE, RUN
from sandbox.types import SandboxSpec
from worker.settings import Settings


def spec(**changes: object) -> SandboxSpec:
    """A sandbox as the settings' defaults make it.

    The run is its job, and the store that keeps it: that one also marks spares, which have no job.
    """
    run = os.environ[RUN]
    own = {"store": run, "image": os.environ[IMAGE]}
    return Settings().spec(run).model_copy(update={**own, **changes})
