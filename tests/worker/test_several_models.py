"""Several models: one stands in for another, each has its part of a job, and they share slots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.worker.served import GOAL, SYSTEM, TOOLS, answer, ask, raw_server
from worker import assembly
from worker.builtin import Workplace
from worker.errors import (
    Cancelled,
    ContextTooLong,
    InputInvalid,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    QuotaSpent,
)
from worker.messages import Status
from worker.models.base import Model, Request
from worker.models.fallback import Fallback
from worker.models.slots import Slots
from worker.models.waiting import Patience
from worker.settings import Settings
from worker.testing import ScriptedModel, say


def never():
    return False


class Named(ScriptedModel):
    """A scripted model with a name, which may take its time and is closed once it is not needed."""

    def __init__(self, name, *messages, takes_s=0.0):
        super().__init__(messages, repeat_last=True)
        self.name = name
        self.takes_s = takes_s
        self.shares = []
        self.is_closed = False

    def reply(self, request, *, timeout_s, is_cancelled):
        self.shares.append(timeout_s)
        if self.takes_s > timeout_s:
            time.sleep(timeout_s)
            raise ModelTimeout(f"{self.name}: nothing")
        reply = super().reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)
        return reply.model_copy(update={"model": self.name})

    def close(self):
        self.is_closed = True


def reply_of(model, *, timeout_s=9.0, **request):
    request = Request(messages=(SYSTEM, GOAL), **request)
    return model.reply(request, timeout_s=timeout_s, is_cancelled=never)


# ---- one stands in for another


@pytest.mark.parametrize("fault", [ModelUnavailable, ModelTimeout, ModelRefused, QuotaSpent])
def test_the_next_model_answers_when_one_is_down_and_says_so(fault):
    one, other = Named("one", fault("one is broken")), Named("other", say("hello"))
    model = Fallback([one, other])
    assert isinstance(model, Model)
    reply = reply_of(model)
    assert (reply.text, reply.model) == ("hello", "other")
    assert reply.remarks == ("other answered as a fallback: one is broken",)


def test_the_first_model_answers_while_it_can():
    one, other = Named("one", say("hello")), Named("other", say("no"))
    reply = reply_of(Fallback([one, other]))
    assert (reply.text, reply.remarks, other.requests) == ("hello", (), [])


def test_a_request_that_is_too_long_is_made_shorter_and_not_sent_elsewhere():
    one, other = Named("one", ContextTooLong("too long", window=9)), Named("other", say("no"))
    with pytest.raises(ContextTooLong):
        reply_of(Fallback([one, other]))
    assert not other.requests


def test_a_model_that_was_down_is_left_alone_for_a_while_and_then_asked_again():
    one = Named("one", ModelUnavailable("down"), say("back"))
    model = Fallback([one, Named("other", say("hello"))], away_s=0.3)
    assert [reply_of(model, turn=0).text, reply_of(model, turn=1).text] == ["hello", "hello"]
    assert len(one.requests) == 1
    time.sleep(0.35)
    assert reply_of(model, turn=1).text == "back"


def test_one_that_is_left_alone_is_better_than_none():
    one = Named("one", ModelUnavailable("down"), say("back"))
    other = Named("other", say("hello"), ModelUnavailable("down too"))
    model = Fallback([one, other])
    assert reply_of(model, turn=0).text == "hello"
    assert reply_of(model, turn=1).text == "back"


def test_when_all_are_down_each_says_why():
    with pytest.raises(ModelUnavailable, match=r"no model answers: a; b") as caught:
        reply_of(Fallback([Named("one", ModelRefused("a")), Named("other", QuotaSpent("b"))]))
    assert "\n" not in str(caught.value)


def test_all_of_them_share_one_deadline_of_which_each_leaves_a_part():
    one, other = Named("one", say("x"), takes_s=9), Named("other", say("x"), takes_s=9)
    started = time.monotonic()
    with pytest.raises(ModelUnavailable):
        reply_of(Fallback([one, other]), timeout_s=0.6)
    assert time.monotonic() - started < 2
    assert one.shares == [pytest.approx(0.4, abs=0.05)]
    assert 0.0 <= other.shares[0] < 0.25


def test_a_cancel_asks_nobody_else():
    one, other = Named("one", Cancelled()), Named("other", say("no"))
    with pytest.raises(Cancelled):
        reply_of(Fallback([one, other]))
    assert not other.requests


# ---- made from settings


@pytest.fixture
def made(httpserver, tmp_path):
    """Make the model of settings whose endpoints are paths of one server: /one/v1, /other/v1 …"""
    models = []

    def make(record=None, **settings):
        names = ("one", "other", "third")
        entries = {
            name: {"model": f"{name}-1", "base_url": httpserver.url_for(f"/{name}/v1")}
            for name in names
        }
        prices = {"one": {"input": 1, "output": 1}, "other-1": {"input": 1000, "output": 1000}}
        given = {"model": "one", "models": entries, "prices": prices, "data_dir": tmp_path}
        models.append(assembly.make_model(Settings(**{**given, **settings}), record=record))
        return models[-1]

    yield make
    for model in models:
        model.close()
        model.close()  # which is safe


def at(httpserver, name, body, status=200):
    path = f"/{name}/v1/chat/completions"
    httpserver.expect_request(path).respond_with_json(body, status=status)


def asked(httpserver):
    return [request.path.split("/")[1] for request, _ in httpserver.log]


def test_a_fallback_answers_under_its_own_name_and_at_its_own_price(httpserver, made):
    at(httpserver, "one", {"error": {"message": "no"}}, 401)
    at(httpserver, "other", answer(model="other-1"))
    reply = reply_of(made(fallbacks=["other"]))
    assert (reply.text, reply.model) == ("hello", "other-1")
    assert reply.usage.cost == pytest.approx(0.013)
    assert "check models.one.api_key" in reply.remarks[0]


def test_the_planner_gives_the_first_reply_and_the_model_of_the_job_all_others(httpserver, made):
    for name in ("one", "other"):
        at(httpserver, name, answer(model=name))
    model = made(planner_model="other")
    assert [reply_of(model, turn=turn).model for turn in (0, 1, 2)] == ["other", "one", "one"]
    assert reply_of(model, turn=0, is_summary=True).model == "one"
    assert asked(httpserver) == ["other", "one", "one", "one"]


def test_summaries_may_be_another_models_and_are_not_recorded(httpserver, made, tmp_path):
    for name in ("one", "other"):
        at(httpserver, name, answer(say(name), model=name))
    model = made(summariser_model="other", record=tmp_path / "r.jsonl")
    summaries = assembly.make_summariser(Settings(model="one", summariser_model="other"), model)
    assert reply_of(model).text == "one"
    assert (summaries.name, reply_of(summaries, turn=1).text) == ("other", "other")
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert [json.loads(line)["content"] for line in lines] == ["one"]


def test_a_role_whose_model_is_down_is_taken_by_the_job_s(httpserver, made):
    at(httpserver, "one", answer(model="one"))
    at(httpserver, "other", {"error": "gone"}, 401)
    reply = reply_of(made(planner_model="other"))
    assert (reply.model, len(reply.remarks)) == ("one", 1)


def test_a_recording_is_of_whoever_answered(httpserver, made, tmp_path):
    at(httpserver, "one", {"error": "gone"}, 401)
    at(httpserver, "other", answer(say("first")))
    reply_of(made(fallbacks=["other"], record=tmp_path / "r.jsonl"))
    assert json.loads((tmp_path / "r.jsonl").read_text())["content"] == "first"


def test_a_model_that_asks_to_wait_long_is_down_if_there_is_another(httpserver, made):
    path = "/one/v1/chat/completions"
    httpserver.expect_request(path).respond_with_data("", 429, headers={"Retry-After": "40"})
    at(httpserver, "other", answer())
    started = time.monotonic()
    reply = reply_of(made(fallbacks=["other"]), timeout_s=100)
    assert time.monotonic() - started < 3
    assert "asks to wait 40 s" in reply.remarks[0]


def test_a_window_and_limits_are_those_of_the_model(httpserver, made):
    at(httpserver, "one", answer())
    entry = {"base_url": httpserver.url_for("/one/v1"), "max_output_tokens": 99, "temperature": 0.3}
    model = made(models={"one": entry | {"context_tokens": 5000, "stream": True}})
    reply_of(model)
    body = httpserver.log[-1][0].get_json()
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (99, 0.3, True)
    settings = Settings(model="one", models={"one": entry | {"context_tokens": 5000}})
    window = assembly.build(settings, model, Workplace(lambda: None)).window
    assert (window.tokens, window.reply_tokens) == (5000, 99)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": ""}, "set CAISSON_MODEL"),
        ({"model": "x"}, "set OPENAI_API_KEY, or OPENAI_BASE_URL"),
        ({"fallbacks": ["y"]}, "set OPENAI_API_KEY"),
        ({"model": "x", "base_url": "ftp://x"}, "OPENAI_BASE_URL = 'ftp://x' is no http"),
        ({"model": "x", "base_url": "http://u:pw@[x"}, "OPENAI_BASE_URL = 'http://…' is no http"),
        ({"model": "x", "base_url": "http://x:port/v1"}, "is no http(s) address"),
        ({"model": "x", "base_url": "http://a b/v1"}, "is no http(s) address"),
        ({"model": "x", "base_url": "http://x:99999/v1"}, "is no http(s) address; write it like "),
        ({"model": "x", "base_url": "http://x/v1?key=sk-secret"}, "'http://x/v1' has a ? or a #"),
        (
            {"model": "x", "base_url": "http://x/v1/chat/completions/"},
            "ends in /chat/completions, which is added to it; leave that out",
        ),
        ({"model": "x", "api_key": "sk-secret\nx"}, "OPENAI_API_KEY has characters"),
        ({"model": "x", "api_key": "sk-sécret"}, "OPENAI_API_KEY has characters"),
        (
            {"model": "f", "models": {"f": {"base_url": "http://f", "api_key_env": "F_KEY"}}},
            "F_KEY is not set, which models.f.api_key_env names",
        ),
        ({"model": "x", "api_key": "sk-secret "}, "OPENAI_API_KEY has characters"),
    ],
)
def test_a_model_that_cannot_be_made_names_the_setting(made, settings, says):
    with pytest.raises(InputInvalid) as caught:
        reply_of(made(**settings))
    assert says in str(caught.value)
    assert "cret" not in str(caught.value)
    assert "pw" not in str(caught.value)


def test_a_file_of_certificates_that_is_not_there_is_named(made, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    with pytest.raises(InputInvalid, match=r"SSL_CERT_FILE = '/no/such/file\.pem' .*: No such"):
        made()


def test_tools_are_asked_for_in_text_when_an_endpoint_takes_none(httpserver, made):
    path = "/one/v1/chat/completions"
    refused = httpserver.expect_ordered_request(path)
    refused.respond_with_json({"error": {"message": "m does not support tools"}}, status=400)
    called = '<tool_call>{"name": "shell", "arguments": {"command": "ls"}}</tool_call>'
    httpserver.expect_ordered_request(path).respond_with_json(answer(say(called)))
    reply = reply_of(made(), tools=TOOLS)
    assert [call.name for call in reply.calls] == ["shell"]
    assert "asked in text" in reply.remarks[0]
    assert "tools" not in httpserver.log[-1][0].get_json()


# ---- slots


def hold(slots, *, timeout_s=5.0, is_cancelled=never):
    return slots.held(Patience(timeout_s, is_cancelled))


def test_no_more_than_so_many_requests_run_at_a_time(chat, tmp_path):
    running, most = [], []

    def behave(connection, ended):
        running.append(1)
        most.append(len(running))
        ended.wait(0.15)
        running.pop()
        body = json.dumps(answer()).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    with raw_server(behave) as (url, _):
        models = [chat(base_url=url, slots=Slots(tmp_path / "s", url, 2)) for _ in range(5)]
        replies = []
        threads = [threading.Thread(target=lambda m=m: replies.append(ask(m))) for m in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(replies) == 5
    assert max(most) == 2
    assert max(reply.waited_s for reply in replies) > 0.1


def test_endpoints_have_slots_of_their_own(tmp_path):
    with hold(Slots(tmp_path, "a", 1)), hold(Slots(tmp_path, "b", 1), timeout_s=0.1):
        pass


def test_waiting_for_a_slot_ends_with_the_deadline_and_when_cancelled(tmp_path):
    slots = Slots(tmp_path, "a", 1)
    with hold(slots):
        started = time.monotonic()
        told = r"slots for requests to a became free: raise max_concurrent"
        with pytest.raises(ModelTimeout, match=told), hold(slots, timeout_s=0.3):
            pass
        assert time.monotonic() - started < 2
        until = time.monotonic() + 0.2
        with (
            pytest.raises(Cancelled),
            hold(slots, is_cancelled=lambda: time.monotonic() > until),
        ):
            pass
        assert time.monotonic() - until < 0.6
    with hold(slots, timeout_s=0.1):
        pass


def test_the_slot_of_a_process_that_was_killed_is_free(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from worker.models.slots import Slots; "
        "from worker.models.waiting import Patience; "
        "held = Slots(Path(sys.argv[1]), 'a', 1).held(Patience(5, lambda: False)); "
        "held.__enter__(); print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    slots = Slots(tmp_path, "a", 1)
    with pytest.raises(ModelTimeout), hold(slots, timeout_s=0.2):
        pass
    os.kill(other.pid, signal.SIGKILL)
    other.communicate()
    with hold(slots, timeout_s=1.0):
        pass


def test_a_slot_is_free_though_a_fork_has_a_copy_of_it(tmp_path):
    slots = Slots(tmp_path, "a", 1)
    go_on, done = os.pipe()
    with hold(slots):
        child = os.fork()
        if child == 0:
            os.read(go_on, 1)
            os._exit(0)
    try:
        with hold(slots, timeout_s=0.3):
            pass
    finally:
        os.write(done, b"x")
        os.waitpid(child, 0)
        os.close(go_on)
        os.close(done)


def test_a_folder_that_cannot_hold_slots_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ModelUnavailable, match=r"max_concurrent, data_dir"),
        hold(Slots(tmp_path / "file", "a", 1)),
    ):
        pass


def test_a_limit_of_the_settings_reaches_the_endpoint(httpserver, made, tmp_path):
    at(httpserver, "one", answer())
    reply_of(made(max_concurrent=3))
    assert len(list((tmp_path / "slots").iterdir())) == 1


# ---- a job


def test_a_job_goes_on_with_a_fallback_and_its_history_is_that_of_any_job(bench, httpserver, made):
    at(httpserver, "one", {"error": {"message": "no quota", "code": "insufficient_quota"}}, 429)
    path = "/other/v1/chat/completions"
    for body in (say(None, ("shell", {"command": "ls"})), say("done")):
        httpserver.expect_oneshot_request(path).respond_with_json(answer(body, model="other-1"))
    b = bench()
    b.model = made(fallbacks=["other"])
    assert b.drive().status is Status.SUCCEEDED
    assert b.sandbox.ran == ["ls"]
    replies = [event.reply for event in b.watching.of("reply")]
    assert [reply.model for reply in replies] == ["other-1", "other-1"]
    assert [len(reply.remarks) for reply in replies] == [1, 0]  # the first is left alone by now
    assert b.history.job.usage.cost == pytest.approx(0.026)
