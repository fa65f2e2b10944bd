"""Calls that come as text are calls; prose that mentions them, and code that is shown, are not."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.arguments import read_arguments
from worker.builtin import Workplace, builtin_tools
from worker.errors import ArgumentsInvalid
from worker.models.text_calls import (
    Offered,
    asks_for_code,
    is_only_code,
    read_calls,
    read_code,
    unreadable,
)
from worker.testing import FakeSandbox

TOOLS = [t.schema for t in builtin_tools(Workplace(FakeSandbox), ("python_interpreter", "shell"))]
OFFERED = Offered.of(TOOLS)
MORE = ("python_interpreter", "shell", "read_file")
PYTHONIC = Offered.of(t.schema for t in builtin_tools(Workplace(FakeSandbox), MORE))
ONE = '{"name": "python_interpreter", "arguments": {"code": "print(1)"}}'
LIST = '{"name": "shell", "arguments": {"command": "ls"}}'
GOAL = "What is the mean of x in data.csv?"


def read(text):
    written = read_calls(text, OFFERED)
    if written is None:
        return None
    calls = [(c.name, read_arguments(c.arguments)[0]) for c in written.calls]
    return written.said, calls


CALL = [("python_interpreter", {"code": "print(1)"})]
LS = [("shell", {"command": "ls"})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"<tool_call>{ONE}</tool_call>", ""),
        (f"<tool_call>\n{ONE}\n</tool_call>\n", ""),
        (f"I will look.\n<tool_call>\n{ONE}\n</tool_call>", "I will look."),
        (f"I will look: <tool_call>{ONE}</tool_call>", "I will look:"),
        (f"<tool_call>\n{ONE}", ""),
        (f"<tool_call>\n```json\n{ONE}\n```\n</tool_call>", ""),
        (f"```\n<tool_call>\n{ONE}\n</tool_call>\n```", ""),
        (f"<function_call>{ONE}</function_call>", ""),
        (f"<tool_calls>[{ONE}]</tool_calls>", ""),
        ('<function=python_interpreter>{"code": "print(1)"}</function>', ""),
        (
            "<tool_call>\n<function=python_interpreter>\n<parameter=code>\nprint(1)\n</parameter>\n"
            "</function>\n</tool_call>",
            "",
        ),
        (f"[TOOL_CALLS][{ONE}]", ""),
        ('[TOOL_CALLS]python_interpreter[ARGS]{"code": "print(1)"}', ""),
        (f"```json\n{ONE}\n```", ""),
        (f"```tool_call\n{ONE}\n```", ""),
        (f"```\n{ONE}\n```", ""),
        (f"Let me load it.\n\n```json\n{ONE}\n```".replace("\n\n", "\n"), "Let me load it."),
        (ONE, ""),
        (f"Let me see.\n{ONE}", "Let me see."),
        (f"[{ONE}]", ""),
        ('{"name": "python_interpreter", "parameters": {"code": "print(1)"}}', ""),
        ('{"tool": "python_interpreter", "args": {"code": "print(1)"}}', ""),
        ('{"tool_name": "python_interpreter", "input": {"code": "print(1)"}}', ""),
        ('{"function": "python_interpreter", "arguments": {"code": "print(1)"}}', ""),
        ('{"action": "python_interpreter", "action_input": "print(1)"}', ""),
        ('{"function": {"name": "python_interpreter", "arguments": {"code": "print(1)"}}}', ""),
        (
            '{"id": "1", "type": "function", "function": {"name": "python_interpreter", '
            '"arguments": "{\\"code\\": \\"print(1)\\"}"}}',
            "",
        ),
        (json.dumps({"tool_calls": [{"type": "function", "function": json.loads(ONE)}]}), ""),
        (json.dumps({"name": "python_interpreter", "arguments": '{"code": "print(1)"}'}), ""),
        ("{'name': 'python_interpreter', 'arguments': {'code': 'print(1)'}}", ""),
        (
            'Thought: I look.\nAction: python_interpreter\nAction Input: {"code": "print(1)"}',
            "Thought: I look.",
        ),
        ("Action: python_interpreter\nAction Input: print(1)", ""),
        ("**Action:** `python_interpreter`\n**Action Input:**\n```python\nprint(1)\n```", ""),
        ('<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}</tool_call>', ""),
        ('{"name": "functions.python_interpreter<|x|>", "arguments": {"code": "print(1)"}}', ""),
    ],
)
def test_a_reply_that_is_a_call_is_a_call(text, said):
    assert read(text) == (said, CALL)


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{ONE}</tool_call>\n<tool_call>{LIST}</tool_call>",
        f"<tool_call>{ONE}\n{LIST}</tool_call>",
        f"<tool_call>{ONE}</tool_call>\n<tool_call>{LIST}",
        f"[TOOL_CALLS][{ONE}, {LIST}]",
        f"```json\n{ONE}\n{LIST}\n```",
        f"```json\n{ONE}\n```\n\n```json\n{LIST}\n```",
        f"{ONE}\n{LIST}",
        f"{ONE}{LIST}",
        f"[{ONE}, {LIST}]",
    ],
)
def test_several_calls_in_one_reply(text):
    assert read(text) == ("", CALL + LS)


CODE = 'import pandas as pd\nprint("a\\n", df["x"].mean())'


@pytest.mark.parametrize("quotes", ['"""', "'''", "`"])
def test_code_in_quotes_of_its_own_is_read_as_it_stands(quotes):
    text = (
        '```json\n{\n  "name": "python_interpreter",\n  "arguments": {\n'
        f'    "code": {quotes}{CODE}{quotes}\n  }}\n}}\n```'
    )
    assert read(text) == ("", [("python_interpreter", {"code": CODE})])
    assert "escaped" in read_calls(text, OFFERED).calls[0].repaired


def test_raw_newlines_in_the_code_are_read():
    text = '<tool_call>{"name": "shell", "arguments": {"command": "cd x\nls"}}</tool_call>'
    assert read(text)[1] == [("shell", {"command": "cd x\nls"})]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 4.",
        f"You could call {ONE} to see it.",
        f"You could use this call:\n{ONE}",
        f"For example:\n```json\n{ONE}\n```",
        f"I ran this:\n```json\n{ONE}\n```",
        f"Here is what I ran:\n```json\n{ONE}\n```\nand it printed 1.",
        f"```json\n{ONE}\n```\nThis prints 1.",
        f"```json\n{ONE}\n```\nI ran it, and it will print 1.",
        f"```json\n{ONE}\n```\nIt will be `1`.",
        f"For example:\n```\n<tool_call>{ONE}</tool_call>\n```",
        f"<tool_call>{ONE}</tool_call> is how calls are written.",
        f"Calls are written `<tool_call>{ONE}</tool_call>`",
        f"A call is <tool_call>{ONE}</tool_call>",
        '{"name": "Alice", "arguments": {"age": 3}}',
        '{"name": "shell", "command": "ls"}',
        '{"name": "shell"}',
        '{"name": "shell", "arguments": {"command": "ls"}, "result": "ok"}',
        '{"name": "shell", "arguments": {"command": "ls"}, "parameters": {"command": "rm"}}',
        f'{ONE}{{"mean": 1}}',
        '{"mean": 4.5}',
        "[1, 2, 3]",
        "[]",
        "```python\nprint(1)\n```",
        '<tool_call>{"name": "shell", "arguments": {"command": "rm</tool_call>',
        '<tool_call>{"name": "shell", "arguments": {"command": "rm"}',
        f"```json\n{ONE}",
        "<function=shell><parameter=command>rm -rf",
        '{"name": "shell", "arguments": [1]}',
        '{"name": "search_web", "arguments": {"query": "x"}}',
        f"The API accepts the object below.\n\n{ONE}",
        f"Here is the request format:\n```json\n{ONE}\n```",
        f"The payload of a call:\n{ONE}",
        f"A call is written as follows.\n{ONE}",
        f"This is what it looks like:\n```json\n{ONE}\n```",
        "Thought: all is known.\nFinal Answer: 4",
        "Final Answer: 4\nAction: shell\nAction Input: ls",
        "Action: none\nAction Input: none",
        "Action: shell\nAction Input:",
        "Action: shell\nAction Input: ```bash\nrm",
        "<tool_call>" * 50,
        "<function=sh",
        "<function=>{}</function>",
        "<tool_call><function=shell",
        "[" * 5000,
    ],
)
def test_anything_else_is_what_it_says(text):
    assert read(text) is None


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{LIST}</tool_call>\n<tool_result>\na.csv\n</tool_result>\nIt is a.csv.",
        f"```json\n{LIST}\n```\n\n**Output:**\n```\na.csv\n```",
        f"{LIST}\nObservation: a.csv",
        f"```json\n{LIST}\n```\n\nThis will list the files. Once I have them, I go on.",
        "Action: shell\nAction Input: ls\nObservation: a.csv\nThought: done\nFinal Answer: a.csv",
        'Action: shell\nAction Input: {"command": "ls"}\nObservation: a.csv',
        'Action: shell\nAction Input: {"command": "ls"}\n\nAction: shell\nAction Input: rm a.csv',
    ],
)
def test_what_the_model_makes_up_as_the_result_is_dropped_and_reported(text):
    assert read(text) == ("", LS)
    assert "what followed the call was dropped" in read_calls(text, OFFERED).calls[0].repaired


