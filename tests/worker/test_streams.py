"""Replies in pieces: put together as meant, and never taken for whole when they are not."""

from __future__ import annotations

import json
import time

import pytest
from werkzeug import Response

from tests.worker.served import QUICK, TOOLS, answer, ask, raw_server, sent, serve
from worker.context import Window
from worker.errors import Cancelled, ModelTimeout, ModelUnavailable
from worker.messages import Finish
from worker.models.openai_chat import Retries


def piece(delta=None, finish=None, **fields):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "1", "model": "m-1", "choices": [choice], **fields}


def call(index=None, id=None, name=None, arguments=None, **fields):  # noqa: A002
    function = {"name": name, "arguments": arguments}
    wire = {"index": index, "id": id, **fields}
    wire["function"] = {k: v for k, v in function.items() if v is not None}
    return {"tool_calls": [{k: v for k, v in wire.items() if v is not None}]}


def events(*pieces, end="\n\n", done=True):
    lines = [p if isinstance(p, str) else f"data: {json.dumps(p)}" for p in pieces]
    return end.join([*lines, "data: [DONE]"] if done else lines) + end


def stream(httpserver, *bodies):
    for body in bodies:
        response = Response(body, content_type="text/event-stream")
        httpserver.expect_ordered_request("/v1/chat/completions").respond_with_response(response)


WHOLE = (
    piece({"role": "assistant", "content": "hel"}),
    piece({"content": "lo"}),
    piece({}, "stop"),
)
USAGE = {
    "id": "1",
    "model": "m-1",
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
}


def test_a_stream_is_asked_for_with_its_usage_and_put_together(httpserver, chat):
    stream(httpserver, events(*WHOLE, USAGE))
    reply = ask(chat(stream=True), tools=TOOLS)
    assert (reply.text, reply.model, reply.finish) == ("hello", "m-1", Finish.STOP)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 3)
    body = sent(httpserver)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


LS = '{"command": "ls"}'
PWD = '{"command": "pwd"}'


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [call(0, "a", "shell", LS), call(1, "b", "shell", PWD)], id="an index of their own"
        ),
        pytest.param([call(0, "a", "shell", LS), call(0, "b", "shell", PWD)], id="all index 0"),
        pytest.param([call(None, "a", "shell", LS), call(None, "b", "shell", PWD)], id="no index"),
        pytest.param([call(None, None, "shell", LS), call(None, None, "shell", PWD)], id="no id"),
        pytest.param(
            [
                *(call(0, "a", "shell", LS[:5]), call(0, None, None, LS[5:])),
                *(call(0, "b", "shell", PWD[:5]), call(0, None, None, PWD[5:])),
            ],
            id="index 0, in pieces",
        ),
        pytest.param(
            [
                *(call(0, "a", "shell", LS[:5]), call(1, "b", "shell", PWD[:5])),
                *(call(0, None, None, LS[5:]), call(1, None, None, PWD[5:])),
            ],
            id="by turns",
        ),
        pytest.param(
            [
                *(call(0, "a", "shell", LS[:5]), call(0, "a", "shell", LS[5:])),
                *(call(1, "b", "shell", PWD[:5]), call(1, "b", "shell", PWD[5:])),
            ],
            id="id and name in each piece",
        ),
        pytest.param(
            [
                *(call(0, "a", "she", ""), call(0, None, "ll", ""), call(0, None, None, LS)),
                call(1, "b", "shell", json.loads(PWD)),
            ],
            id="a name in pieces, arguments as an object",
        ),
        pytest.param(
            [
                *(call(0, "a", "shell", LS[:5]), call(0, "a2", None, LS[5:])),
                *(call(1, "b", "shell", PWD[:5]), call(1, "b2", None, PWD[5:])),
            ],
            id="another id with each piece",
        ),
        pytest.param(
            [
                {
                    "tool_calls": [
                        *call(0, "a", "shell", LS)["tool_calls"],
                        *call(0, "b", "shell", PWD)["tool_calls"],
                    ]
                }
            ],
            id="two in one piece",
        ),
    ],
)
def test_parallel_calls_are_kept_apart(httpserver, chat, pieces):
    stream(httpserver, events(*map(piece, pieces), piece({}, "tool_calls")))
    calls = ask(chat(stream=True)).calls
    assert [(c.name, json.loads(c.arguments)) for c in calls] == [
        ("shell", json.loads(LS)),
        ("shell", json.loads(PWD)),
    ]


