"""Old steps are summed up once, for everybody who goes on with the job; without it goes on too."""

from __future__ import annotations

import itertools

import pytest

from worker.conversation import Conversation, chars_of, check_request
from worker.errors import ContextTooLong, ModelUnavailable
from worker.messages import FinishReason, Status, Usage
from worker.store.memory import MemoryStore
from worker.testing import ok, say

NOTES = "Findings: the mean is 4.25 m.\nOpen: the plot."
PAID = {"input_tokens": 900, "output_tokens": 40, "cost": 0.5}


def calls(count):
    thought = " ".join(f"thought{i}" for i in range(80))
    return [say(f"look {i}: {thought}", ("shell", {"command": f"look {i}"})) for i in range(count)]


def make(bench, *notes, steps=14, **settings):
    given = {"context_tokens": 4096, "max_output_tokens": 500, "max_steps": 60, **settings}
    numbers = itertools.count()
    return bench(
        *calls(steps),
        say("done"),
        respond=lambda *_: ok(f"row {next(numbers)}\n" + "data " * 300),
        notes=notes,
        **given,
    )


def summaries(b):
    return b.watching.of("summary")


def test_steps_that_do_not_fit_are_replaced_by_notes_on_them(bench):
    b = make(bench, *[say(NOTES)] * 5)
    assert b.drive().answer == "done"
    (first, *_) = summaries(b)
    assert first.text == NOTES
    assert first.model == "scripted"
    after = next(r for r in b.model.requests if "Notes on the first" in r.messages[1].text)
    assert NOTES in after.messages[1].text
    assert after.messages[1].text.startswith("Find out.")
    assert "left out" not in after.messages[1].text
    assert f"look {first.steps}" in after.messages[2].text
    for request in b.model.requests:
        check_request(request.messages)


def test_old_results_are_cleared_before_anything_is_summed_up(bench):
    b = make(bench, say(NOTES))
    b.drive()
    asked = b.model.summaries_asked[0].turn
    assert any("cleared" in m.text for m in b.model.requests[asked - 1].messages)


def test_what_is_summed_up_is_the_goal_and_the_steps_within_the_window(bench):
    b = make(bench, say(NOTES))
    b.drive()
    request = b.model.summaries_asked[0]
    assert request.is_summary
    assert request.tools == ()
    check_request(request.messages)
    told = request.messages[1].text
    assert "Find out." in told
    assert 'shell({"command": "look 0"})' in told
    assert "row 0" in told
    assert "# Step 1\n" in told
    assert chars_of(request.messages) * 0.3 + request.max_output_tokens <= 4096


def test_what_is_summed_up_fits_whatever_the_steps_are(bench):
    many = [("shell", {"command": f"look {i} " + "x" * 300}) for i in range(9)]
    b = bench(
        *[say("thought " * 200, *many)] * 12,
        say("done"),
        respond=lambda _, __, text: ok(f"{text} " + "数据 " * 3000),
        notes=[say(NOTES)] * 20,
        context_tokens=8192,
        max_output_tokens=500,
        loop_observe=True,
        max_steps=60,
    )
    assert b.drive().answer == "done"
    assert b.model.summaries_asked
    for request in b.model.summaries_asked:
        check_request(request.messages)
        assert chars_of(request.messages) * 0.3 + request.max_output_tokens <= 8192


def test_a_later_summary_covers_the_former_one_and_the_next_steps(bench):
    texts = [f"{NOTES} ({i})" for i in range(20)]
    b = make(bench, *map(say, texts), steps=30)
    assert b.drive().status is Status.SUCCEEDED
    first, second, *_ = summaries(b)
    assert 0 < first.steps < second.steps
    told = b.model.summaries_asked[1].messages[1].text
    assert first.text in told
    assert f"# Step {first.steps + 1}\n" in told
    assert f"# Step {first.steps}\n" not in told
    last = b.model.requests[-1].messages[1].text
    assert summaries(b)[-1].text in last
    assert first.text not in last


def test_summaries_are_far_between_and_at_most_one_between_two_replies(bench):
    b = make(bench, *[say(NOTES)] * 30, steps=40)
    b.drive()
    turns = [request.turn for request in b.model.summaries_asked]
    assert len(set(turns)) == len(turns)
    assert all(two - one >= 3 for one, two in itertools.pairwise(turns))


def test_a_summary_is_paid_for_by_the_job(bench):
    b = make(bench, say(NOTES, usage=PAID), say("", usage=PAID))
    job = b.drive()
    count = min(2, len(summaries(b)))
    assert job.usage == Usage(input_tokens=900 * count, output_tokens=40 * count, cost=0.5 * count)
    assert job.steps == 15
    assert b.store.get(b.job.id).job.usage == job.usage


def test_a_budget_counts_summaries(bench):
    b = make(bench, *[say(NOTES, usage=PAID)] * 9, steps=40, max_tokens=1000)
    assert b.drive().finish_reason is FinishReason.BUDGET


class Killed(BaseException):
    pass