def test_an_input_that_cannot_be_read_is_left_for_the_tool_to_refuse():
    (call,) = read_calls('Action: shell\nAction Input: {"command": "rm', OFFERED).calls
    with pytest.raises(ArgumentsInvalid, match="not closed"):
        read_arguments(call.arguments)


def test_a_name_that_was_mended_is_reported():
    (call,) = read_calls('{"name": "bash", "arguments": {"command": "ls"}}', OFFERED).calls
    assert (call.name, call.repaired) == ("shell", "the tool's name was 'bash'")


@pytest.mark.parametrize("name", ["final_answer", "FinalAnswer", "finish", "submit"])
def test_an_answer_may_be_written_as_a_call(name):
    text = f'<tool_call>{{"name": "{name}", "arguments": {{"answer": "4"}}}}</tool_call>'
    assert read(text) == ("", [(name, {"answer": "4"})])


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, None),
        ({"required": ["a"]}, None),
        ({"required": ["a"], "properties": {"a": True}}, None),
        ({"required": ["a"], "properties": {"a": {"type": "integer"}}}, None),
        ({"required": ["a", "b"], "properties": {"a": {"type": "string"}}}, None),
        ({"required": ["a"], "properties": {"a": {"type": "string"}, "b": {}}}, "a"),
    ],
)
def test_a_plain_text_is_for_a_tool_that_needs_one_text(parameters, text):
    offered = Offered.of([{"function": {"name": "fly", "parameters": parameters}}])
    assert offered.text("fly") == text