def test_another_name_without_an_id_begins_another_call(httpserver, chat):
    pieces = [call(0, None, "shell", LS), call(0, None, "calculate", '{"expression": "1"}')]
    stream(httpserver, events(*map(piece, pieces), piece({}, "tool_calls")))
    assert [c.name for c in ask(chat(stream=True)).calls] == ["shell", "calculate"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(events(": keep-alive", *WHOLE, ": OPENROUTER PROCESSING"), id="comments"),
        pytest.param(events("data:", *WHOLE, "data: ping"), id="data that is none"),
        pytest.param(events("event: ping", "retry: 10", "id: 4", *WHOLE), id="other fields"),
        pytest.param(events(*WHOLE, end="\r\n\r\n"), id="line ends of two characters"),
        pytest.param(events(*WHOLE, end="\n"), id="no empty lines between"),
        pytest.param(events(*WHOLE, done=False), id="no mark of the end"),
        pytest.param(events(*WHOLE).rstrip("\n"), id="no last line end"),
        pytest.param("\n\n  " + events(*WHOLE), id="blanks before"),
        pytest.param(events(*WHOLE).replace("data: ", "data:"), id="no blank after the field"),
        pytest.param(
            events(
                *(piece({"role": "assistant", "content": c}) for c in ("hel", "lo")),
                piece({}, "stop"),
            ),
            id="the role with each piece",
        ),
        pytest.param(
            events(piece({"content": None}), *WHOLE[:2], piece({"content": ""}, "stop")),
            id="null and empty texts",
        ),
        pytest.param(
            events(
                {
                    **piece(),
                    "choices": [
                        {"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}
                    ],
                }
            ),
            id="a whole message in place of pieces",
        ),
        pytest.param(
            events(
                *WHOLE[:2],
                {
                    **piece({}, "stop"),
                    "choices": [
                        *piece({}, "stop")["choices"],
                        {"index": 1, "delta": {"content": "no"}},
                    ],
                },
            ),
            id="another choice beside it",
        ),
        pytest.param(
            "".join(
                f"data: {line}\n"
                for line in json.dumps(
                    answer()
                    | {
                        "choices": [
                            {"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}
                        ]
                    },
                    indent=1,
                ).splitlines()
            )
            + "\n",
            id="one object on many lines",
        ),
        pytest.param(
            events(piece({"content": [{"type": "text", "text": "hello"}]}), piece({}, "stop")),
            id="text as parts",
        ),
        pytest.param(events(*WHOLE) + 'data: {"half', id="rubbish after the end"),
    ],
)
def test_noise_changes_nothing(httpserver, chat, body):
    stream(httpserver, body)
    assert ask(chat(stream=True)).text == "hello"
    assert len(httpserver.log) == 1


def test_reasoning_comes_in_pieces_too(httpserver, chat):
    pieces = [{"reasoning_content": "I "}, {"reasoning_content": "think"}, {"content": "4"}]
    stream(httpserver, events(*map(piece, pieces), piece({}, "stop")))
    reply = ask(chat(stream=True))
    assert (reply.text, reply.reasoning) == ("4", "I think")


def test_characters_that_are_cut_between_two_packets_are_whole(chat):
    body = events(piece({"content": "naïve \u2028 日本"}), piece({}, "stop")).encode()
    text = json.dumps("naïve \u2028 日本", ensure_ascii=False).encode()
    body = body.replace(json.dumps("naïve \u2028 日本").encode(), text)

    def behave(connection, ended):
        connection.sendall(EVENTS)
        for at in range(len(body)):
            connection.sendall(body[at : at + 1])
            ended.wait(0.001)

    with raw_server(behave) as (url, _):
        assert ask(chat(base_url=url, stream=True)).text == "naïve \u2028 日本"


def test_an_endpoint_that_does_not_stream_is_read_whole_and_one_that_always_does_in_pieces(
    httpserver, chat
):
    serve(httpserver, answer())
    assert ask(chat(stream=True)).text == "hello"
    stream(httpserver, events(*WHOLE))
    assert ask(chat()).text == "hello"


@pytest.mark.parametrize(
    ("refusal", "gone"),
    [
        ("Unrecognized request argument supplied: stream_options", "stream_options"),
        ("stream_options: Extra inputs are not permitted", "stream_options"),
        ("Streaming is not supported for this model", "stream"),
    ],
)
def test_what_a_stream_may_not_have_is_left_out_from_then_on(httpserver, chat, refusal, gone):
    serve(httpserver, (400, {"error": {"message": refusal}}), answer(), answer())
    model = chat(stream=True)
    ask(model)
    ask(model)
    assert [gone in request.get_json() for request, _ in httpserver.log] == [True, False, False]


# ---- what is not whole


HALF = piece(call(0, "a", "shell", '{"command": "rm -rf'))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(events(HALF, done=False), id="it just ends"),
        pytest.param(events(HALF), id="its end is marked, but has no reason"),
        pytest.param(events(*WHOLE[:2]), id="a text without its end"),
        pytest.param(
            events(WHOLE[0], 'data: {"choices": [{"del', *WHOLE[1:]), id="a piece is no JSON"
        ),
        pytest.param(
            events(WHOLE[0], 'data: {"choices": [{"del', done=False), id="it ends within a piece"
        ),
        pytest.param(events(*WHOLE[:2], piece({}, "error")), id="an error as its reason"),
        pytest.param(events(HALF, piece({}, "insufficient_system_resource")), id="interrupted"),
        pytest.param(
            events(HALF, {"error": {"message": "upstream died", "code": 502}}), id="an error in it"
        ),
        pytest.param(
            events(HALF, 'event: error\ndata: {"message": "overloaded"}'),
            id="an error by its event",
        ),
        pytest.param(
            events(HALF, 'error: {"code": 500, "message": "x"}'), id="an error as a field"
        ),
        pytest.param(
            events(HALF, '{"error": {"message": "busy", "code": 503}}'), id="a bare error"
        ),
        pytest.param(
            events(HALF, {"object": "error", "message": "x", "code": 500}), id="an error object"
        ),
        pytest.param("data: [DONE]\n\n", id="nothing but its end"),
        pytest.param("", id="nothing"),
    ],
)
def test_what_is_not_whole_is_asked_for_again(httpserver, chat, body):
    stream(httpserver, body, events(*WHOLE))
    reply = ask(chat(stream=True))
    assert (reply.text, reply.calls) == ("hello", ())
    assert len(httpserver.log) == 2


