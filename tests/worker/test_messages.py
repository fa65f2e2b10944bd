"""Messages go to the wire and back without a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from worker.messages import Event, Job, Message, Remarked, Reply, ReplyAdded, Usage

TEXTS = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
FUNCTIONS = st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS})
CALLS = st.fixed_dictionaries(
    {"id": TEXTS, "type": st.just("function"), "function": FUNCTIONS},
    optional={"extra_content": JSON},
)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXTS}),
    st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": st.lists(
                st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), min_size=1
            ),
        }
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | TEXTS},
        optional={
            "tool_calls": st.lists(CALLS, max_size=3),
            "reasoning_content": JSON,
            "refusal": st.none(),
            "name": TEXTS,
        },
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": TEXTS}),
)


@given(MESSAGES)
def test_every_valid_message_is_the_same_after_a_round_trip(wire):
    assert Message.from_wire(wire).to_wire() == wire


@given(MESSAGES)
def test_and_after_a_round_trip_through_a_store(wire):
    message = Message.from_wire(wire)
    assert Message.model_validate_json(message.model_dump_json()).to_wire() == wire


def test_the_text_of_a_message_with_parts_is_their_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert Message.from_wire({"role": "user", "content": parts}).text == "ab"


def test_events_survive_a_store():
    event = ReplyAdded(reply=Reply(message=Message(role="assistant", content="x")), at=1.5)
    adapter = TypeAdapter(Event)
    assert adapter.validate_json(adapter.dump_json(event)) == event
    assert adapter.validate_python({"kind": "remark", "text": "t"}) == Remarked(text="t")


def test_records_are_frozen_and_take_no_unknown_field():
    job = Job(id="a", goal="b")
    with pytest.raises(ValidationError):
        job.goal = "c"
    with pytest.raises(ValidationError):
        Job(id="a", goal="b", gaol="c")


def test_a_cost_that_is_not_known_makes_the_sum_unknown():
    known, unknown = Usage(input_tokens=1, cost=0.5), Usage(input_tokens=2, cost=None)
    assert (known + known).cost == 1.0
    assert (known + unknown).cost is None
    assert (known + unknown).input_tokens == 3
