"""What endpoints take, as they show it: it is learnt once, stored, and kept to."""

from __future__ import annotations

import itertools

import pytest

from worker.conversation import chars_of
from worker.counting import Counts, is_low, is_rest
from worker.errors import ContextTooLong
from worker.messages import FinishReason, Message, Reply, Role, Usage
from worker.testing import ScriptedModel, ok, say


def calls(count):
    return [say(f"look {i}", ("shell", {"command": f"look {i}"})) for i in range(count)]


class Refusing:
    """An endpoint with a window of so many tokens, which it may tell."""

    name = "refusing"

    def __init__(self, messages, most_tokens, told=None, rate=0.25):
        self.inner = ScriptedModel(messages)
        self.most_tokens, self.told, self.rate = most_tokens, told, rate
        self.refused = []

    def tokens(self, request):
        return int(chars_of(request.messages, request.tools) * self.rate)

    def reply(self, request, *, timeout_s, is_cancelled):
        asked = self.tokens(request) + request.max_output_tokens
        if asked > self.most_tokens:
            self.refused.append((request.turn, asked))
            raise ContextTooLong("maximum context length exceeded", window=self.told)
        return self.inner.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)

    def close(self):
        pass


def driven(bench, model, **settings):
    numbers = itertools.count()
    respond = lambda *_: ok(f"row {next(numbers)}\n" + "data " * 500)  # noqa: E731
    b = bench(respond=respond, max_steps=60, summaries=False, **settings)
    b.model = model
    return b, b.drive()


@pytest.mark.parametrize("told", [8192, None])
def test_a_window_that_was_refused_is_known_for_the_rest_of_the_job(bench, told):
    model = Refusing([*calls(30), say("done")], 8192, told)
    b, job = driven(bench, model, max_output_tokens=1000)
    assert job.answer == "done"
    assert len({turn for turn, _ in model.refused}) == 1
    (first, *_) = b.watching.of("window")
    assert "too long" in first.why
    assert b.history.window_tokens <= 8192 if told else b.history.window_tokens > 4096


def test_another_worker_knows_it_too(bench):
    model = Refusing([*calls(30), say("done")], 8192, 8192)
    b, _ = driven(bench, model, max_output_tokens=1000)
    window = b.history.window_tokens
    assert window == b.run().history.window_tokens == 8192


def test_an_estimate_that_was_too_low_does_not_make_it_try_the_same_again(bench):
    model = Refusing([*calls(30), say("done")], 8192, 8192, rate=0.5)
    _, job = driven(bench, model, max_output_tokens=1000)
    assert job.answer == "done"
    assert all(one > other for (_, one), (_, other) in itertools.pairwise(model.refused))


def test_a_window_as_large_as_the_reply_leaves_room_for_both(bench):
    model = Refusing([*calls(9), say("done")], 4096, 4096)
    _, job = driven(bench, model, context_tokens=4096, max_output_tokens=4096)
    assert job.answer == "done"


def test_one_that_refuses_everything_is_an_end_with_numbers_after_a_few_tries(bench):
    model = Refusing([say("never")], 0, 8192)
    _, job = driven(bench, model)
    assert (job.finish_reason, job.error.type) == (FinishReason.FAILED, "ContextTooSmall")
    assert "with a window of 32768 tokens (context_tokens)" in job.error.message
    assert len(model.refused) <= 4


# ---- endpoints that cut without a word


class Cutting:
    """An endpoint that cuts what is too long, and counts what is left."""

    name = "cutting"

    def __init__(self, messages, most_tokens, rate=0.25):
        self.inner = ScriptedModel(messages)
        self.most_tokens, self.rate = most_tokens, rate
        self.counts = []

    def reply(self, request, *, timeout_s, is_cancelled):
        reply = self.inner.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
        tokens = int(chars_of(request.messages, request.tools) * self.rate)
        self.counts.append((tokens, request.max_output_tokens))
        return reply.model_copy(
            update={"usage": Usage(input_tokens=min(tokens, self.most_tokens), output_tokens=9)}
        )

    def close(self):
        pass