# ---- code

RUNS = "```python\nprint(1)\n```"


@pytest.mark.parametrize(
    "text",
    [
        RUNS,
        f"Let me load the data:\n{RUNS}",
        f"First, the columns.\n\n{RUNS}".replace("\n\n", "\n"),
        "```py\nprint(1)\n```\n",
        f"{RUNS}\nOutput:\n```\n1\n```",
    ],
)
def test_a_reply_of_code_alone_is_run_where_nobody_asked_for_code(text):
    written = read_code(text, OFFERED, GOAL)
    assert [(c.name, json.loads(c.arguments)) for c in written.calls] == CALL


def test_shell_code_goes_to_the_shell():
    assert read_code("```bash\nls\n```", OFFERED, GOAL).calls[0].arguments == '{"command": "ls"}'


@pytest.mark.parametrize(
    "text",
    [
        "The mean is 4.",
        f"{RUNS}\nThis prints 1.",
        f"{RUNS}\nThis will print 1.",
        f"You can run:\n{RUNS}",
        f"I used this code:\n{RUNS}",
        f"The final script:\n{RUNS}",
        f"Here is an example:\n{RUNS}",
        f"The answer:\n{RUNS}",
        f"A long story.\n\nWith paragraphs.\n{RUNS}",
        f"{RUNS}\n{RUNS}",
        "```python\n>>> print(1)\n1\n```",
        "```bash\n$ ls\na.csv\n```",
        "```python\nprint(1)",
        "```python\n\n```",
        "```\nprint(1)\n```",
        "```r\nprint(1)\n```",
        "```sql\nselect 1\n```",
    ],
)
def test_code_that_is_shown_is_not_run(text):
    assert read_code(text, OFFERED, GOAL) is None


@pytest.mark.parametrize(
    "goal",
    [
        "Write a function that prints 1.",
        "Show me the shell command for it.",
        "How do I compute a mean with pandas?",
        "Give me a short Python script to sum x.",
        "What code computes the mean?",
        "Implement quicksort.",
        "Write a SQL query for it.",
        "Explain how to do it.",
    ],
)
def test_code_is_not_run_where_it_may_be_the_answer(goal):
    assert asks_for_code(goal)
    assert read_code(RUNS, OFFERED, goal) is None


@pytest.mark.parametrize(
    "goal",
    [
        GOAL,
        "Write a report of the sales.",
        "Clean data.csv. Plot x.",
        "What class has the highest mean?",
        "Show the mean per class and the output of the script.",
        "Write the mean of each class to out.csv.",
        "How do sales differ between regions?",
        "Which program had the most students?",
        "Run analyse.py and give its result.",
        "Show how many rows a query by name returns.",
    ],
)
def test_a_goal_that_asks_for_something_else_asks_for_no_code(goal):
    assert not asks_for_code(goal)


def test_code_is_not_run_without_its_tool():
    assert read_code("```bash\nls\n```", Offered.of(TOOLS[:1]), GOAL) is None


def test_a_reply_of_code_is_told_from_an_answer_that_has_code_in_it():
    assert is_only_code(f"You can run:\n{RUNS}", OFFERED)
    assert is_only_code("```python\nprint(1)", OFFERED)
    assert not is_only_code(f"{RUNS}\nThis prints 1.", OFFERED)
    assert not is_only_code("The mean is 4.", OFFERED)
    assert not is_only_code("```r\nprint(1)\n```", OFFERED)