class Dying(MemoryStore):
    """Ends its process right after the first summary is stored."""

    died = False

    def append(self, job_id, event, *, generation):
        super().append(job_id, event, generation=generation)
        if event.kind == "summary" and not self.died:
            self.died = True
            raise Killed


def test_a_job_that_goes_on_after_a_crash_uses_the_summary_and_pays_for_it_once(bench):
    whole = make(bench, *[say(NOTES, usage=PAID)] * 9)
    whole.drive()
    b = make(bench, *[say(NOTES, usage=PAID)] * 9, store=Dying())
    with pytest.raises(Killed):
        b.drive()
    job = b.drive()
    assert job.usage == whole.history.job.usage
    assert len(b.model.summaries_asked) == len(whole.model.summaries_asked)
    assert b.model.requests[-1].messages == whole.model.requests[-1].messages


@pytest.mark.parametrize(
    ("summary", "fault"),
    [
        (say(""), "was empty"),
        (say("All is well. " * 300), "repeats itself"),
        (say(None, ("shell", {"command": "ls"})), "was a tool call"),
        (ModelUnavailable("nobody answers"), "nobody answers"),
        (ContextTooLong("too long"), "too long"),
    ],
)
def test_without_a_summary_the_job_goes_on_and_people_are_told_once(bench, summary, fault):
    b = make(bench, *[summary] * 9, steps=40)
    assert b.drive().answer == "done"
    assert b.history.summary is None
    remarks = [e.text for e in b.watching.of("remark") if "summar" in e.text]
    assert len(remarks) == 1
    assert fault in remarks[0]
    assert len(summaries(b)) == 3  # then it is given up
    assert "oldest steps after this are left out" in b.model.requests[-1].messages[1].text


def test_a_summary_that_is_no_shorter_than_what_it_replaces_is_worth_nothing(bench):
    long = " ".join(f"word{i}" for i in range(2000))
    steps = [say(None, ("shell", {"command": str(i)})) for i in range(30)]
    given = {"tools": ("shell",), "context_tokens": 1024, "max_output_tokens": 100}
    b = bench(*steps, say("done"), notes=[say(long)], max_steps=60, **given)
    assert b.drive().answer == "done"
    assert "no shorter" in summaries(b)[0].fault


def test_a_window_that_is_full_without_any_step_is_not_summed_up_for(bench):
    b = make(bench, *[say(NOTES)] * 9, context_tokens=1024)
    assert b.drive().answer == "done"
    assert b.model.summaries_asked == []


def test_a_long_summary_is_cut_to_its_part_of_the_room(bench):
    long = " ".join(f"word{i}" for i in range(700))
    b = make(bench, *[say(long)] * 9, context_tokens=8192, steps=40)
    assert b.drive().answer == "done"
    good = [event for event in summaries(b) if event.text]
    assert good
    assert all(len(event.text) <= 8192 / 0.3 / 5 for event in good)


def test_after_a_failure_a_good_summary_counts(bench):
    b = make(bench, ModelUnavailable("busy"), say(NOTES), ModelUnavailable("busy"), steps=40)
    b.drive()
    assert [bool(e.fault) for e in summaries(b)][:3] == [True, False, True]
    assert len([e for e in b.watching.of("remark") if "summary" in e.text]) == 1
    assert b.history.summary.text == NOTES


def test_they_can_be_switched_off(bench):
    b = make(bench, *[say(NOTES)] * 9, summaries=False)
    assert b.drive().answer == "done"
    assert b.model.summaries_asked == []
    assert "left out" in b.model.requests[-1].messages[1].text


def test_cancelling_is_obeyed_while_it_is_summed_up(bench):
    b = make(bench, *[say(NOTES)] * 9)
    b.is_cancelled = lambda: bool(b.model.summaries_asked)
    job = b.drive()
    assert job.status is Status.CANCELLED
    assert summaries(b) == []


def test_the_last_turn_is_not_summed_up_for(bench):
    b = make(bench, *[say(NOTES)] * 9, max_steps=7)
    b.drive()
    assert all(request.turn < 7 for request in b.model.summaries_asked)


class Slow:
    """Keeps how much time it was given."""

    name = "slow"

    def __init__(self, model):
        self.model, self.times = model, []

    def reply(self, request, *, timeout_s, is_cancelled):
        self.times.append((request.is_summary, timeout_s))
        return self.model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)

    def close(self):
        pass


def test_a_summary_takes_half_of_the_time_of_a_reply_at_most(bench):
    b = make(bench, *[say(NOTES)] * 9, model_timeout_s=40.0)
    b.model = Slow(b.model)
    b.drive()
    for is_summary, timeout_s in b.model.times:
        assert timeout_s <= (20.0 if is_summary else 40.0)
    assert any(is_summary for is_summary, _ in b.model.times)


def test_a_history_with_summaries_that_is_read_again_is_sent_alike(bench):
    b = make(bench, *[say(NOTES)] * 9, steps=30)
    b.drive()
    again = Conversation()
    again.grow(b.history)
    assert NOTES in again.head[-1].text
    assert again.summed_up == b.history.summary.steps
