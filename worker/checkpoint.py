"""Keep what a queued job has made, call by call, so that a lost sandbox takes little with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sandbox.errors import SandboxUnavailable
from sandbox.types import MIB
from worker.artifacts import Keep
from worker.builtin import Workplace
from worker.hooks import Hook, Run
from worker.messages import ToolCall, ToolResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointHook(Hook):
    """Takes the files that a call made out of the sandbox, unless they are large.

    Large ones are taken at the end of the job. A file that a program still writes to is taken as
    it is, or refused and taken with the next call that reports it.
    """

    place: Workplace
    keep: Keep
    most_bytes: int = 16 * MIB

    def after_tool(self, run: Run, call: ToolCall, result: ToolResult) -> None:
        if not result.files or not self.place.is_open:
            return
        try:
            self.keep(run, self.place.sandbox, most_bytes=self.most_bytes)
        except SandboxUnavailable as error:  # the next call meets it too, and says so
            _log.info("job %s: no checkpoint after call %s: %s", run.job.id, call.id, error)
