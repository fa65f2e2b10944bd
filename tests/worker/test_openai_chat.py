"""The chat API over real HTTP: what servers send, and that nothing of it holds us up."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from werkzeug import Response

from tests.worker.served import (
    GOAL,
    HEAD,
    QUICK,
    SYSTEM,
    TOOLS,
    answer,
    ask,
    raw_server,
    sent,
    serve,
)
from worker.endpoints import Price
from worker.errors import (
    Cancelled,
    ContextTooLong,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    QuotaSpent,
)
from worker.messages import Finish, Message, Role, ToolCall
from worker.models.base import Model
from worker.models.waiting import asked_by_headers
from worker.testing import say

# ---- an ordinary exchange


def test_a_reply_is_read_with_its_usage_and_cost(httpserver, chat):
    serve(httpserver, answer(usage=(1_000_000, 500_000)))
    model = chat(price=Price(input=1.0, output=4.0))
    assert isinstance(model, Model)
    reply = ask(model, tools=TOOLS, max_output_tokens=77)
    assert (reply.text, reply.model, reply.finish) == ("hello", "m-1", Finish.STOP)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (1_000_000, 500_000)
    assert reply.usage.cost == 3.0
    assert reply.duration_s > 0
    body = sent(httpserver)
    assert body["model"] == "m"
    assert body["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "g"},
    ]
    assert body["max_tokens"] == 77
    assert body["tools"] == list(TOOLS)


def test_without_a_price_the_cost_is_not_known_and_without_counts_it_is_estimated(httpserver, chat):
    serve(httpserver, answer(usage=None))
    usage = ask(chat()).usage
    assert usage.cost is None
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0


def test_without_tools_no_tools_are_sent(httpserver, chat):
    serve(httpserver, answer())
    ask(chat())
    assert "tools" not in sent(httpserver)


def test_what_goes_back_has_only_fields_that_all_endpoints_know(httpserver, chat):
    serve(httpserver, answer(), answer())
    wire = {
        **say(None, ("shell", {})),
        "reasoning_content": "hm",
        "annotations": [],
        "weird": 1,
    }
    wire["tool_calls"][0] |= {"index": 0, "extra_content": {"sign": "x"}}
    turn = (SYSTEM, GOAL, Message.from_wire(wire))
    ask(chat(), messages=turn)
    back = sent(httpserver)["messages"][2]
    assert set(back) == {"role", "content", "tool_calls"}
    assert back["content"] is None
    assert set(back["tool_calls"][0]) == {"id", "type", "function", "extra_content"}
    ask(chat(send_reasoning=True), messages=turn)
    assert sent(httpserver)["messages"][2]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("name", "sent_name"),
    [
        ("shell", "shell"),
        ("functions.shell", "shell"),
        ("shell<|channel|>commentary", "shell"),
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("sh\x1b[31m\x00\u00e9ll", "sh__31m__ll"),
        ("", "unnamed"),
        ("n" * 10_000, "n" * 64),
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_a_name_goes_back_as_the_strictest_endpoints_take_it(httpserver, chat, name, sent_name):
    assert _sent_back(httpserver, chat, name, "{}")["name"] == sent_name


@pytest.mark.parametrize(
    ("arguments", "sent_arguments"),
    [
        ('{"x":  1}', '{"x":  1}'),
        ("", "{}"),
        ('{"code": "a\nb"}', '{"code": "a\\nb"}'),
        ("{'x': 1}", '{"x": 1}'),
        ('```json\n{"x": 1}\n```', '{"x": 1}'),
        ('{"x": 1}{"x": 2}', '{"x": 1}'),
        ('"{}"', "{}"),
        ('{"x": "\\ud800"}', '{"x": "\ufffd"}'),
        ('{"x": "rm', '{"unreadable": "{\\"x\\": \\"rm"}'),
        ("[1]", '{"unreadable": "[1]"}'),
        ('{"x": NaN}', '{"unreadable": "{\\"x\\": NaN}"}'),
    ],
)
def test_arguments_go_back_as_an_object_whatever_the_model_wrote(
    httpserver, chat, arguments, sent_arguments
):
    """vLLM and llama.cpp refuse every request with arguments in it that are no JSON."""
    assert _sent_back(httpserver, chat, "shell", arguments)["arguments"] == sent_arguments


def test_arguments_that_are_nested_too_deeply_go_back_as_a_text(httpserver, chat):
    deep = '{"x": ' + "[" * 900 + "]" * 900 + "}"
    back = json.loads(_sent_back(httpserver, chat, "shell", deep)["arguments"])
    assert back == {"unreadable": deep}


def _sent_back(httpserver, chat, name, arguments):
    """The function of a call as a later request has it."""
    call = ToolCall(id="a", name=name, arguments=arguments)
    serve(httpserver, answer())
    ask(chat(), messages=(SYSTEM, GOAL, Message(role=Role.ASSISTANT, tool_calls=(call,))))
    return sent(httpserver)["messages"][2]["tool_calls"][0]["function"]


# ---- shapes of replies

CALL = {"id": "a", "type": "function", "function": {"name": "shell", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    ("calls", "names", "arguments"),
    [
        ([CALL, {**CALL}], ["shell", "shell"], {"x": 1}),
        ([{"function": CALL["function"]}], ["shell"], {"x": 1}),
        ([{**CALL, "id": None}], ["shell"], {"x": 1}),
        ([{**CALL, "id": "y" * 43}], ["shell"], {"x": 1}),
        ([{**CALL, "function": {"name": "shell", "arguments": {"x": 1}}}], ["shell"], {"x": 1}),
        ([{**CALL, "function": {"name": "shell", "arguments": None}}], ["shell"], None),
        ([{"name": "shell", "arguments": {"x": 1}}], ["shell"], {"x": 1}),
        (CALL, ["shell"], {"x": 1}),
        ([{**CALL, "function": {"name": None, "arguments": "{}"}}], [""], {}),
    ],
)
def test_calls_of_every_shape_become_calls(httpserver, chat, calls, names, arguments):
    serve(httpserver, answer({"role": "assistant", "content": None, "tool_calls": calls}))
    made = ask(chat()).calls
    assert [c.name for c in made] == names
    assert made[0].arguments == "" or json.loads(made[0].arguments) == arguments
    assert all(c.id for c in made)


def test_the_old_field_for_one_call_is_read(httpserver, chat):
    serve(httpserver, answer({"role": "assistant", "function_call": CALL["function"]}))
    assert ask(chat()).calls[0].name == "shell"


@pytest.mark.parametrize(
    ("content", "text", "thought"),
    [
        ("<think>rm -rf /</think>The answer is 4", "The answer is 4", "rm -rf /"),
        ("<think>never closed", "", "never closed"),
        ("thought</think>4", "4", "thought"),
        ("<thinking>a</thinking>\n<think>b</think>\n4", "4", "a\nb"),
        ("it says <think> in the middle", "it says <think> in the middle", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", ""),
        (None, "", ""),
    ],
)
def test_thoughts_are_split_off_the_text(httpserver, chat, content, text, thought):
    serve(httpserver, answer({"role": "assistant", "content": content}))
    reply = ask(chat())
    assert (reply.text, reply.reasoning) == (text, thought)


def test_reasoning_fields_are_kept_apart(httpserver, chat):
    message = {"role": "assistant", "content": None, "reasoning_content": "I should call"}
    serve(httpserver, answer(message))
    reply = ask(chat())
    assert (reply.text, reply.reasoning) == ("", "I should call")


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("length", Finish.LENGTH),
        ("stop", Finish.STOP),
        ("tool_calls", Finish.STOP),
        (None, Finish.STOP),
        ("content_filter", Finish.FILTER),
        ("eos", Finish.STOP),
    ],
)
def test_finish_reasons_are_read(httpserver, chat, finish, expected):
    serve(httpserver, answer(say(None, ("shell", {})), finish=finish))
    assert ask(chat()).finish is expected


def test_halves_of_surrogate_pairs_do_not_survive(httpserver, chat):
    serve(httpserver, answer(say("x \ud83d y")))
    reply = ask(chat())
    assert reply.text == "x \ufffd y"
    assert reply.model_dump_json().encode()


def test_each_message_is_encoded_once_and_sent_with_every_request(httpserver, chat):
    serve(httpserver, answer(), answer(), answer())
    said = [SYSTEM, GOAL, Message(role=Role.ASSISTANT, content="ä"), GOAL, SYSTEM]
    model, encoded = chat(), []
    wire = Message.to_wire.__code__

    def count(frame, event, _):
        if event == "call" and frame.f_code is wire:
            encoded.append(frame.f_locals["self"])

    for most in (2, 3, 5):
        sys.setprofile(count)
        try:
            ask(model, messages=tuple(said[:most]), tools=TOOLS)
        finally:
            sys.setprofile(None)
        assert sent(httpserver)["messages"] == [message.to_wire() for message in said[:most]]
        assert sent(httpserver)["tools"] == list(TOOLS)
    assert sum(message.text == "ä" for message in encoded) == 1


def test_the_key_goes_along_as_endpoints_want_it(httpserver, chat):
    serve(httpserver, answer())
    ask(chat(api_key="sk-1"))
    headers = httpserver.log[-1][0].headers
    assert headers["Authorization"] == "Bearer sk-1"
    assert headers["Content-Type"] == "application/json"


# ---- failures: which are tried again


BUSY = (429, {"error": {"message": "slow down", "type": "rate_limit"}})


@pytest.mark.parametrize(
    "first",
    [
        BUSY,
        (500, {"error": {"message": "oops"}}),
        (503, "<html>busy</html>"),
        (529, {"type": "error", "error": {"type": "overloaded_error"}}),
        "<html>proxy</html>",
        {"id": "1", "choices": []},
        {"id": "1", "choices": None},
        {"error": {"message": "upstream", "code": 502}},
        "",
        "null",
    ],
)
def test_what_may_pass_is_tried_again(httpserver, chat, first):
    serve(httpserver, first, answer())
    reply = ask(chat())
    assert reply.text == "hello"
    assert reply.waited_s > 0
    assert len(httpserver.log) == 2


def test_what_does_not_pass_ends_with_the_number_of_tries(httpserver, chat):
    serve(httpserver, *[BUSY] * 5)
    with pytest.raises(ModelUnavailable, match=r"answered 429: .*slow down \(tried 5 times\)"):
        ask(chat())


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ((401, {"error": {"message": "bad key"}}), ModelRefused, "OPENAI_API_KEY"),
        ((403, {"error": "no"}), ModelRefused, "OPENAI_API_KEY"),
        ((404, {"error": {"message": "no model"}}), ModelRefused, "CAISSON_MODEL"),
        ((404, "<html>nginx</html>"), ModelRefused, "OPENAI_BASE_URL"),
        ((400, {"error": {"message": "bad tools"}}), ModelRefused, "bad tools"),
        (
            (
                400,
                {
                    "error": {
                        "message": "The `reasoning_content` in the thinking mode must be "
                        "passed back to the API."
                    }
                },
            ),
            ModelRefused,
            "CAISSON_SEND_REASONING",
        ),
        (
            (400, {"error": {"message": "m does not support tools"}}),
            ModelRefused,
            "cannot call tools",
        ),
        ((429, {"error": {"code": "insufficient_quota", "message": "x"}}), QuotaSpent, "quota"),
        ((429, {"error": {"message": "You exceeded your current quota"}}), QuotaSpent, "quota"),
        ((402, {"error": {"message": "Insufficient Balance"}}), QuotaSpent, "Balance"),
        (
            (
                400,
                {
                    "error": {
                        "code": "context_length_exceeded",
                        "message": "maximum context length is 8192 tokens",
                    }
                },
            ),
            ContextTooLong,
            "8192",
        ),
        ((400, {"message": "max_tokens must be at least 1, got -186"}), ContextTooLong, "-186"),
        (
            (500, {"error": {"message": "the request exceeds the available context size"}}),
            ContextTooLong,
            "context size",
        ),
        ({"error": {"message": "bad key", "code": 401}}, ModelRefused, "OPENAI_API_KEY"),
    ],
)
def test_what_will_not_pass_is_not_tried_again(httpserver, chat, told, error, words):
    serve(httpserver, told)
    with pytest.raises(error) as caught:
        ask(chat())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(httpserver.log) == 1


@pytest.mark.parametrize(
    "told",
    [
        (401, {"error": {"message": "x" * 290 + "Incorrect key sk-0123456789: sk-0123456789"}}),
        (429, {"error": {"message": "billing of sk-0123456789"}}),
        (503, "busy, sk-0123456789"),
        (400, {"error": {"message": "context length of sk-0123456789"}}),
        (200, "<html>Bearer sk-0123456789</html>"),
        (200, {"error": {"message": "no sk-0123456789", "code": 401}}),
    ],
)
def test_our_key_is_in_no_message(httpserver, chat, caplog, told):
    serve(httpserver, *[told] * QUICK.tries)
    with pytest.raises(ModelUnavailable) as caught:
        ask(chat(api_key="sk-0123456789"))
    assert "sk-01234" not in str(caught.value) + caplog.text
    assert "***" in str(caught.value) or "xxx" in str(caught.value)


def test_the_window_is_read_from_the_complaint(httpserver, chat):
    serve(httpserver, (400, {"error": {"message": "maximum context length is 8192 tokens"}}))
    with pytest.raises(ContextTooLong) as caught:
        ask(chat())
    assert caught.value.window == 8192


def test_newer_names_of_the_output_limit_are_learnt(httpserver, chat):
    refusal = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    serve(httpserver, (400, {"error": {"message": refusal}}), answer(), answer())
    model = chat()
    assert ask(model).text == "hello"
    assert "max_completion_tokens" in sent(httpserver)
    ask(model)
    assert len(httpserver.log) == 3


def test_learning_it_takes_no_second_deadline(httpserver, chat):
    refusal = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."

    def refuse_slowly(_):
        time.sleep(0.7)
        return Response(json.dumps({"error": {"message": refusal}}), status=400)

    def answer_slowly(_):
        time.sleep(0.7)
        return Response(json.dumps(answer()), content_type="application/json")

    path = "/v1/chat/completions"
    httpserver.expect_ordered_request(path).respond_with_handler(refuse_slowly)
    httpserver.expect_ordered_request(path).respond_with_handler(answer_slowly)
    started = time.monotonic()
    with pytest.raises(ModelTimeout):
        ask(chat(), timeout_s=1.0)
    assert time.monotonic() - started < 1.3


@pytest.mark.parametrize(
    "header",
    [
        {"Retry-After": "0.3"},
        {"retry-after-ms": "300"},
        {"Retry-After": "soon", "retry-after-ms": "300"},
    ],
)
def test_the_endpoints_wish_to_wait_is_respected(httpserver, chat, header):
    serve(httpserver, (*BUSY, header), answer())
    assert ask(chat()).waited_s == pytest.approx(0.3)


def test_a_wish_to_wait_may_be_a_date():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30))
    assert 25 < asked_by_headers({"retry-after": later}) <= 30
    assert asked_by_headers({"retry-after": "whenever"}) is None
    assert asked_by_headers({}) is None


def test_a_wish_to_wait_beyond_the_deadline_ends_it_at_once(httpserver, chat):
    serve(httpserver, (*BUSY, {"Retry-After": "60"}))
    started = time.monotonic()
    with pytest.raises(ModelUnavailable, match="tried once, asks to wait 60 s; model_timeout_s"):
        ask(chat(), timeout_s=5)
    assert time.monotonic() - started < 2


def test_waiting_ends_when_the_job_is_cancelled(httpserver, chat):
    serve(httpserver, (*BUSY, {"Retry-After": "9"}))
    until = time.monotonic() + 0.5
    started = time.monotonic()
    with pytest.raises(Cancelled):
        ask(chat(), is_cancelled=lambda: time.monotonic() > until)
    assert time.monotonic() - started < 1.5


# ---- servers that do not behave at all


def drip_body(connection, ended):
    connection.sendall(HEAD)
    while not ended.wait(0.1):
        connection.sendall(b" ")


def drip_headers(connection, ended):
    for byte in HEAD[:-20] + b"X-Y: " + b"z" * 900:
        connection.sendall(bytes([byte]))
        if ended.wait(0.1):
            return


def stall(connection, ended):
    connection.sendall(HEAD + b'{"cho')
    ended.wait(20)


def silent(connection, ended):
    ended.wait(20)


@pytest.mark.parametrize("behave", [drip_body, drip_headers, stall, silent])
def test_no_server_extends_the_deadline(chat, behave):
    threads = threading.active_count()
    with raw_server(behave) as (url, connections):
        model = chat(base_url=url)
        started = time.monotonic()
        with pytest.raises(ModelTimeout):
            ask(model, timeout_s=1.0)
        assert time.monotonic() - started < 1.6
        assert len(connections) == 1
        until = time.monotonic() + 3
        names = lambda: [t.name for t in threading.enumerate()]  # noqa: E731
        while "model" in names() and time.monotonic() < until:
            time.sleep(0.02)
        assert "model" not in names()
    assert threading.active_count() <= threads + 1


def test_time_that_is_over_names_the_address_and_the_setting(chat):
    with raw_server(silent) as (url, _), pytest.raises(ModelTimeout) as caught:
        ask(chat(base_url=url), timeout_s=0.5)
    assert f"{url} gave no complete reply within 0.5 s; raise model_timeout_s" in str(caught.value)
    assert "before" not in str(caught.value)


def test_a_last_try_without_time_tells_the_whole_of_it_and_why_the_one_before_failed(chat):
    tries = []

    def behave(connection, ended):
        tries.append(1)
        if len(tries) > 1:
            ended.wait(20)
            return
        told = b'{"error": "the pump is busy"}'
        connection.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 29\r\n\r\n" + told)

    with raw_server(behave) as (url, _), pytest.raises(ModelTimeout) as caught:
        ask(chat(base_url=url), timeout_s=1.0)
    assert "within 1 s" in str(caught.value)
    assert "(try 2; the one before: " in str(caught.value)
    assert "answered 503: the pump is busy)" in str(caught.value)


@pytest.mark.parametrize("behave", [drip_body, silent])
def test_a_reply_is_broken_off_within_a_second_of_a_cancel(chat, behave):
    with raw_server(behave) as (url, _):
        until = time.monotonic() + 0.5
        started = time.monotonic()
        with pytest.raises(Cancelled):
            ask(chat(base_url=url), is_cancelled=lambda: time.monotonic() > until)
        assert time.monotonic() - started < 1.5


def test_a_connection_that_breaks_is_tried_again(chat):
    body = json.dumps(answer()).encode()
    seen = []

    def behave(connection, ended):
        seen.append(1)
        if len(seen) < 3:
            connection.sendall(HEAD + b'{"half')
            return
        connection.sendall(HEAD.replace(b"100000", str(len(body)).encode()) + body)

    with raw_server(behave) as (url, _):
        assert ask(chat(base_url=url)).text == "hello"
    assert len(seen) == 3


def test_after_a_timeout_the_model_can_be_asked_again(httpserver, chat):
    slow = threading.Event()

    def wait(request):
        slow.wait(2)
        return Response(json.dumps(answer()), content_type="application/json")

    httpserver.expect_ordered_request("/v1/chat/completions").respond_with_handler(wait)
    model = chat()
    with pytest.raises(ModelTimeout):
        ask(model, timeout_s=0.5)
    slow.set()
    serve(httpserver, answer())
    assert ask(model).text == "hello"


def test_exchanges_share_a_thread_that_ends_with_the_model(httpserver, chat):
    def exchanging():
        return {thread for thread in threading.enumerate() if thread.name == "model"}

    others = exchanging()
    serve(httpserver, answer(), answer(), answer())
    model, seen = chat(), set()
    for _ in range(3):
        ask(model)
        seen |= exchanging() - others
    assert len(seen) == 1
    model.close()
    seen.pop().join(2.0)
    assert exchanging() <= others


def test_nobody_there_names_the_address_and_its_setting(chat):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ModelUnavailable, match=rf"127\.0\.0\.1:{port}.*OPENAI_BASE_URL"):
        ask(chat(base_url=f"http://127.0.0.1:{port}/v1"))
