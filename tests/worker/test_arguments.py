"""Arguments as models write them: read, mended and said so, or refused with the position."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from worker.arguments import read_arguments
from worker.errors import ArgumentsInvalid


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"code": "1"}', {"code": "1"}),
        ("", {}),
        ("  ", {}),
        ("{}", {}),
    ],
)
def test_valid_json_is_read_and_nothing_is_reported(text, arguments):
    assert read_arguments(text) == (arguments, None)


@pytest.mark.parametrize(
    ("text", "arguments", "note"),
    [
        ('{"code": "a = 1\nprint(a)"}', {"code": "a = 1\nprint(a)"}, "control characters"),
        ('```json\n{"code": "1"}\n```', {"code": "1"}, "fence"),
        ('```\n{"code": "1"}```', {"code": "1"}, "fence"),
        ('{"code": "1"} done!', {"code": "1"}, "text after"),
        ('{"code": "1"}{"code": "2"}', {"code": "1"}, "text after"),
        ('{"code":"1"}}', {"code": "1"}, "text after"),
        ('{"code":"1"}\n\nIt prints "a {b}".', {"code": "1"}, "text after"),
        (r'{"code": "\d+"}', {"code": r"\d+"}, "escapes"),
        (r'{"code": "a\d\n\u00e9\ud83d\ude00"}', {"code": "a\\d\né\U0001f600"}, "escapes"),
        ('{"command": "echo a \\\n  b"}', {"command": "echo a \\\n  b"}, "escapes"),
        ("{'code': 'print(\"x\")'}", {"code": 'print("x")'}, "single quotes"),
        (r"{'code': 'it\'s'}", {"code": "it's"}, "single quotes"),
        ('{"code": "1",}', {"code": "1"}, "a comma"),
        ('{"a": [1, 2,], "b": 1}', {"a": [1, 2], "b": 1}, "a comma"),
        ("{code: 1, x: True, y: None}", {"code": 1, "x": True, "y": None}, "without quotes"),
        ('{"code": """a = "1"\nb"""}', {"code": 'a = "1"\nb'}, "triple-quoted"),
        ('{"code": """a = "1\\n""""}', {"code": 'a = "1\\n"'}, "triple-quoted"),
        ('{"code": """f = 1\n"""F."""\n1"""}', {"code": 'f = 1\n"""F."""\n1'}, "triple-quoted"),
        ('{"code": \'\'\'x = """y"""\'\'\'}', {"code": 'x = """y"""'}, "triple-quoted"),
        ('{"code": `print("a\\n")\nx`, "n": 1}', {"code": 'print("a\\n")\nx', "n": 1}, "backticks"),
        ('{"code": "print("a", "b")"}', {"code": 'print("a", "b")'}, "quotes in"),
        ('{"code": "d = {"a": 1}", "n": 2}', {"code": 'd = {"a": 1}', "n": 2}, "quotes in"),
        (json.dumps('{"code": "1"}'), {"code": "1"}, "string of JSON"),
    ],
)
def test_what_can_be_mended_is_mended_and_reported(text, arguments, note):
    read, repaired = read_arguments(text)
    assert read == arguments
    assert note in repaired


@pytest.mark.parametrize(
    "text",
    [
        "{code: 1",
        '{"command": "rm -rf /srv',
        '{"command": "echo }',
        '{"command": "rm -rf build", "timeout_s": ',
        '{"a": {"b": 1}',
        "print(1)",
        "{'code': 'half",
        '{"code": "1',
        '{"code": """x = 1"}',
        '{"code": """x = 1""',
        "{'code': 'it's'}",
        '{"code": `x',
        '{"code": "print("}")"}',
        '{"command": "echo "} foo"}',
        '{"command": "rm -rf "/tmp/x"}',
        '{"code": "1" "n": 2}',
        '{"code": }',
        '{"code": print(1)}',
        '{"a": [1, 2}',
        '{"code": "a" + "b"}',
        '```json\n{"code": "1\n```',
    ],
)
def test_what_was_cut_off_or_is_no_json_is_refused_with_the_position(text):
    with pytest.raises(ArgumentsInvalid, match=r"line \d column \d+.*<HERE>"):
        read_arguments(text)