def test_a_stream_that_is_never_whole_says_so(httpserver, chat):
    stream(httpserver, *[events(HALF, done=False)] * QUICK.tries)
    with pytest.raises(ModelUnavailable, match=r"no finish_reason \(tried 5 times\)"):
        ask(chat(stream=True))


def test_an_error_in_a_stream_means_what_it_means_elsewhere(httpserver, chat):
    stream(httpserver, events(HALF, {"error": {"message": "Incorrect API key", "code": 401}}))
    with pytest.raises(ModelUnavailable, match="OPENAI_API_KEY"):
        ask(chat(stream=True))
    assert len(httpserver.log) == 1


def test_a_call_that_was_cut_off_says_so(httpserver, chat):
    stream(httpserver, events(HALF, piece({}, "length")))
    assert ask(chat(stream=True)).finish is Finish.LENGTH


# ---- time and size

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def drip(connection, ended):
    connection.sendall(EVENTS)
    while not ended.wait(0.05):
        connection.sendall(events(piece({"content": "x"}), done=False).encode())


def stand(connection, ended):
    connection.sendall(EVENTS + events(WHOLE[0], done=False).encode())
    ended.wait(20)


def breathe(connection, ended):
    connection.sendall(EVENTS)
    while not ended.wait(0.05):
        connection.sendall(b": still here\n\n")


