"""The loop: ask the model, run what it calls, until something is an end.

What to do next is derived from the stored history alone, so a job goes on after a crash by calling
`drive` again. Each fact is stored before the next one is made: a reply before hooks see it, the
intent of a call before the call, its result before the next call. Features are hooks, tools,
models and stores; this file gains no branch for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.context import Window
from worker.errors import Pause, SkipCall, Stop
from worker.hooks import Hooks, Run
from worker.messages import FinishReason, Job, Reply, ResultStatus, ToolCall, ToolResult
from worker.models.base import Model
from worker.tools import Toolbox

_LAST_REPLY_S = 60.0  # what the landing turn may take when the time itself is spent


@dataclass(frozen=True, slots=True)
class Loop:
    """An agent's parts, and the way in which they work together."""

    model: Model
    tools: Toolbox
    hooks: Hooks
    window: Window
    model_timeout_s: float = 300.0

    def drive(self, run: Run) -> Job:
        """Work on the job until it ends or must wait; returns it as it stands then.

        Raises `Infrastructure` and `sandbox.errors.SandboxUnavailable`: the history is whole, and
        driving the job again goes on where it stopped.
        """
        try:
            while not run.job.status.is_final:
                self._step(run)
        except Stop as stop:
            run.end(stop)
        except Pause as pause:
            run.remark(f"waiting: {pause}")
        return run.job

    def _step(self, run: Run) -> None:
        run.check_cancelled()
        turn = run.history.last
        if turn.is_open and turn.reply:
            self._execute(run, turn.reply)
        else:
            self._ask(run)

    def _ask(self, run: Run) -> None:
        self.hooks.before_model(run)
        landing = run.history.landing is not None
        tools = () if landing else self.tools.schemas
        least = _LAST_REPLY_S if landing else 0.0
        timeout_s = min(self.model_timeout_s, max(run.time_left_s, least))
        run.observer.on_asking(run.history)
        run.add_reply(self.window.ask(run, self.model, tools, timeout_s))

    def _execute(self, run: Run, reply: Reply) -> None:
        self.hooks.after_model(run, reply)
        for call in run.history.last.pending:
            run.check_cancelled()
            self._call(run, call)
        if run.history.last.is_open:  # no calls, and no hook had an objection
            raise Stop("", reason=FinishReason.ANSWERED, answer=reply.text)

    def _call(self, run: Run, call: ToolCall) -> None:
        begun = run.history.last.begun.get(call.id)
        try:
            if begun is None:
                self.hooks.before_tool(run, call)
                run.begin(call, self.tools.place)
            result = self.tools.run(call, run, begun)
        except SkipCall as skip:
            text = f"status: not run  (call {run.history.number(call.id)})\n{skip}"
            result = ToolResult(
                call_id=call.id, name=call.name, status=ResultStatus.SKIPPED, text=text
            )
        run.add_result(result)
        self.hooks.after_tool(run, call, result)
