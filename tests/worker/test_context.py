"""What is sent: within the window, valid at every cut, goal and system prompt always there."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.context import Window, tokens_per_char
from worker.conversation import Conversation, chars_of, check_request
from worker.cutting import KEPT_CHARS, cut, cut_arguments, size_of
from worker.errors import ContextTooLong, RequestInvalid, Stop
from worker.fitting import fit
from worker.history import History
from worker.messages import (
    FinishReason,
    Job,
    Message,
    MessageAdded,
    NoticeAdded,
    Reply,
    ReplyAdded,
    ResultAdded,
    Role,
    SummaryAdded,
    ToolCall,
    ToolResult,
    Usage,
)
from worker.testing import ok, say

SYSTEM = Message(role=Role.SYSTEM, content="You are the system prompt.")
GOAL = Message(role=Role.USER, content="This is the goal.")


def history_of(turns, *, usage=None):
    """A history of steps; each is the sizes of its results, and whether a notice follows."""
    history = History(Job(id="j", goal="g"))
    for message in (SYSTEM, GOAL):
        history.add(MessageAdded(message=message))
    for sizes, noticed in turns:
        add_step(history, [f"status: ok\n{'y' * n}" for n in sizes], "hm", usage, noticed=noticed)
    return history


def history_events(history):
    """The events of such a history again."""
    yield from (MessageAdded(message=message) for message in history.opening)
    for turn in history.turns:
        if turn.reply:
            yield ReplyAdded(reply=turn.reply)
        yield from (ResultAdded(result=result) for result in turn.results.values())
        yield from turn.notices


PIECES = st.sampled_from(["y", "y ", "é", "数据", "🙂", "line\n", "\u0301", "\ud800"])
TEXTS = st.builds(lambda piece, times: piece * times, PIECES, st.integers(0, 3000))
ARGUMENTS = st.one_of(
    st.just("{}"),
    TEXTS.map(lambda text: json.dumps({"content": text})),
    TEXTS.map(lambda text: json.dumps({"a": {"b": [text, 1]}, "c": text}, ensure_ascii=False)),
    st.integers(0, 2000).map(lambda count: json.dumps({"numbers": [1.5] * count})),
    st.integers(0, 2000).map(lambda count: json.dumps({f"key {i}": "\x1f" for i in range(count)})),
    st.integers(0, 3000).map(lambda count: "[" * count),
    TEXTS,
)
CALLED = st.lists(st.tuples(ARGUMENTS, TEXTS), max_size=3)
STEPS = st.lists(st.tuples(CALLED, TEXTS, st.booleans()), max_size=12)
COUNTS = st.sampled_from([None, None, 200, 290, 900, 5000])


@st.composite
def histories(draw):
    """A job of any steps: texts of any size and script, notices, counted tokens, summaries."""
    history = History(Job(id="j", goal="g"))
    for message in (SYSTEM, Message(role=Role.USER, content=GOAL.text + draw(TEXTS))):
        history.add(MessageAdded(message=message))
    for called, said, noticed in draw(STEPS):
        usage = Usage(input_tokens=draw(COUNTS) or 0)
        given, results = [one for one, _ in called], [text for _, text in called]
        add_step(history, results, said, usage, noticed=noticed, given=given)
        if len(history.steps) > 2 and draw(st.booleans()):
            steps = draw(st.integers(0, len(history.steps) - 2))
            fault = draw(st.sampled_from(["", "", "unavailable"]))
            history.add(SummaryAdded(text="" if fault else draw(TEXTS), steps=steps, fault=fault))
    return history


def add_step(history, results, said="hm", usage=None, *, noticed=False, given=None):
    given = given or ["{}"] * len(results)
    calls = tuple(ToolCall(id="x", name="shell", arguments=text) for text in given)
    message = Message(role=Role.ASSISTANT, content=said, tool_calls=calls)
    reply = Reply(message=message, usage=usage or Usage(), request_chars=1000 if usage else 0)
    history.add(ReplyAdded(reply=history.renamed(reply)))
    for call, text in zip(history.last.calls, results, strict=True):
        result = ToolResult(call_id=call.id, name="shell", status="ok", text=text)
        history.add(ResultAdded(result=result))
    if noticed or not results:
        history.add(NoticeAdded(text="notice!", reason="n"))


def least_chars(history):
    """What no cutting can go below: the prompt whole, the rest of each text as it is kept."""
    said = Conversation()
    said.grow(history)
    last = said.groups(len(said) - 1)[-1] if len(said) else ()
    kept = [
        message.model_copy(
            update={
                "content": "k" * KEPT_CHARS,
                "tool_calls": [
                    call.model_copy(update={"arguments": "k" * KEPT_CHARS})
                    for call in message.tool_calls
                ],
            }
        )
        for message in last
    ]
    goal = Message(role=Role.USER, content="k" * KEPT_CHARS)
    return chars_of([SYSTEM, goal, *kept])


def is_whole(messages):
    """Whether every call has its result and every result its call."""
    calls = [call.id for message in messages for call in message.tool_calls]
    return calls == [m.tool_call_id for m in messages if m.role is Role.TOOL]


TOOLS = ({"type": "function", "function": {"name": "shell", "parameters": {}}},)


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(1024, 20_000), st.sampled_from([16, 1000, 8192]))
def test_every_request_is_valid_and_fits_whatever_is_cut(history, tokens, reply_tokens):
    request = Window(tokens, reply_tokens).request(history, TOOLS)
    check_request(request.messages)
    assert is_whole(request.messages)
    assert request.messages[0] == SYSTEM
    assert request.messages[1].text.startswith(GOAL.text)
    rate = tokens_per_char(history)
    estimate = chars_of(request.messages, TOOLS) * rate + request.max_output_tokens
    room = tokens - min(reply_tokens, tokens // 3)
    if least_chars(history) + chars_of((), TOOLS) < int(room / rate):
        assert estimate <= tokens
    else:  # then the reply gets what is left
        assert request.max_output_tokens == 16 or estimate <= tokens + 1


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(-10, 60_000))
def test_the_size_of_what_is_sent_is_known_without_measuring_it(history, budget):
    said = Conversation()
    said.grow(history)
    fitted = fit(said, budget)
    assert fitted.chars == chars_of(fitted.messages)
    assert fitted.chars <= max(budget, least_chars(history))


@given(TEXTS, st.integers(0, 4000))
def test_a_text_that_is_cut_is_no_larger_than_it_may_be(text, most):
    made = cut(text, most)
    assert size_of(made) <= max(most, KEPT_CHARS)
    assert made == text or made.startswith(text[:20])
    if size_of(text) <= most:
        assert made is text


@settings(deadline=None, max_examples=60)
@given(ARGUMENTS, st.integers(0, 4000))
def test_arguments_that_are_cut_are_an_object_no_larger_than_it_may_be(arguments, most):
    made = cut_arguments(arguments, most)
    assert size_of(made) <= max(most, KEPT_CHARS)
    if size_of(arguments) <= most:
        assert made is arguments
    elif made != arguments:
        assert isinstance(json.loads(made), dict)
        assert "characters cut" in made or json.loads(made) == json.loads(arguments)


def test_the_texts_of_a_call_that_is_cut_keep_their_ends_and_the_rest_stays_as_it_is():
    given = {"name": "a.csv", "content": 'BEGIN\n"' + "x" * 90_000 + '"\nEND', "rows": [1, 2.5]}
    made = json.loads(cut_arguments(json.dumps(given), 1000))
    assert made | {"content": ""} == given | {"content": ""}
    assert made["content"].startswith('BEGIN\n"x')
    assert made["content"].endswith('x"\nEND')


def test_arguments_of_any_size_are_cut_quickly():
    given = {"a": "数据\n" * 300_000, "b": ["x" * 1000] * 300}
    began = time.monotonic()
    assert size_of(cut_arguments(json.dumps(given), 20_000)) <= 20_000
    assert size_of(cut_arguments("数据" * 500_000, 20_000)) <= 20_000
    assert time.monotonic() - began < 5


TURNS = st.lists(st.tuples(st.lists(st.integers(0, 3000), max_size=3), st.booleans()), max_size=12)


@given(TURNS)
def test_a_conversation_that_grows_is_the_one_that_is_made_at_the_end(turns):
    whole = history_of(turns)
    grown, history = Conversation(), History(whole.job)
    for event in history_events(whole):
        history.add(event)
        if not history.last.is_open and len(history.opening) > 1:
            grown.grow(history)
    made = Conversation()
    made.grow(whole)
    grown.grow(history)
    assert (grown.head, grown.groups(), grown.chars()) == (made.head, made.groups(), made.chars())


def test_what_fits_is_sent_whole():
    history = history_of([([100, 100], False), ([50], True), ([], False)])
    messages = Window().request(history, ()).messages
    roles = [m.role.value for m in messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert messages[6].text.endswith("\n\nnotice!")


def test_old_results_are_cleared_before_steps_are_left_out():
    said = Conversation()
    said.grow(history_of([([2000], False)] * 6))
    messages = fit(said, said.chars() - 1500).messages
    assert len(messages) == 14
    assert "cleared" in messages[3].text
    assert "yyy" in messages[5].text


def test_steps_that_are_left_out_are_said_to_be():
    messages = Window(2048, 500).request(history_of([([600], False)] * 30), ()).messages
    assert "oldest steps after this are left out" in messages[1].text
    assert "yyy" in messages[-1].text


def test_one_result_larger_than_the_window_is_cut_not_the_history():
    history = history_of([([100_000], False)])
    messages = Window(4096, 500).request(history, ()).messages
    assert [m.role.value for m in messages] == ["system", "user", "assistant", "tool"]
    assert messages[-1].text.startswith("status: ok")
    assert "characters cut" in messages[-1].text
    assert chars_of(messages) < 4096 / 0.3


def test_one_result_larger_than_the_window_does_not_drive_out_the_steps_before_it():
    history = history_of([*[([60], False)] * 8, ([200_000], False)])
    messages = Window(4096, 500).request(history, ()).messages
    assert len(messages) == 2 + 2 * 9
    assert "left out" not in messages[1].text
    assert "characters cut" in messages[-1].text
    assert size_of(messages[-1].text) <= 3596 / 0.3 / 3


def write(size):
    return json.dumps({"name": "a", "content": "x" * size})


def called(*sizes):
    """A history of calls with arguments of such sizes."""
    history = history_of([])
    for size in sizes:
        add_step(history, ["status: ok\nsaid"], given=[write(size)])
    return history


def test_one_call_larger_than_the_window_is_cut_and_stored_whole():
    history = called(*[60] * 8, 100_000)
    request = Window(4096, 500).request(history, ())
    assert len(request.messages) == 2 + 2 * 9
    assert chars_of(request.messages) < 3596 / 0.3
    assert request.max_output_tokens == 500
    (call,) = request.messages[-2].tool_calls
    assert json.loads(call.arguments)["name"] == "a"
    assert "characters cut" in call.arguments
    assert history.last.calls[0].arguments == write(100_000)


def test_an_old_call_that_is_large_does_not_drive_out_the_steps_around_it():
    messages = Window(4096, 500).request(called(60, 20_000, *[60] * 6), ()).messages
    assert len(messages) == 2 + 2 * 8
    assert "characters cut" in messages[4].tool_calls[0].arguments
    assert messages[2].tool_calls[0].arguments == write(60)


def test_calls_are_whole_as_long_as_they_fit():
    messages = Window(32_768, 500).request(called(9000, 9000, 9000), ()).messages
    assert [m.tool_calls[0].arguments for m in messages if m.tool_calls] == [write(9000)] * 3


def test_a_text_beyond_ascii_is_reckoned_with_twice_as_much():
    assert size_of("abc") == 3
    assert size_of("数据") == 4
    assert size_of("aé🙂") == 5
    assert size_of("\ud800") == 2


def test_a_reply_gets_less_room_where_a_request_cannot_be_made_smaller():
    history = History(Job(id="j", goal="g"))
    system = Message(role=Role.SYSTEM, content="s" * 3000)
    for message in (system, GOAL):
        history.add(MessageAdded(message=message))
    request = Window(1024, 1000).request(history, ())
    assert request.messages[0] == system
    assert 16 <= request.max_output_tokens < 1024 - 900


def test_a_goal_larger_than_the_window_keeps_its_ends():
    history = History(Job(id="j", goal="g"))
    for message in (SYSTEM, Message(role=Role.USER, content="BEGIN" + "x" * 90_000 + "END")):
        history.add(MessageAdded(message=message))
    messages = Window(2048, 500).request(history, ()).messages
    assert messages[0] == SYSTEM
    assert messages[1].text.startswith("BEGIN")
    assert messages[1].text.endswith("END")
    assert chars_of(messages) < 2048 / 0.3


def test_estimates_follow_what_the_endpoint_counts():
    assert tokens_per_char(history_of([])) == 0.3
    measured = history_of([([1], False)], usage=Usage(input_tokens=500))
    assert tokens_per_char(measured) == pytest.approx(0.525)
    unbelievable = history_of([([1], False)], usage=Usage(input_tokens=1))
    assert tokens_per_char(unbelievable) == 0.3


# ---- the validator

CALL = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="a", name="x"),))
RESULT = Message(role=Role.TOOL, content="r", tool_call_id="a")
SAID = Message(role=Role.ASSISTANT, content="s")


@pytest.mark.parametrize(
    "messages",
    [
        (GOAL,),
        (SYSTEM,),
        (SYSTEM, SYSTEM, GOAL),
        (SYSTEM, GOAL, GOAL),
        (SYSTEM, GOAL, SYSTEM),
        (SYSTEM, GOAL, CALL),
        (SYSTEM, GOAL, CALL, SAID, RESULT),
        (SYSTEM, GOAL, RESULT),
        (SYSTEM, GOAL, CALL, RESULT, RESULT),
        (SYSTEM, GOAL, CALL, RESULT, CALL, RESULT),
        (SYSTEM, GOAL, SAID, SAID),
        (SYSTEM, GOAL, CALL, GOAL, RESULT),
    ],
)
def test_orphans_doubles_and_wrong_orders_are_found(messages):
    with pytest.raises(RequestInvalid):
        check_request(messages)


@pytest.mark.parametrize(
    "messages",
    [(SYSTEM, GOAL), (SYSTEM, GOAL, CALL, RESULT), (SYSTEM, GOAL, CALL, RESULT, SAID, GOAL)],
)
def test_what_is_in_order_passes(messages):
    check_request(messages)


# ---- when the endpoint finds it too long


class Small:
    """A model that refuses requests of more characters than it takes."""

    name = "small"

    def __init__(self, most, window=None):
        self.most, self.window, self.sizes, self.times = most, window, [], []

    def reply(self, request, *, timeout_s, is_cancelled):
        self.times.append(timeout_s)
        time.sleep(0.05)
        self.sizes.append(chars_of(request.messages))
        if self.sizes[-1] > self.most:
            raise ContextTooLong("maximum context length exceeded", window=self.window)
        return Reply(message=Message(role=Role.ASSISTANT, content="done"))

    def close(self):
        pass


def long_job(bench, model):
    script = [say(None, ("shell", {"command": str(i)})) for i in range(12)]
    b = bench(*script, respond=lambda *_: ok("z" * 4000), max_steps=12)
    b.drive()
    run = b.run()
    return Window(20_000, 1000).ask(run, model, (), 10.0)


def test_a_request_that_is_too_long_is_made_shorter_once(bench):
    model = Small(30_000, window=8192)
    assert long_job(bench, model).text == "done"
    assert len(model.sizes) == 2
    assert model.sizes[1] < 8192 / 0.3


def test_an_endpoint_that_always_refuses_ends_the_job_with_numbers(bench):
    model = Small(0)
    with pytest.raises(Stop, match=r"cannot be made small enough: \d+ characters") as caught:
        long_job(bench, model)
    assert caught.value.kind == "ContextTooSmall"
    assert len(model.sizes) <= 4
    assert model.sizes == sorted(model.sizes, reverse=True)


def test_one_deadline_holds_for_all_sizes_of_a_request(bench):
    model = Small(30_000, window=8192)
    assert long_job(bench, model).text == "done"
    assert len(model.times) > 1
    assert model.times[-1] <= 10.0 - 0.05 * (len(model.times) - 1)


def test_it_is_a_named_end_of_the_job(bench):
    b = bench(ContextTooLong("too long"), repeat_last=True)
    job = b.drive()
    assert (job.finish_reason, job.error.type) == (FinishReason.FAILED, "ContextTooSmall")


def test_an_endpoint_that_cuts_prompts_without_a_word_is_reported_once(bench):
    few = {"input_tokens": 10, "output_tokens": 1}
    script = [say(None, ("shell", {"command": str(i)}), usage=few) for i in range(4)]
    b = bench(*script, say("done", usage=few), respond=lambda *_: ok("z" * 500))
    b.drive()
    remarks = [e.text for e in b.watching.of("remark")]
    assert len(remarks) == 1
    assert "num_ctx" in remarks[0]