@pytest.mark.parametrize("behave", [drip, breathe, stand])
def test_no_stream_extends_the_deadline(chat, behave):
    with raw_server(behave) as (url, _):
        started = time.monotonic()
        with pytest.raises(ModelTimeout):
            ask(chat(base_url=url, stream=True), timeout_s=1.0)
        assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("behave", [drip, breathe, stand])
def test_a_stream_is_broken_off_at_once_when_cancelled(chat, behave):
    with raw_server(behave) as (url, _):
        until = time.monotonic() + 0.5
        with pytest.raises(Cancelled):
            ask(chat(base_url=url, stream=True), is_cancelled=lambda: time.monotonic() > until)
        assert time.monotonic() - until < 0.6


def test_a_stream_that_stands_still_is_asked_for_again(chat):
    seen = []

    def behave(connection, ended):
        seen.append(1)
        if len(seen) == 1:
            stand(connection, ended)
        connection.sendall(EVENTS + events(*WHOLE).encode())

    quick = Retries(first_wait_s=0.01, idle_s=0.3)
    with raw_server(behave) as (url, _):
        started = time.monotonic()
        assert ask(chat(base_url=url, stream=True, retries=quick)).text == "hello"
        assert time.monotonic() - started < 2
    assert len(seen) == 2


def flood(start, part):
    def behave(connection, ended):
        connection.sendall(start)
        while not ended.is_set():
            connection.sendall(part)

    return behave


WITHOUT_END = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "part"),
    [
        pytest.param(
            EVENTS, events(piece({"content": "x" * 900}), done=False).encode(), id="stream"
        ),
        pytest.param(EVENTS + b"data: {", b"x" * 1000, id="one endless piece"),
        pytest.param(WITHOUT_END + b'{"choices": "', b"x" * 1000, id="one endless text"),
        pytest.param(WITHOUT_END, b" " * 1000, id="endless blanks"),
    ],
)
def test_a_reply_without_an_end_is_bounded(chat, start, part):
    with raw_server(flood(start, part)) as (url, connections):
        model = chat(base_url=url, most_bytes=1 << 19)
        with pytest.raises(ModelUnavailable, match=r"0\.5 MiB.* max_output_tokens") as told:
            ask(model)
    assert len(connections) == 1  # another try would bring as much
    assert f"{url} sent" in str(told.value)


def test_a_page_without_an_end_is_cut_and_its_status_read(chat):
    start = b"HTTP/1.1 401 No\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>"
    with raw_server(flood(start, b"x" * 1000)) as (url, _):
        started = time.monotonic()
        with pytest.raises(ModelUnavailable, match="OPENAI_API_KEY"):
            ask(chat(base_url=url))
        assert time.monotonic() - started < 3


# ---- a job


def test_nothing_of_a_stream_that_broke_off_is_run(bench, chat, httpserver):
    whole = piece(call(0, "a", "shell", '{"command": "ls"}'))
    stream(
        httpserver,
        events(HALF, done=False),
        events(whole, piece({}, "tool_calls"), USAGE),
        events(HALF, {"error": {"message": "overloaded", "code": 529}}),
        events(*WHOLE, USAGE),
    )
    b = bench()
    b.model = chat(stream=True)
    assert b.drive().answer == "hello"
    assert b.sandbox.ran == ["ls"]
    assert b.history.job.usage.input_tokens == 14
    request = Window().request(b.history, TOOLS)
    assert [m.role.value for m in request.messages[2:]] == ["assistant", "tool", "assistant"]
