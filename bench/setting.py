"""What all contestants are told through their environment, and the code that all of them run."""

from __future__ import annotations

import os

from sandbox.types import SandboxSpec
from worker.settings import Settings

CODE = "print(1 + 1)"
PANDAS = "import pandas; print(pandas.__name__)"
PRELOADED = ("numpy", "pandas", "matplotlib.pyplot")

IMAGE, RUN = "BENCH_IMAGE", "BENCH_RUN"


def spec(**changes: object) -> SandboxSpec:
    """A sandbox as the settings' defaults make it, of this run."""
    default = Settings().spec(os.environ[RUN])
    return default.model_copy(update={"image": os.environ[IMAGE], **changes})
