"""JSON Schema: what cannot be enforced is refused, and faults say where and what."""

from __future__ import annotations

import socket
import time

import pytest

from worker import schema
from worker.errors import InputInvalid
from worker.schema import check_schema, faults
from worker.signatures import describe

OLD = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {
            "$schema": OLD,
            "definitions": {"a": {}},
            "properties": {"b": {"$ref": "#/definitions/a"}},
        },
        {"$id": "http://a/b", "properties": {"x": {"$ref": "#/$defs/q"}}, "$defs": {"q": {}}},
        {"$anchor": "here", "properties": {"x": {"$ref": "#here"}}},
        {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"maximum": 3}},
        {"type": "object", "x-origin": "here", "unevaluatedProperties": False},
        {"format": "date-time"},
    ],
)
def test_what_can_be_enforced_is_taken(schema):
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "is an object, not []"),
        (True, "is an object, not true"),
        ({"type": "text"}, "not a JSON Schema at type"),
        ({"properties": 3}, "not a JSON Schema at properties: 3"),
        ({"oneOf": []}, "not a JSON Schema at oneOf"),
        ({"pattern": "("}, "not a JSON Schema at pattern"),
        ({"minLenght": 3}, "keyword 'minLenght' is not known"),
        ({"properties": {"a": {"items": {"nullable": True}}}}, "keyword 'nullable'"),
        ({"anyOf": [{"minLenght": 3}]}, "keyword 'minLenght'"),
        ({"$defs": {"a": {"minLenght": 3}}}, "keyword 'minLenght'"),
        ({"format": "colour"}, 'format "colour" is not known; known: date, '),
        ({"$schema": "https://a.example/s"}, "not a dialect that is known"),
        ({"$schema": 3}, "not a dialect"),
        ({"$ref": "#/nowhere"}, "is not in the schema"),
        ({"$ref": 5}, "not a JSON Schema at $ref"),
        ({"$schema": OLD, "$ref": "#", "minLength": 3}, "beside $ref, 'minLength' is not enforced"),
    ],
)
def test_what_would_not_be_enforced_is_refused_in_one_line(schema, why):
    with pytest.raises(InputInvalid) as raised:
        check_schema(schema)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_elsewhere_is_never_fetched(monkeypatch):
    asked = []
    monkeypatch.setattr(socket.socket, "connect", lambda *a: asked.append(a))
    with pytest.raises(InputInvalid, match="nothing is fetched"):
        check_schema({"$ref": "http://127.0.0.1:9/s.json"})
    assert asked == []


def test_a_schema_too_deep_to_look_at_is_refused():
    schema = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(InputInvalid, match="too deep"):
        check_schema(schema)


SCHEMA = {
    "type": "object",
    "properties": {
        "mean": {"type": "number"},
        "rows": {"type": "array", "items": {"type": "string", "maxLength": 3}},
        "when": {"format": "date-time"},
        "site": {"format": "uri"},
    },
    "required": ["mean"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"mean": 1}, []),
        ({}, [("mean", "missing, required")]),
        ({"mean": "1"}, [("mean", "\"1\" is not of type 'number'")]),
        ({"mean": None}, [("mean", "null is not of type 'number'")]),
        ({"mean": 1, "rows": ["a", 2]}, [("rows[1]", "2 is not of type 'string'")]),
        ({"mean": 1, "rows": ["abcd"]}, [("rows[0]", '"abcd" is too long')]),
        ({"mean": 1, "meen": 2}, [("meen", "unknown, not allowed")]),
        ({"mean": 1, "when": "2026-01-02"}, [("when", "\"2026-01-02\" is not a 'date-time'")]),
        ({"mean": 1, "when": "2026-01-02T03:04:05Z", "site": "https://a"}, []),
        ({"mean": 1, "site": "a b"}, [("site", "\"a b\" is not a 'uri'")]),
        ([], [("", "[] is not of type 'object'")]),
    ],
)
def test_faults_say_where_and_what(value, expected):
    assert list(faults(value, SCHEMA)) == expected


def test_a_long_value_is_not_quoted_whole():
    ((_, fault),) = faults(["x" * 5000], {"type": "object"})
    assert len(fault) < 200


def test_of_several_ways_the_nearest_is_told():
    ways = {"anyOf": [{"type": "string"}, {"properties": {"a": {"type": "string"}}}]}
    assert list(faults({"a": 1}, ways)) == [("a", "1 is not of type 'string'")]


def test_what_has_no_end_is_a_fault_and_no_crash():
    assert [fault for _, fault in faults({"a": 1}, {"$ref": "#"})]


def test_arguments_are_described_in_one_line():
    schema = {
        "properties": {
            "a": {"type": ["integer", "null"]},
            "b": {"type": "array", "items": {"enum": ["x", "y"]}},
            "c": True,
        },
        "required": ["a"],
    }
    assert describe(schema) == (
        '{"a": integer or null; "b": array of one of x, y, optional; "c": any value, optional}'
    )


SLOW = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^(a+)+$"}}}


def test_a_pattern_that_never_ends_is_a_fault_within_its_time(monkeypatch):
    monkeypatch.setattr(schema, "CHECK_S", 2.0)
    started = time.monotonic()
    ((place, fault),) = faults({"name": "a" * 40 + "!"}, SLOW)
    assert (place, fault) == ("", "could not be checked within 2 s: make it simpler")
    assert time.monotonic() - started < 10


def test_rules_that_may_take_long_are_enforced_as_any_other():
    assert list(faults({"name": "aaa"}, SLOW)) == []
    ((place, fault),) = faults({"name": "b\ud800"}, SLOW)
    assert place == "name"
    assert "does not match" in fault
    unique = {"type": "array", "uniqueItems": True}
    ((_, fault),) = faults([{"a": 1}, {"a": 1}], unique)
    assert "non-unique" in fault
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert [why for _, why in faults(deep, unique)] == [schema._TOO_DEEP]
