"""Tools: schemas from signatures, errors that teach, and nothing that gets into the loop."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import Field

from sandbox.errors import FileRefused, SandboxLost
from sandbox.types import Limits, SandboxSpec
from worker.builtin import Workplace, builtin_tools
from worker.errors import ArgumentsInvalid, InputInvalid, ToolError
from worker.history import History
from worker.hooks import Run
from worker.messages import (
    Job,
    Message,
    Reply,
    ReplyAdded,
    ResultStatus,
    ToolCall,
)
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ok, say
from worker.tools import CallContext, Said, Toolbox, schema_tool, shown_arguments, tool


class Colour(Enum):
    RED = "red"


def paint(
    call: CallContext,
    name: Annotated[str, Field(description="what to paint")],
    colour: Colour = Colour.RED,
    coats: Annotated[int, Field(ge=1, description="how often")] = 1,
    note: str | None = None,
) -> str:
    """Paint something.

    Slowly.
    """
    return f"{name} is {colour.value} {coats} {note} {call.number}"


def run_of(call):
    job = Job(id="j", goal="g")
    store = MemoryStore()
    store.create(job)
    reply = Reply(message=Message(role="assistant", tool_calls=(call,)))
    return Run(History(job, [ReplyAdded(reply=reply)]), store, store.claim("j"))


def call_of(name, arguments="{}"):
    return ToolCall(id="c00000001", name=name, arguments=arguments)


def ask(toolbox, name, arguments="{}"):
    call = call_of(name, arguments)
    return toolbox.run(call, run_of(call))


def test_a_schema_comes_from_the_signature():
    made = tool(paint)
    assert made.name == "paint"
    assert made.description == "Paint something.\n\nSlowly."
    properties = made.parameters["properties"]
    assert list(properties) == ["name", "colour", "coats", "note"]
    assert properties["name"] == {"type": "string", "description": "what to paint"}
    assert properties["coats"]["minimum"] == 1
    assert properties["note"] == {"type": "string"}
    assert made.parameters["required"] == ["name"]
    assert made.parameters["additionalProperties"] is False
    assert made.schema["function"]["name"] == "paint"


def test_a_call_gets_its_arguments_in_their_types():
    result = ask(Toolbox([tool(paint)]), "paint", '{"name": "door", "coats": "2"}')
    assert result.status is ResultStatus.OK
    assert result.text == "status: ok  (call 1)\ndoor is red 2 None 1"


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        ("{}", ["name: missing, required"]),
        ('{"nam": "x"}', ["name: missing, required", "nam: unknown argument; closest: name"]),
        ('{"name": "x", "coats": 0}', ["coats: Input should be greater than or equal to 1, got 0"]),
        ('{"name": "x", "colour": "blue"}', ["colour: Input should be 'red', got 'blue'"]),
        ('{"name": 3, "coats": "two"}', ["name: Input should be a valid string", "coats: "]),
    ],
)
def test_each_wrong_argument_is_listed_with_what_was_expected(arguments, complaints):
    result = ask(Toolbox([tool(paint)]), "paint", arguments)
    assert result.status is ResultStatus.REFUSED
    assert result.text.startswith("status: error  (call 1, not run)\n")
    for complaint in complaints:
        assert complaint in result.text
    assert 'expected: {"name": string; "colour"' in result.text
    assert '"coats": integer, optional' in result.text


def test_an_unknown_tool_lists_the_nearest_names_and_all():
    box = Toolbox(builtin_tools(Workplace(FakeSandbox), ("python_interpreter", "shell")))
    text = ask(box, "python_interp").text
    assert "closest: python_interpreter" in text
    assert "all tools: python_interpreter, shell" in text
    assert ask(box, "multi_tool_use.parallel").status is ResultStatus.REFUSED
    assert ask(box, "").status is ResultStatus.REFUSED


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("python", "python_interpreter"),
        ("PythonInterpreter", "python_interpreter"),
        ("functions.python-interpreter", "python_interpreter"),
        ("code_interpreter", "python_interpreter"),
        ("python_interpreter<|channel|>commentary", "python_interpreter"),
        ("bash", "shell"),
        ("Shell", "shell"),
    ],
)
def test_a_tool_is_known_under_its_usual_names(name, meant):
    box = Toolbox(builtin_tools(Workplace(FakeSandbox), ("python_interpreter", "shell")))
    result = ask(box, name)
    assert f"the arguments of {meant} are not valid" in result.text


@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "pyth", "shell_python", "", "…", "ls"])
def test_a_name_that_may_be_anything_is_no_tool(name):
    box = Toolbox(builtin_tools(Workplace(FakeSandbox), ("python_interpreter", "shell")))
    assert "there is no tool" in ask(box, name).text


def test_a_usual_name_means_nothing_where_the_tool_is_not_allowed():
    assert "there is no tool 'bash'" in ask(Toolbox([tool(paint)]), "bash").text


@pytest.mark.parametrize(
    "name", ["paint<|channel|>commentary", "paint <|end|>", "functions.paint", "paint\n"]
)
def test_what_leaks_behind_a_name_is_dropped_and_reported(name):
    result = ask(Toolbox([tool(paint)]), name, '{"name": "x"}')
    assert result.status is ResultStatus.OK
    assert "your call had to be repaired: the tool's name was" in result.text


def test_mended_json_is_reported_with_the_result():
    result = ask(Toolbox([tool(paint)]), "paint", '{"name": "x",}')
    assert result.status is ResultStatus.OK
    assert "note: your call had to be repaired" in result.text
    assert result.repaired


def test_a_call_without_a_required_field_never_runs_even_after_a_repair():
    ran = []

    def act(target: str) -> str:
        ran.append(target)
        return "did"

    box = Toolbox([tool(act)])
    for text in ("{}", "", "{target: }", '{"x": 1,}', "nothing", '{"target": "x'):
        assert ask(box, "act", text).status is ResultStatus.REFUSED
    assert ran == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such row", hint="count them"), "no such row"),
        (ZeroDivisionError("by zero"), "the tool itself broke: ZeroDivisionError: by zero"),
        (FileRefused("x is a link"), "x is a link"),
    ],
)
def test_what_goes_wrong_in_a_tool_is_data_for_the_model(error, text):
    def fail() -> str:
        raise error

    result = ask(Toolbox([tool(fail)]), "fail")
    assert result.status is ResultStatus.ERROR
    assert text in result.text
    assert result.hint == getattr(error, "hint", None)


def test_no_more_of_an_output_is_read_than_may_be_read_from_the_sandbox(bench):
    def respond(sandbox, kind, text):
        sandbox.contents["1.txt"] = b"long " * 10
        return ok("cut", output_truncated=True, output_file="1.txt")

    calls = [("python_interpreter", {"code": "1"}), ("read_output", {"call": 1})]
    b = bench(say(None, *calls), say("done"), respond=respond)
    b.sandbox.spec = SandboxSpec(limits=Limits(read_bytes=9))
    b.drive()
    assert "50 bytes, the limit is 9" in b.results[1].text


def test_infrastructure_failure_passes():
    def fail() -> str:
        raise SandboxLost("gone")

    with pytest.raises(SandboxLost):
        ask(Toolbox([tool(fail)]), "fail")


def test_a_name_is_registered_once():
    box = Toolbox([tool(paint)])
    with pytest.raises(InputInvalid, match="already"):
        box.add(tool(paint))
    with pytest.raises(InputInvalid, match="cannot be the name"):
        box.add(tool(paint, name="no name"))


def test_files_that_a_tool_made_are_reported():
    sandbox = FakeSandbox()
    sandbox.contents["a.txt"] = b"12345"

    def make() -> Said:
        return Said(text="made", files=(sandbox.info("a.txt"),))

    result = ask(Toolbox([tool(make)]), "make")
    assert "new or changed files: a.txt (5 B)" in result.text
    assert result.files[0].name == "a.txt"


def test_an_execution_is_told_in_the_one_shape():
    def run(code: str) -> object:
        return ok("printed", value="4", duration_s=1.25)

    run.__annotations__["return"] = object
    result = ask(Toolbox([tool(run)]), "run", '{"code": "x"}')
    assert result.text == (
        "status: ok  (call 1, ran 1.2 s, interpreter kept)\noutput:\nprinted\nvalue:\n4"
    )


def test_unknown_tools_of_an_allow_list_are_refused_with_the_nearest():
    with pytest.raises(InputInvalid, match=r"unknown tool 'shel'.*closest: shell"):
        builtin_tools(Workplace(FakeSandbox), ("shel",))


def test_arguments_are_shown_to_people_as_they_are_meant():
    assert shown_arguments(call_of("x", '{"a": 1, "b": "t"}')) == {"a": "1", "b": "t"}
    assert shown_arguments(call_of("x", "{half")) == "{half"


# ---- tools that are declared as JSON Schema

SCHEMA = {
    "type": "object",
    "properties": {
        "host": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "mode": {"enum": ["fast", "slow"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "deep": {
            "type": "object",
            "properties": {"x": {"type": ["number", "null"]}},
            "additionalProperties": False,
        },
    },
    "required": ["host"],
}


def check(arguments, schema=SCHEMA):
    return schema_tool("ping", "Ping.", schema, str).validate(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": "a"},
        {"host": "a", "port": 1, "mode": "fast", "tags": ["x"], "deep": {"x": None}},
        {"host": "a", "deep": {"x": 1.5}},
    ],
)
def test_json_schema_tools_take_what_their_schema_takes(arguments):
    assert check(arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "host: missing, required"),
        ({"host": "A"}, "does not match"),
        ({"host": "abcdefghi"}, 'host: "abcdefghi" is too long'),
        ({"host": "a", "port": "1"}, "port: \"1\" is not of type 'integer'"),
        ({"host": "a", "port": True}, "port: true is not of type 'integer'"),
        ({"host": "a", "port": 0}, "port: 0 is less than the minimum of 1"),
        ({"host": "a", "mode": "x"}, r"mode: \"x\" is not one of \['fast', 'slow'\]"),
        ({"host": "a", "tags": [1]}, r"tags\[0\]: 1 is not of type 'string'"),
        ({"host": "a", "tags": ["a", "b", "c"]}, "tags: .* is too long"),
        ({"host": "a", "deep": {"y": 1}}, r"deep\.y: unknown, not allowed"),
        ({"host": "a", "hots": "b"}, "hots: unknown, not allowed; closest: host"),
    ],
)
def test_json_schema_tools_refuse_the_rest(arguments, complaint):
    with pytest.raises(ArgumentsInvalid, match=complaint):
        check(arguments)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": []},
        {"properties": {"a": {"$ref": "#/x"}}},
        {"properties": {"a": {"type": "text"}}},
        {"properties": {"a": {"type": "array", "items": {"format": "colour"}}}},
    ],
)
def test_a_schema_that_would_not_be_enforced_is_refused_at_the_door(schema):
    with pytest.raises(InputInvalid, match="tool ping: "):
        check({}, schema)


def test_json_schema_tools_run_by_the_same_door():
    made = schema_tool("ping", "Ping.", SCHEMA, lambda a: f"pinged {a['host']}")
    box = Toolbox([tool(paint), made])
    assert box.names == ("paint", "ping")
    assert ask(box, "ping", '{"host": "a"}').text.endswith("pinged a")
    assert "expected: {" in ask(box, "ping", "{}").text


def literal(kind: Literal["a", "b"]) -> str:
    """Take one of two."""
    return kind


def test_choices_are_told_as_choices():
    assert '"kind": one of a, b' in ask(Toolbox([tool(literal)]), "literal").text


# ---- what a tool is made of is looked at once


def greeter(greeting, **more):
    def greet(call: CallContext, name: str = greeting) -> str:
        return f"{greeting}, {name} ({call.number})"

    return tool(greet, **more)


def test_tools_of_one_function_share_their_form_and_nothing_else():
    one, other = greeter("hello"), greeter("hello")
    assert one.parameters is other.parameters
    assert one.run is not other.run


def test_another_default_or_name_is_another_form():
    tools = [greeter("hello"), greeter("goodbye"), greeter("hello", name="salute")]
    assert [t.validate({})["name"] for t in tools] == ["hello", "goodbye", "hello"]
    assert [t.name for t in tools] == ["greet", "greet", "salute"]
    with pytest.raises(ArgumentsInvalid, match="arguments of salute"):
        tools[2].validate({"name": 1})


def test_the_same_code_elsewhere_is_another_form():
    text = "def say(text: Kind) -> str:\n    return str(text)\n"
    code = compile("from __future__ import annotations\n" + text, "same", "exec")
    spaces = [{"Kind": int}, {"Kind": str}]
    for space in spaces:
        exec(code, space)  # two modules with one text
    kinds = [tool(space["say"]).parameters["properties"]["text"]["type"] for space in spaces]
    assert kinds == ["integer", "string"]


def test_what_is_added_to_a_box_is_offered():
    box = Toolbox([greeter("hello")])
    before = box.schemas
    assert box.schemas is before
    box.add(greeter("hello", name="salute"))
    assert [schema["function"]["name"] for schema in box.schemas] == ["greet", "salute"]
