"""`caisson run` against endpoints that refuse: exit code 5, one line, which names the setting."""

from __future__ import annotations

import json
import re

import pytest

from tests.worker.served import answer
from worker.cli_worker import asked_model
from worker.settings import Settings
from worker.testing import say

UNISOLATED = {"CAISSON_DRIVER": "process", "CAISSON_ALLOW_UNISOLATED": "true"}
PAGE = "<html><head><title>Sign in</title></head></html>"
KEY = "sk-0123456789"


@pytest.fixture
def run(caisson, httpserver):
    """Run a job whose model is behind the test's server."""

    def ask(*options, **env):
        given = {"OPENAI_BASE_URL": httpserver.url_for("/v1"), "OPENAI_API_KEY": KEY}
        return caisson(
            *("run", "Say hello.", "--json", *options),
            **{**UNISOLATED, "CAISSON_MODEL": "gpt-x", "CAISSON_MODEL_TIMEOUT_S": "2"},
            **{**given, **env},
        )

    return ask


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, {"error": {"message": f"Incorrect API key {KEY}"}}, "OPENAI_API_KEY"),
        (404, {"error": {"message": "The model `gpt-x` does not exist"}}, "CAISSON_MODEL"),
        (200, PAGE, "OPENAI_BASE_URL"),
    ],
    ids=["wrong key", "unknown model", "a page"],
)
def test_an_endpoint_that_refuses(run, httpserver, status, body, says):
    text = body if isinstance(body, str) else json.dumps(body)
    httpserver.expect_request("/v1/chat/completions").respond_with_data(text, status=status)
    ended = run()
    assert ended.code == 5, ended
    assert ended.object["status"] == "dead"
    assert says in ended.object["error"]["message"]
    assert says in ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert KEY not in ended.err + ended.out


def test_an_address_that_speaks_no_tls(run, httpserver):
    url = httpserver.url_for("/v1").replace("http:", "https:")
    ended = run(OPENAI_BASE_URL=url)
    assert ended.code == 5
    assert "does not speak TLS; check OPENAI_BASE_URL" in ended.err


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"OPENAI_BASE_URL": "localhost:1/v1"}, "OPENAI_BASE_URL = 'localhost:1/v1' is no http"),
        ({"OPENAI_BASE_URL": "http://localhost:1/v1/chat/completions"}, "leave that out"),
        (
            {"OPENAI_BASE_URL": "http://localhost:70000/v1"},
            "write it like http://localhost:8000/v1",
        ),
        ({"OPENAI_BASE_URL": f"http://localhost:1/v1?key={KEY}"}, "has a ? or a #"),
        ({"CAISSON_MODELS": '{"far": {"stream": 3}}'}, "models.far.stream"),
        ({"CAISSON_MODELS": f'{{"far": {{"api_key_env": "{KEY}"}}}}'}, "models.far.api_key_env"),
        ({"CAISSON_MAX_COST": "1"}, "CAISSON_PRICES"),
        ({"SSL_CERT_FILE": "/no/such.pem"}, "SSL_CERT_FILE"),
    ],
)
def test_a_setting_that_cannot_be(run, env, says):
    ended = run(**env)
    assert ended.code == 2, ended
    assert says in ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert KEY not in ended.err + ended.out


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "none: jobs have to bring one, or a recording (CAISSON_MODEL)"),
        ({"model": "m"}, "cannot be asked: no endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL"),
        ({"model": "m", "base_url": "x:1/v1"}, "cannot be asked: OPENAI_BASE_URL = 'x:1/v1' is no"),
        ({"model": "m", "api_key": KEY}, "m at https://api.openai.com/v1"),
        ({"model": "m", "base_url": f"http://u:{KEY}@h/v1"}, "m at http://u:***@h/v1"),
        (
            {"model": "near", "models": {"near": {"model": "m", "base_url": "http://h/v1"}}},
            "m at http://h/v1",
        ),
    ],
)
def test_a_worker_says_at_its_start_which_model_it_asks(settings, says):
    said = asked_model(Settings(**settings))
    assert said.startswith(says)
    assert KEY not in said


def test_a_try_that_comes_to_nothing_is_shown_while_the_next_is_waited_for(caisson, httpserver):
    asked = httpserver.expect_ordered_request
    asked("/v1/chat/completions").respond_with_data("busy", status=503)
    asked("/v1/chat/completions").respond_with_json(answer(say("hello"), model="gpt-x"))
    given = {"OPENAI_BASE_URL": httpserver.url_for("/v1"), "CAISSON_MODEL": "gpt-x"}
    ended = caisson("run", "Say hello.", **{**UNISOLATED, **given})
    assert (ended.code, ended.err) == (0, ""), ended
    told = re.findall(r"^\W*· try 1 of 5: .*\b503\b.*; again in 0\.\d s$", ended.out, re.MULTILINE)
    assert len(told) == 1, ended.out


def test_a_fallback_is_shown_with_what_it_cost(caisson, httpserver, tmp_path):
    (tmp_path / "caisson.toml").write_text(
        f"""
        model = "near"
        fallbacks = ["far"]

        [models.near]
        base_url = "{httpserver.url_for("/near/v1")}"

        [models.far]
        model = "far-1"
        base_url = "{httpserver.url_for("/far/v1")}"
        stream = true

        [prices.far]
        input = 1000
        output = 1000
        """
    )
    gone = json.dumps({"error": {"message": "gone"}})
    httpserver.expect_request("/near/v1/chat/completions").respond_with_data(gone, status=401)
    body = answer(say("hello"), model="far-1")
    httpserver.expect_request("/far/v1/chat/completions").respond_with_json(body)
    ended = caisson("run", "Say hello.", **UNISOLATED)
    assert ended.code == 0, ended
    assert "far-1 · 9 tokens in, 4 out · cost 0.0130" in ended.out
    assert "· far-1 answered as a fallback: " in ended.out
    assert "check models.near.api_key" in ended.out
    assert "1 step · 13 tokens · cost 0.0130" in ended.out