# ---- what is nearly a call


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "shell", "arguments": {"command": "rm</tool_call>', "not closed"),
        ('{"name": "shell", "arguments": {"command": "rm', "not closed at line 1 column"),
        ('```json\n{"name": "shell", "args": {"command": ls}}\n```', "Expecting value at line 2"),
        ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "names no tool"),
        ("Action: fly\nAction Input: x", "there is no tool 'fly'"),
        ("[TOOL_CALLS] fly", "not JSON"),
    ],
)
def test_what_is_nearly_a_call_is_told_with_the_reason(text, why):
    assert why in unreadable(text, OFFERED)


@pytest.mark.parametrize(
    "text",
    ["The mean is 4.", '{"mean": 4}', '{"name": "Alice", "arguments": []}', f"I used {ONE}."],
)
def test_what_is_no_call_is_not_nearly_one(text):
    assert unreadable(text, OFFERED) is None


PIECES = [
    *("<tool_call>", "</tool_call>", "```json\n", "```python\n", "```", "\n", " ", "Let me see.\n"),
    *(
        ONE,
        LIST,
        "[",
        "]",
        "{",
        "}",
        ",",
        '"',
        "Action: shell\n",
        "Action Input: ",
        "ls",
        "Output:",
    ),
    *(
        "<function=shell>",
        "<function=",
        "<parameter=command>",
        "</parameter>",
        "[TOOL_CALLS]",
        "Final Answer: 4",
    ),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_text_breaks_the_reader_and_no_call_is_of_an_unknown_tool(text):
    for written in (read_calls(text, OFFERED), read_code(text, OFFERED, GOAL)):
        for call in written.calls if written else ():
            assert call.name in OFFERED.texts
    assert unreadable(text, OFFERED) is None or text.strip()
    is_only_code(text, OFFERED)


XML = "<function=shell><parameter=command>\nls\n</parameter></function>"
REACT = f"Thought: hm\nAction: shell\nAction Input: {json.dumps({'command': 'ls'})}"
WHOLE = [
    f"<tool_call>{ONE}</tool_call>",
    f"```json\n{ONE}\n```",
    ONE,
    XML,
    REACT,
    f"[TOOL_CALLS][{ONE}]",
]


@pytest.mark.parametrize("text", WHOLE)
def test_no_part_of_a_call_is_one_that_runs(text):
    """Tags may be left open; JSON, fences and parameters may not."""
    whole = read(text)[1]
    for end in range(len(text)):
        for name, arguments in _readable(text[:end]):
            assert (name, arguments) in whole


def _readable(text):
    written = read_calls(text, OFFERED)
    for call in written.calls if written else ():
        with suppress(ArgumentsInvalid):
            yield call.name, read_arguments(call.arguments)[0]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("read_file('a.csv')", [("read_file", {"name": "a.csv"})]),
        ('read_file("a.csv", lines=3)', [("read_file", {"name": "a.csv", "lines": 3})]),
        (
            '[shell(command="ls"), shell(command="pwd")]',
            [("shell", {"command": "ls"}), ("shell", {"command": "pwd"})],
        ),
        (
            'python_interpreter("""\nprint(1)\n""")',
            [("python_interpreter", {"code": "\nprint(1)\n"})],
        ),
        ("functions.shell(command='ls')", [("shell", {"command": "ls"})]),
        ("final_answer('4')", [("final_answer", {"answer": "4"})]),
    ],
)
def test_calls_that_are_written_as_python(text, calls):
    written = read_calls(text, PYTHONIC)
    assert [(c.name, json.loads(c.arguments)) for c in written.calls] == calls
    assert all("written as Python" in c.repaired for c in written.calls)


@pytest.mark.parametrize(
    "text",
    [
        "read_file(name)",
        "read_file(*['a'])",
        "read_file(**{'name': 'a'})",
        "read_file('a', name='b')",
        "read_file('a', 1, 2, 3)",
        "read_file(b'a')",
        "read_file('a' + 'b')",
        "print('a')",
        "read_file('a'); x = 1",
        "read_file('a') is how it is called",
        "read_file('a",
        "shell(" + "(" * 5000,
        "shell('\0",
    ],
)
def test_what_is_more_than_calls_with_literals_is_no_call(text):
    assert read_calls(text, PYTHONIC) is None


@pytest.mark.parametrize(
    "text",
    [
        "Action:" + "_" * 100_000,
        "Action: x\n" + " " * 100_000 + "!",
        "Action: x" + " _" * 50_000,
        "Action: a\n" * 10_000,
        "Final Answer " * 10_000,
        "<tool_call>" * 10_000,
        "```json\n" * 10_000,
        "*" * 100_000,
    ],
)
def test_no_text_takes_long_to_read(text):
    began = time.monotonic()
    assert read_calls(text, OFFERED) is None
    unreadable(text, OFFERED)
    assert time.monotonic() - began < 5