@pytest.mark.parametrize("most", [2048, 4096])
def test_a_prompt_that_was_cut_unseen_shows_in_what_was_counted(bench, most):
    model = Cutting([*calls(30), say("done")], most)
    b, job = driven(bench, model, max_output_tokens=500)
    assert job.answer == "done"
    (learnt,) = b.watching.of("window")
    assert learnt.tokens == most
    assert f"counted {most} tokens" in learnt.why
    assert f"num_ctx in a Modelfile) or set context_tokens to {most}" in learnt.why
    assert max(tokens for tokens, _ in model.counts) < 1.5 * most
    assert all(tokens + reply <= most * 1.02 for tokens, reply in model.counts[-15:])


def test_it_shows_in_the_very_first_request_too(bench):
    model = Cutting([say("done")], 4096)
    b = bench()
    b.job = b.job.model_copy(update={"goal": "word " * 7200})  # about 9,000 tokens
    b.model = model
    b.drive()
    assert [event.tokens for event in b.watching.of("window")] == [4096]


def test_an_endpoint_that_counts_all_of_it_is_believed(bench):
    for rate in (0.2, 0.25, 0.5, 1.2):
        model = Cutting([*calls(30), say("done")], 10**6, rate)
        b, job = driven(bench, model)
        assert job.answer == "done"
        assert b.watching.of("window") == []
        assert b.watching.of("remark") == []


class Caching(Cutting):
    """An endpoint that counts only what it has not seen before."""

    def reply(self, request, *, timeout_s, is_cancelled):
        reply = super().reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
        now = self.counts[-1][0]
        before = self.counts[-2][0] if len(self.counts) > 1 else 0
        return reply.model_copy(update={"usage": Usage(input_tokens=max(1, now - before))})


def test_one_that_counts_only_what_is_new_has_no_small_window(bench):
    model = Caching([*calls(20), say("done")], 10**6)
    b, job = driven(bench, model)
    assert job.answer == "done"
    assert b.watching.of("window") == []
    assert len(b.watching.of("remark")) == 1
    assert "counts a part of it" in b.watching.of("remark")[0].text


def counted(tokens, chars):
    message = Message(role=Role.ASSISTANT, content="x")
    return Reply(message=message, usage=Usage(input_tokens=tokens), request_chars=chars)


@pytest.mark.parametrize(
    ("tokens", "chars", "known", "is_it"),
    [
        (4096, 36_000, None, True),
        (4096, 36_000, counted(700, 2800), True),
        (4096, 18_000, counted(700, 2800), False),
        (5000, 30_000, counted(600, 3000), False),
        (15_000, 60_000, counted(2000, 3000), False),  # numbers before, words now
        (30, 500, None, False),
    ],
)
def test_a_count_is_low_when_no_text_of_that_size_has_so_few_tokens(tokens, chars, known, is_it):
    assert is_low(counted(tokens, chars), known) is is_it


def counts_of(*pairs):
    counts = Counts()
    for tokens, chars, *model in pairs:
        reply = counted(tokens, chars)
        counts.add(reply.model_copy(update={"model": model[0] if model else "m"}))
    return counts


def test_a_count_that_stands_still_while_the_request_grows_shows_a_cut():
    grown = (800, 3000), (3000, 12_000), (4096, 17_000), (4096, 18_000)
    assert counts_of(*grown).low is None
    cut = counts_of(*grown, (4096, 20_000))
    assert cut.low.request_chars == 20_000
    assert cut.believed.request_chars == 3000  # not one that may have been cut as well
    dropped = counts_of(*grown, (3950, 20_000))  # whole messages, until it fits
    assert dropped.low.usage.input_tokens == 3950


def test_a_count_that_stands_still_for_another_reason_does_not():
    assert counts_of((4096, 17_000), (4096, 17_500)).low is None
    assert counts_of((4096, 17_000), (4000, 20_000, "another model")).low is None
    assert counts_of((900, 3000), (900, 3600)).low is None
    assert counts_of((0, 3000), (0, 90_000)).low is None


def test_the_rest_of_a_request_is_what_is_new_in_it():
    known = counted(1000, 4000)
    assert is_rest(counted(500, 22_000), counted(9, 20_000), known)
    assert not is_rest(counted(4096, 22_000), counted(9, 20_000), known)
    assert not is_rest(counted(4096, 22_000), None, known)
