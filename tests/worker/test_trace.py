"""What a person sees of a job; and that a terminal which goes away ends no job."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from worker import assembly
from worker.testing import say
from worker.trace import Glance, Trace


class Gone(io.StringIO):
    """A terminal that goes away after so many writes."""

    def __init__(self, writes):
        super().__init__()
        self.left = writes

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("view", [Trace, Glance])
@pytest.mark.parametrize("writes", [0, 1, 5, 10_000])
def test_a_terminal_that_goes_away_does_not_end_the_work(bench, view, writes):
    file = Gone(writes)
    b = bench(say(None, ("python_interpreter", {"code": "1"})), say("done"))
    b.watching = view(Console(file=file, force_terminal=True, width=80))
    job = b.drive()
    b.watching.close(job)
    assert job.answer == "done"
    assert b.sandbox.ran == ["1"]
    assert file.left < 0 or writes == 10_000


def test_each_moment_of_a_view_is_guarded(bench):
    b = bench(say("done"))
    run = b.run()
    for view in (Trace, Glance):
        seen = view(Console(file=Gone(0), force_terminal=True, width=80))
        seen.on_asking(run.history)
        seen.on_asking(run.history)
        seen.close(run.job)
    assert assembly.build(b.settings, b.model, b.place).drive(run).answer == "done"
