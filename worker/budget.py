"""What a job may use, what it has used, and what happens when nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

from worker.errors import SkipCall
from worker.history import History
from worker.hooks import Hook, Run
from worker.messages import FinishReason, Record, ToolCall
from worker.prompts import notice


class Spent(Record):
    """One limit of a job and how much of it is used."""

    limit: str
    used: float
    of: float
    unit: str

    @property
    def is_over(self) -> bool:
        return self.used >= self.of

    @property
    def left(self) -> float:
        return max(0.0, self.of - self.used)

    def __str__(self) -> str:
        used = round(self.used, 2 if self.limit == "max_cost" else 1)
        amount = f"{used:g} of {self.of:g} {self.unit}".rstrip()
        return f"{self.limit}: {amount} used"


def spent(history: History, now: float) -> Iterator[Spent]:
    """Yield every limit that the job has, in the order in which they are reported."""
    budget, job = history.job.budget, history.job
    elapsed = history.elapsed_s(now)
    rows = (
        ("max_steps", job.steps, budget.max_steps, "steps"),
        ("timeout_s", elapsed, budget.timeout_s, "s"),
        ("max_working_s", elapsed - history.waited_s, budget.max_working_s, "s"),
        ("max_tokens", job.usage.tokens, budget.max_tokens, "tokens"),
        ("max_tool_calls", history.tool_calls, budget.max_tool_calls, "calls"),
        ("max_cost", job.usage.cost or 0.0, budget.max_cost, ""),
    )
    for limit, used, of, unit in rows:
        if of is not None:
            yield Spent(limit=limit, used=used, of=of, unit=unit)


def is_spent(history: History, now: float) -> bool:
    """Whether a limit is met, so that the next reply can only be a last word."""
    return any(one.is_over for one in spent(history, now))


class BudgetHook(Hook):
    """Asks for the best answer so far when a limit is met, and lets no more calls begin."""

    def before_model(self, run: Run) -> None:
        over = next((s for s in spent(run.history, run.clock()) if s.is_over), None)
        if over:
            run.land(notice("landing_budget", limit=over), FinishReason.BUDGET, str(over))

    def before_tool(self, run: Run, call: ToolCall) -> None:
        """Let no more calls of a turn begin when their number or the time is spent.

        Steps, tokens and cost are for replies: this one is paid for, and its calls use none.
        """
        del call
        rows = spent(run.history, run.clock())
        over = next((s for s in rows if s.is_over and s.unit in {"s", "calls"}), None)
        if over:
            raise SkipCall(f"the budget of the job is spent ({over})")
