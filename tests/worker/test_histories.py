"""Whatever a model says, whatever becomes of its calls, and wherever its worker dies.

Each call has one result, every request is one that endpoints take, natively and in text, and it
fits into the window by our own count, wherever the history is cut.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import FileRefused, SandboxLost, SandboxUnavailable
from sandbox.types import Interpreter, Outcome
from worker.assembly import build
from worker.context import Window, tokens_per_char
from worker.conversation import chars_of, check_request
from worker.history import History
from worker.messages import Role
from worker.models.text_protocol import TextProtocol
from worker.models.text_tools import TextTools
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ok, say


class Died(BaseException):
    """The worker is gone: nothing of it runs any more."""


class MortalStore(MemoryStore):
    """Ends its worker before or after it has stored an event of a given number, once each."""

    def __init__(self, deaths):
        super().__init__()
        self.deaths = dict(deaths)
        self.appended = 0

    def append(self, job_id, event, *, generation):
        self.appended += 1
        is_after = self.deaths.pop(self.appended, None)
        if is_after is False:
            raise Died
        super().append(job_id, event, generation=generation)
        if is_after:
            raise Died


class CheckingModel:
    """Looks at every request as an endpoint would."""

    name = "checking"

    def __init__(self, model):
        self.model = model

    def reply(self, request, **when):
        check(request)
        return self.model.reply(request, **when)

    def close(self):
        pass


def check(request):
    check_request(request.messages)
    said = TextTools().rewritten(request).messages
    roles = [message.role for message in said]
    assert roles[:2] == [Role.SYSTEM, Role.USER]
    assert all(one is not other for one, other in itertools.pairwise(roles))
    assert set(roles[1:]) <= {Role.USER, Role.ASSISTANT}
    assert all(m.text.strip() and not m.tool_calls and m.tool_call_id is None for m in said)


LONG = "0123456789 数据\n" * 800
CALLS = [
    ("python_interpreter", {"code": LONG}),
    ("write_file", {"name": "a", "content": [LONG] * 3, "rows": list(range(900))}),
    ("shell", LONG),
    ("shell", {"command": "ls"}),
    ("shell", '{"command": "ls"} done'),
    ("shell", '{"command": "rm'),
    ("shell", {}),
    ("python_interpreter", {"code": "1"}),
    ("python", '{"code": """1"""}'),
    ("fly", {"to": "moon"}),
    ("", ""),
    ("final_answer", {"answer": "4"}),
    ("final_answer", {}),
]
TAG = '<tool_call>{"name": "shell", "arguments": {"command": "ls"}}</tool_call>'
TEXTS = [
    *(
        "4",
        "",
        " \n",
        "```\n```",
        "I will now run the code.",
        "```python\n1\n```",
        TAG,
        f"{TAG}\n{TAG}",
    ),
    *('<tool_call>{"name": "shell"', "Thought: hm.\nFinal Answer: 4", "The sum is 4. " * 60),
    *('{"name": "final_answer", "arguments": {"answer": ""}}', "Action: shell\nAction Input: ls"),
]


@st.composite
def replies(draw):
    calls = draw(st.lists(st.sampled_from(CALLS), max_size=3))
    wire = say(draw(st.sampled_from([None, *TEXTS])), *calls)
    identity = draw(st.sampled_from([None, "same", "", "x" * 43]))
    for call in wire.get("tool_calls", ()) if identity is not None else ():
        call["id"] = identity
    return {
        **wire,
        "usage": {"input_tokens": draw(st.sampled_from([0, 0, 300, 2000, 9000]))},
        "finish_reason": draw(st.sampled_from(["stop", "stop", "tool_calls", "length"])),
    }


def refuse(*_):
    raise FileRefused("no such name")


def lose(sandbox, *_):
    sandbox.is_lost = True
    raise SandboxLost("gone")


OUTCOMES = [
    lambda *_: ok("fine"),
    lambda *_: ok(LONG),
    lambda *_: ok("", outcome=Outcome.ERROR, exit_code=1),
    lambda *_: ok("", outcome=Outcome.TIMEOUT, interpreter=Interpreter.RESTARTED),
    refuse,
    lose,
]


PLANS = st.fixed_dictionaries(
    {
        "script": st.lists(replies(), max_size=8),
        "outcomes": st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=6),
        "deaths": st.dictionaries(st.integers(3, 30), st.booleans(), max_size=5),
        "protocol": st.sampled_from(["native", "auto", "text"]),
        "schema": st.sampled_from([None, {"type": "number"}]),
    }
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(PLANS)
def test_every_call_has_one_result_and_every_request_is_taken(bench, plan):
    turns, outcomes, deaths = itertools.count(), plan["outcomes"], plan["deaths"]

    def respond(*call):
        return outcomes[next(turns) % len(outcomes)](*call)

    store = MortalStore(deaths)
    script = [*plan["script"], say("4")]
    b = bench(*script, respond=respond, store=store, answer_schema=plan["schema"])
    b.model = CheckingModel(b.model)
    if plan["protocol"] != "native":
        b.model = TextProtocol(b.model, in_text=plan["protocol"] == "text")
    for _ in range(len(deaths) + 40):
        with suppress(Died):
            try:
                b.drive()
            except SandboxUnavailable:
                b.sandbox = FakeSandbox(respond)
        if b.history.job.status.is_final:
            break
    assert b.history.job.status.is_final
    _, events = b.store.load(b.job.id)
    asked = [call.id for event in events if event.kind == "reply" for call in event.reply.calls]
    results = Counter(event.result.call_id for event in events if event.kind == "result")
    assert results == Counter(asked)
    assert len(set(asked)) == len(asked)
    assert [event.kind for event in events].count("ended") == 1
    check_every_cut(b, events)


def check_every_cut(b, events):
    """A request can be made after each event, and it fits by our own count."""
    tools = build(b.settings, b.model, b.place).tools.schemas
    history = History(b.job)
    for event in events:
        history.add(event)
        if len(history.opening) < 2 or history.last.is_open:
            continue
        rate = tokens_per_char(history)
        tokens = 8192 if rate < 0.5 else 32_768
        request = Window(tokens, 500).request(history, tools)
        check(request)
        estimate = chars_of(request.messages, tools) * rate
        assert estimate + request.max_output_tokens <= tokens


def test_the_store_of_these_tests_does_end_its_worker(bench):
    b = bench(say("4"), store=MortalStore({3: True}))
    with pytest.raises(Died):
        b.drive()
    assert b.drive().answer == "4"
