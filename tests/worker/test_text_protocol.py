"""Models that call in text: over real HTTP, with the real loop, in every protocol."""

from __future__ import annotations

import json

import pytest
from werkzeug import Response

from tests.worker.served import answer, sent, serve
from worker.arguments import read_arguments
from worker.assembly import make_model
from worker.conversation import check_request
from worker.errors import ToolsUnsupported
from worker.messages import FinishReason, Message, ResultStatus, Role
from worker.models.base import Model, Request
from worker.models.recording import RecordingModel
from worker.models.text_protocol import TextProtocol
from worker.models.text_tools import TextTools, describe_tools, written_call
from worker.settings import Settings
from worker.testing import ScriptedModel, ok, say

ONE = '{"name": "python_interpreter", "arguments": {"code": "print(1)"}}'
CALL = f"<tool_call>\n{ONE}\n</tool_call>"
CODE = {"properties": {"code": {"type": "string"}}, "required": ["code"]}
TOOL = {"name": "shell", "description": "Run.\n\n  It runs.", "parameters": {}}
SCHEMA = {
    "properties": {
        "code": {"type": "string", "description": "what to run"},
        "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["code"],
}


@pytest.fixture
def talk(bench, chat, httpserver):
    """Run a job with an endpoint that says `said` in turn: texts, messages, or (status, error)."""

    def run(*said, protocol="auto", goal=None, settings=(), **options):
        replies = [one if isinstance(one, tuple) else answer(_message(one)) for one in said]
        serve(httpserver, *replies)
        b = bench(**dict(settings), **options)
        if goal:
            b.job = b.job.model_copy(update={"id": "asked", "goal": goal})
            b.store.create(b.job)
        b.model = chat()
        if protocol != "native":
            b.model = TextProtocol(b.model, in_text=protocol == "text")
        b.drive()
        return b

    return run


def _message(said):
    return said if isinstance(said, dict) else say(said)


# ---- natively first


def test_a_call_in_text_runs_and_is_reported_as_repaired(talk):
    b = talk(CALL, "done")
    assert b.history.job.answer == "done"
    assert b.sandbox.ran == ["print(1)"]
    assert b.results[0].status is ResultStatus.OK
    assert "the call came as text" in b.results[0].text
    assert "the call came as text" in b.history.turns[1].calls[0].repaired


@pytest.mark.parametrize(
    ("said", "ran"),
    [
        (f"I will look.\n{CALL}", ["print(1)"]),
        (CALL.replace("python_interpreter", "functions.python<|channel|>x"), ["print(1)"]),
        (f"{CALL}\n{CALL.replace('1', '2')}", ["print(1)", "print(2)"]),
        (
            '```json\n{"name": "python", "arguments": {"code": """print("a")"""}}\n```',
            ['print("a")'],
        ),
        ("Action: python\nAction Input: print(1)\nObservation: 1\nFinal Answer: 1", ["print(1)"]),
        ("```python\nprint(1)\n```", ["print(1)"]),
        ("Let me see:\n```bash\nls\n```", ["ls"]),
    ],
)
def test_what_models_really_write_runs(talk, said, ran):
    b = talk(said, "done")
    assert (b.sandbox.ran, b.history.job.answer) == (ran, "done")


@pytest.mark.parametrize(
    "said",
    [
        f"I used {ONE} to find it: the answer is 1.",
        f"I ran this:\n```json\n{ONE}\n```\nIt printed 1, which is the answer.",
        "The answer is 1:\n```python\nprint(1)\n```\nprints it.",
        "The result, in three lines:\n```\n1\n```\nFINAL: it is 1.",
        "[1, 2, 3]",
        '{"mean": 4.5}',
    ],
)
def test_what_quotes_a_call_or_shows_code_is_the_answer(talk, said):
    b = talk(said)
    assert (b.sandbox.ran, b.history.job.answer) == ([], said)


def test_a_name_with_a_tail_in_a_native_call_runs_too(talk):
    b = talk(say(None, ("python_interpreter<|channel|>commentary", {"code": "1"})), "done")
    assert b.sandbox.ran == ["1"]


def test_glued_arguments_run_once_and_say_so(talk):
    b = talk(say(None, ("shell", '{"command": "ls"}{"command": "pwd"}')), "done")
    assert b.sandbox.ran == ["ls"]
    assert "text after the JSON was dropped" in b.results[0].text


def test_code_is_not_run_for_a_model_that_makes_calls_natively(talk):
    shown = "```python\nprint(1)\n```"
    b = talk(say(None, ("shell", {"command": "ls"})), shown, f"{shown}\nprints 1.")
    assert b.sandbox.ran == ["ls"]
    assert b.history.job.answer == f"{shown}\nprints 1."
    assert "Nothing of the code in your reply was run" in b.notices[0].text


def test_code_is_not_run_for_somebody_who_asks_for_code(talk):
    shown = "```python\ndef one():\n    return 1\n```"
    b = talk(shown, goal="Write a function that returns 1.")
    assert (b.sandbox.ran, b.history.job.answer) == ([], shown)


def test_code_that_is_sent_again_is_the_answer(talk):
    shown = "You can run:\n```python\nprint(1)\n```"
    b = talk(shown, shown)
    assert (b.sandbox.ran, b.history.job.answer) == ([], shown)


def test_nothing_of_a_text_that_was_cut_off_is_a_call(talk):
    b = talk((200, answer(say(CALL), finish="length")), "done")
    assert (b.sandbox.ran, b.history.job.answer) == ([], "done")


def test_natively_alone_a_call_in_text_is_sent_back(talk):
    b = talk(CALL, "done", protocol="native")
    assert (b.sandbox.ran, b.history.job.answer) == ([], "done")
    assert "was not made as one (it came as text, not through" in b.notices[0].text


def test_natively_alone_code_is_sent_back_once(talk):
    b = talk("```python\nprint(1)\n```", "It is 1.", protocol="native")
    assert (b.sandbox.ran, b.history.job.answer) == ([], "It is 1.")
    assert "To run it, call a tool; the tools are: python_interpreter, " in b.notices[0].text


def test_what_is_nearly_a_call_is_sent_back_with_the_place(talk):
    b = talk('<tool_call>{"name": "shell", "arguments": {"command": "rm</tool_call>', "done")
    assert (b.sandbox.ran, b.history.job.answer) == ([], "done")
    assert "not closed at line 1 column" in b.notices[0].text


# ---- in text


def test_in_text_no_field_but_texts_is_sent_and_the_roles_alternate(talk, httpserver):
    b = talk(
        f"I look.\n{CALL}\n{CALL.replace('1', '2')}",
        say(None, ("shell", {"command": "ls"})),
        "```python\nprint(3)\n```",
        "Nothing.",
        protocol="text",
        respond=lambda _sandbox, _kind, text: ok(f"<{text}>"),
    )
    assert b.sandbox.ran == ["print(1)", "print(2)", "ls", "print(3)"]
    bodies = [request.get_json() for request, _ in httpserver.log]
    for body in bodies:
        assert not body.keys() & {"tools", "functions", "tool_choice"}
        assert [m.keys() for m in body["messages"]] == [{"role", "content"}] * len(body["messages"])
        roles = [m["role"] for m in body["messages"]]
        assert roles[:1] + roles[1::2] == ["system", *["user"] * ((len(roles)) // 2)]
        assert set(roles[2::2]) <= {"assistant"}
    _, _, said, results, *_ = bodies[-1]["messages"]
    assert said["content"] == f"I look.\n{CALL}\n{CALL.replace('1', '2')}"
    assert results["content"].count("<tool_result>\nstatus: ok") == 2
    assert "<print(1)>" in results["content"]


def test_in_text_the_form_that_was_asked_for_is_no_repair(talk):
    script = [CALL, CALL.replace('"print(1)"', '"""print("a")"""'), f"```json\n{ONE}\n```", "done"]
    b = talk(*script, protocol="text")
    assert b.sandbox.ran == ["print(1)", 'print("a")', "print(1)"]
    assert [bool(result.repaired) for result in b.results] == [False, False, True]
    assert "was not written as it was asked for" in b.results[2].text


def test_in_text_the_last_turn_knows_no_tools(talk, httpserver):
    b = talk(CALL, "About 1.", protocol="text", settings={"max_steps": 1})
    assert b.history.job.finish_reason is FinishReason.BUDGET
    assert b.history.job.answer == "About 1."
    assert "# Tools" in httpserver.log[0][0].get_json()["messages"][0]["content"]
    assert "# Tools" not in sent(httpserver)["messages"][0]["content"]


UNSUPPORTED = (400, {"error": {"message": "registry/m does not support tools"}})


def test_an_endpoint_without_tools_is_asked_in_text_for_the_rest_of_the_job(talk, httpserver):
    b = talk(UNSUPPORTED, CALL, f"```json\n{ONE}\n```", "done")
    assert b.history.job.answer == "done"
    assert ["tools" in r.get_json() for r, _ in httpserver.log] == [True, False, False, False]
    assert "asked in text from now on" in b.watching.of("reply")[0].reply.remarks[0]


def test_what_the_endpoint_refuses_in_text_as_well_is_an_error():
    model = TextProtocol(ScriptedModel([ToolsUnsupported("no"), say("x")]))
    with pytest.raises(ToolsUnsupported):
        model.reply(Request(messages=(Message(role=Role.SYSTEM, content="s"),)), **NOW)


NOW = {"timeout_s": 1, "is_cancelled": lambda: False}


def test_without_tools_nothing_is_a_call():
    model = TextProtocol(ScriptedModel([say(ONE)]))
    assert isinstance(model, Model)
    reply = model.reply(Request(messages=()), **NOW)
    assert (reply.calls, reply.text) == ((), ONE)


# ---- one job, however it is told

JOB = [
    ("I look.", [("shell", {"command": "ls"})]),
    (
        "",
        [
            ("python_interpreter", {"code": 'print("a\\n")\nx = """y"""'}),
            ("shell", {"command": "x"}),
        ],
    ),
    ("", [("python", {"code": "1"})]),
    ("It is 4.", []),
]


def in_tags(text, calls):
    told = [json.dumps({"name": n, "arguments": a}) for n, a in calls]
    return say("\n".join([text, *(f"<tool_call>\n{t}\n</tool_call>" for t in told)]))


def in_fences(text, calls):
    told = [json.dumps({"tool": n, "args": a}) for n, a in calls]
    return say("\n".join([text, *(f"```json\n{t}\n```" for t in told)]))


WAYS = {
    "native": lambda text, calls: say(text or None, *calls),
    "auto": in_tags,
    "text": in_tags,
    "fenced": in_fences,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_makes_the_same_calls_in_every_protocol(bench, chat, httpserver, way):
    def serve_job(request):
        body = request.get_json()
        if way in {"text", "fenced"}:
            assert "tools" not in body
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        return Response(json.dumps(answer(WAYS[way](*JOB[turn]))), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(serve_job)
    b = bench()
    model = chat()
    in_text = way in {"text", "fenced"}
    b.model = model if way == "native" else TextProtocol(model, in_text=in_text)
    assert b.drive().answer == "It is 4."
    assert b.sandbox.ran == ["ls", 'print("a\\n")\nx = """y"""', "x", "1"]
    calls = [(c.name, read_arguments(c.arguments)[0]) for t in b.history.turns for c in t.calls]
    assert [given for _, given in calls] == [a for _, calls in JOB for _, a in calls]


def test_what_was_recorded_in_text_makes_the_same_calls_when_it_is_replayed(bench, tmp_path):
    script = [
        in_tags(*JOB[0]),
        say("```python\nprint(1)\n```"),
        in_fences(*JOB[1]),
        say("It is 4."),
    ]
    recording = tmp_path / "recording.jsonl"
    b = bench(*script)
    b.model = TextProtocol(RecordingModel(b.model, recording), in_text=True)
    assert b.drive().answer == "It is 4."
    for protocol in ("auto", "text"):
        again = bench()
        again.model = make_model(Settings(tool_protocol=protocol), replay=recording)
        assert again.drive().answer == "It is 4."
        assert (
            again.sandbox.ran
            == b.sandbox.ran
            == ["ls", "print(1)", 'print("a\\n")\nx = """y"""', "x"]
        )


def test_the_protocol_is_a_setting(bench, tmp_path):
    recording = tmp_path / "recording.jsonl"
    recording.write_text(json.dumps(say(CALL)) + "\n" + json.dumps(say("done")))
    for protocol, ran in (("native", []), ("auto", ["print(1)"]), ("text", ["print(1)"])):
        b = bench()
        b.model = make_model(Settings(tool_protocol=protocol), replay=recording)
        assert b.drive().answer == "done"
        assert b.sandbox.ran == ran


# ---- what is written


def test_tools_are_described_in_few_words():
    tools = [{"function": TOOL}, {"function": {**TOOL, "name": "run", "parameters": SCHEMA}}]
    told = describe_tools(tools, {})
    assert "- shell {}: Run. It runs.\n" in told
    given = (
        '{"code": string; "n": integer or null, optional; "tags": array of one of a, b, optional}'
    )
    assert f"- run {given}: Run. It runs.\n  code: what to run" in told


def test_tools_that_take_code_are_called_with_a_block_unless_code_is_the_answer():
    run = {"function": {"name": "python_interpreter", "description": "Run.", "parameters": CODE}}
    tools = ({"function": TOOL}, run)

    def asked(goal):
        messages = (Message(role=Role.SYSTEM, content="s"), Message(role=Role.USER, content=goal))
        told = TextTools().rewritten(Request(messages=messages, tools=tools)).messages[0].text
        return "python_interpreter: Run. It is called with a block of code:\n```python" in told

    assert asked("Count the rows.")
    assert not asked("Write a function that counts rows.")


def test_a_call_in_a_block_is_written_back_as_one_and_what_follows_it_is_dropped(talk, httpserver):
    said = "The answer needs this:\n```python\nprint(1)\n```\nThe result is 7."
    b = talk(said, "1", protocol="text")
    assert (b.sandbox.ran, b.history.job.answer) == (["print(1)"], "1")
    assert "what followed the call was dropped" in b.results[0].repaired
    said = sent(httpserver)["messages"][2]["content"]
    assert said == "The answer needs this:\n```python\nprint(1)\n```"


def test_a_model_that_calls_in_text_alone_is_asked_in_text_from_then_on(talk, httpserver):
    b = talk(CALL, "```python\nprint(2)\n```", "2")
    assert b.sandbox.ran == ["print(1)", "print(2)"]
    assert ["tools" in r.get_json() for r, _ in httpserver.log] == [True, False, False]


def test_a_model_that_has_called_natively_keeps_its_tools(talk, httpserver):
    native = say(None, ("shell", {"command": "ls"}))
    talk(CALL, native, CALL, "2")
    assert ["tools" in r.get_json() for r, _ in httpserver.log] == [True, False, True, True]


def test_a_request_that_grows_is_not_written_again():
    messages = [
        Message(role=Role.SYSTEM, content="s"),
        Message(role=Role.USER, content="g"),
        Message.from_wire(say(None, ("shell", {"command": "ls"}))),
        Message(role=Role.TOOL, content="a.csv", tool_call_id="call_0"),
    ]
    check_request(messages)
    writer = TextTools()
    first = writer.rewritten(Request(messages=tuple(messages)))
    more = [Message(role=Role.ASSISTANT, content="?"), Message(role=Role.USER, content="!")]
    again = writer.rewritten(Request(messages=(*messages, *more)))
    assert all(one is other for one, other in zip(first.messages, again.messages, strict=False))
    assert [m.role for m in again.messages[2:]] == [Role.ASSISTANT, Role.USER] * 2


def test_a_call_that_cannot_be_read_is_written_as_it_was():
    call = Message.from_wire(say(None, ("shell", '{"command": "rm'))).tool_calls[0]
    assert '"arguments": {"command": "rm}' in written_call(call, {})