@pytest.mark.parametrize("text", ["[1]", "3", "null", '"text"', "true", '"[1]"'])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ArgumentsInvalid):
        read_arguments(text)


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "9" * 5000 + "}"),
        *('{"a": ' + "[" * depth + "]" * depth + "}" for depth in (65, 250, 600, 10_000)),
    ],
    ids=lambda text: f"{text[:8]}x{len(text)}",
)
def test_what_would_break_the_parser_is_refused(text):
    with pytest.raises(ArgumentsInvalid):
        read_arguments(text)


def test_brackets_in_each_other_are_read_as_far_as_anybody_writes_them():
    read, _ = read_arguments('{"a": ' + "[" * 60 + "]" * 60 + "}")
    assert str(read).count("[") == 60


@pytest.mark.parametrize("part", ['"', "'", '"""', '"a",', "\\", '{"a":', "`", '"+'])
def test_no_arguments_take_long(part):
    text = "{'command': '" + part * (600_000 // len(part))
    started = time.process_time()
    with pytest.raises(ArgumentsInvalid):
        read_arguments(text)
    assert time.process_time() - started < 6


def test_halves_of_surrogate_pairs_are_replaced():
    read, _ = read_arguments(r'{"a": "\ud83d", "b": ["\udc00x"]}')
    assert json.dumps(read, ensure_ascii=False).encode()
    assert "�" in read["a"]


@given(st.text(max_size=60))
def test_no_text_raises_anything_else(text):
    try:
        read, _ = read_arguments(text)
    except ArgumentsInvalid:
        return
    assert isinstance(read, dict)


OBJECTS = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), min_size=1)


CODE = st.text(st.sampled_from("ab \n\"'`{}[],:\\#("), max_size=14)
WRITERS = (
    json.dumps,
    lambda text: '"' + json.dumps(text)[1:-1].replace("\\n", "\n") + '"',
    lambda text: f'"""{text}"""',
    lambda text: f"'''{text}'''",
    lambda text: "`" + text.replace("`", "") + "`",
    lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
    lambda text: f'"{text}"',  # nothing is escaped
)


@st.composite
def written(draw):
    """A call's arguments as some model writes them: well, badly, or with everything at once."""
    write = st.sampled_from(WRITERS)
    names = draw(st.lists(st.sampled_from(["code", "command", "a b", "}", ","]), min_size=1))
    members = [f"{json.dumps(n)}: {draw(write)(draw(CODE))}" for n in names]
    return "{" + ", ".join(members) + draw(st.sampled_from(["}", ",}", "\n}"]))


@settings(max_examples=200)
@given(written(), st.data())
def test_no_part_of_a_call_that_can_be_read_is_ever_closed_by_us(text, data):
    try:
        _, note = read_arguments(text)
    except ArgumentsInvalid:
        reject()
    assume("text after" not in (note or ""))
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    with pytest.raises(ArgumentsInvalid):
        read_arguments(cut)


@given(OBJECTS, st.data())
def test_a_cut_object_is_never_taken_for_a_whole_one(value, data):
    whole = json.dumps(value)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(ArgumentsInvalid):
        read_arguments(cut)


@given(CODE)
def test_code_in_triple_quotes_is_read_as_it_stands_or_not_at_all(code):
    try:
        read, _ = read_arguments(f'{{"code": """{code}"""}}')
    except ArgumentsInvalid:
        return
    assert read["code"].replace('"""', '\\"""') == code.replace('"""', '\\"""')


@given(OBJECTS)
def test_every_object_survives(value):
    assert read_arguments(json.dumps(value))[0] == value
