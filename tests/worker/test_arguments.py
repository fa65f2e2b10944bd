"""Arguments as models write them: read, mended and said so, or refused with the position."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
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
        (r'{"code": "\d+"}', {"code": r"\d+"}, "not valid"),
        ("{'code': 'print(\"x\")'}", {"code": 'print("x")'}, "not valid"),
        ('{"code": "1",}', {"code": "1"}, "not valid"),
        ('{"code": """a = "1"\nb"""}', {"code": 'a = "1"\nb'}, "triple-quoted"),
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
    ],
)
def test_what_was_cut_off_or_is_no_json_is_refused_with_the_position(text):
    with pytest.raises(ArgumentsInvalid, match=r"line 1 column \d+.*<HERE>"):
        read_arguments(text)


@pytest.mark.parametrize("text", ["[1]", "3", "null", '"text"', "true", '"[1]"'])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ArgumentsInvalid):
        read_arguments(text)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_what_would_break_the_parser_is_refused(text):
    with pytest.raises(ArgumentsInvalid):
        read_arguments(text)


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


@given(OBJECTS, st.data())
def test_a_cut_object_is_never_taken_for_a_whole_one(value, data):
    whole = json.dumps(value)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(ArgumentsInvalid):
        read_arguments(cut)


@given(OBJECTS)
def test_every_object_survives(value):
    assert read_arguments(json.dumps(value))[0] == value
