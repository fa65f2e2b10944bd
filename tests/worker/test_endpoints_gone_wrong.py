"""What endpoints say when something is wrong: each is told in one line, with what to do."""

from __future__ import annotations

import gzip
import json
import logging
import re
import shutil
import ssl
import subprocess
import time
import zlib
from contextlib import closing, suppress

import pytest
from werkzeug import Response

from tests.worker.served import TOOLS, answer, ask, raw_server, sent, serve
from worker.context import Window
from worker.errors import (
    Cancelled,
    ContextTooLong,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    QuotaSpent,
    ToolsUnsupported,
)
from worker.messages import Finish, FinishReason, Message, Role, Status
from worker.models.exchange import Line
from worker.models.openai_chat import Retries
from worker.models.waiting import asked_by_headers, asked_by_text
from worker.testing import say

PAGE = (
    "<!DOCTYPE html><html><head><title>Sign in &middot; Proxy</title></head><body>no</body></html>"
)


def error(code, message="", **fields):
    fields = {k.removesuffix("_"): v for k, v in fields.items()}
    return (code, {"error": {"message": message, **fields}})


# ---- refusals, and the setting that each of them names


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        pytest.param(
            error(401, "No auth credentials"), ModelRefused, "OPENAI_API_KEY", id="no key"
        ),
        pytest.param((401, PAGE), ModelRefused, "OPENAI_API_KEY", id="a page of 401"),
        pytest.param(error(403, "Country not supported"), ModelRefused, "OPENAI_API_KEY", id="403"),
        pytest.param(
            error(
                400, "API key not valid. Please pass a valid API key.", status="INVALID_ARGUMENT"
            ),
            ModelRefused,
            "OPENAI_API_KEY",
            id="a wrong key with 400",
        ),
        pytest.param(
            error(400, "Incorrect API key provided: sk-…"), ModelRefused, "OPENAI_API_KEY", id="400"
        ),
        pytest.param(
            {"error": {"message": "bad", "code": "invalid_api_key"}},
            ModelRefused,
            "OPENAI_API_KEY",
            id="a wrong key with 200",
        ),
        pytest.param(
            error(404, "The model `m` does not exist", code_="model_not_found"),
            ModelRefused,
            "CAISSON_MODEL",
            id="unknown model of OpenAI",
        ),
        pytest.param(
            error(400, "Model Not Exist"), ModelRefused, "CAISSON_MODEL", id="of DeepSeek"
        ),
        pytest.param(
            error(404, 'model "m" not found, try pulling it first'),
            ModelRefused,
            "CAISSON_MODEL",
            id="of Ollama",
        ),
        pytest.param(
            error(400, "m is not a valid model ID"),
            ModelRefused,
            "CAISSON_MODEL",
            id="of OpenRouter",
        ),
        pytest.param(
            error(403, "Project does not have access to model `m`", code_="model_not_found"),
            ModelRefused,
            "CAISSON_MODEL",
            id="a model out of reach",
        ),
        pytest.param((404, {"detail": "Not Found"}), ModelRefused, "OPENAI_BASE_URL", id="no path"),
        pytest.param((404, "404 page not found"), ModelRefused, "OPENAI_BASE_URL", id="in words"),
        pytest.param((405, PAGE), ModelRefused, "OPENAI_BASE_URL", id="wrong method"),
        pytest.param(
            {"error": "Unexpected endpoint or method. (POST /chat/completions)"},
            ModelRefused,
            "OPENAI_BASE_URL",
            id="no path with 200",
        ),
        pytest.param((407, PAGE), ModelRefused, "HTTPS_PROXY", id="a proxy's password"),
        pytest.param(
            error(400, "Invalid schema for function 'x'"),
            ModelRefused,
            "Invalid schema",
            id="bad request",
        ),
        pytest.param(
            error(400, "Missing required parameter: 'tools[0].function.name'"),
            ModelRefused,
            "tools[0]",
            id="a fault in tools",
        ),
        pytest.param(error(422, "n: must be 1"), ModelRefused, "must be 1", id="unprocessable"),
        pytest.param(
            error(400, "The response was filtered", code_="content_filter"),
            ModelRefused,
            "filtered",
            id="filtered",
        ),
    ],
)
def test_what_a_setting_would_mend_is_refused_once_and_names_it(
    httpserver, chat, told, kind, words
):
    serve(httpserver, told)
    with pytest.raises(kind) as caught:
        ask(chat())
    text = str(caught.value)
    assert type(caught.value) is not ToolsUnsupported
    assert words in text
    assert "\n" not in text
    assert "<" not in text
    assert sum(request.path.endswith("completions") for request, _ in httpserver.log) == 1


def test_the_settings_of_an_entry_are_named_in_place_of_the_plain_ones(httpserver, chat):
    serve(httpserver, error(401, "no"))
    with pytest.raises(ModelRefused, match=r"check models\.far\.api_key: "):
        ask(chat(key_name="models.far.api_key"))


def test_a_page_is_told_by_its_title(httpserver, chat):
    serve(httpserver, (404, PAGE))
    with pytest.raises(ModelRefused, match=r"OPENAI_BASE_URL: a page, not JSON: Sign in · Proxy$"):
        ask(chat())


@pytest.mark.parametrize("status", [400, 403, 451])
def test_a_page_that_refuses_is_not_taken_for_the_endpoint(httpserver, chat, status):
    serve(httpserver, (status, PAGE))
    with pytest.raises(ModelRefused) as caught:
        ask(chat())
    told = str(caught.value)
    assert "key" not in told
    assert f"a page ({status}) answers in place of the endpoint" in told
    assert "check OPENAI_BASE_URL and HTTPS_PROXY" in told
    assert told.endswith(": Sign in · Proxy")


@pytest.mark.parametrize(
    "page", ["<html><title>" * 90_000, "<html>" + "<" * 900_000, "<html><h1>" + "a " * 400_000]
)
def test_no_page_takes_long_to_read(httpserver, chat, page):
    serve(httpserver, (404, page))
    started = time.monotonic()
    with pytest.raises(ModelRefused) as caught:
        ask(chat())
    assert time.monotonic() - started < 2
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_an_error_that_is_packed_is_read(httpserver, chat, encoding, pack):
    packed = Response(pack(b'{"error": "no such thing"}'), 400, {"Content-Encoding": encoding})
    httpserver.expect_request("/v1/chat/completions").respond_with_response(packed)
    with pytest.raises(ModelRefused, match="no such thing"):
        ask(chat())


def test_of_an_error_that_unpacks_without_an_end_the_beginning_is_read(httpserver):
    bomb = gzip.compress(b"a" * 50_000_000)
    packed = Response(bomb, 400, {"Content-Encoding": "gzip"})
    httpserver.expect_request("/page").respond_with_response(packed)
    line = Line()
    with closing(line):
        assert line.client.get(httpserver.url_for("/page")).content == b"a" * 256 * 1024


def test_no_control_characters_of_an_endpoint_reach_a_terminal(httpserver, chat, caplog):
    serve(httpserver, error(503, "\x1b[2Jbusy\x07\n\u202e"), error(401, "\x1b]0;x\x07no"))
    with pytest.raises(ModelRefused) as caught:
        ask(chat())
    assert "no" in str(caught.value)
    told = str(caught.value) + "".join(r.getMessage() for r in caplog.records if "try" in r.msg)
    assert "busy" in told
    assert told.isprintable()


def test_an_error_in_a_list_is_read(httpserver, chat):
    serve(httpserver, (400, [{"error": {"code": 400, "message": "API key not valid."}}]))
    with pytest.raises(ModelRefused, match=r"check OPENAI_API_KEY: API key not valid\."):
        ask(chat())


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (error(401, "Bad key", code_="invalid_api_key", type_="invalid_request_error"), "Bad key"),
        (error(400, "n is 0", type_="BadRequestError", param="n", code_=400), "n is 0"),
        (error(400, "n is 0", param="top", request_id="4f"), "n is 0 top"),
        (error(400, "Provider", metadata={"raw": "é"}), 'Provider {"metadata": {"raw": "é"}}'),
        ((400, {"detail": "Not so"}), "Not so"),
        ((400, {"error": {"type": "odd_error"}}), "odd_error"),
        ((400, {"error": "in words"}), "in words"),
        ((400, "400"), "Bad Request"),
        ((400, ""), "Bad Request"),
        ((499, {"error": {"code": 499}}), "without a word"),
        ({"error": {"code": 400, "type": "a_b", "message": "inside 200"}}, "inside 200"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_error_is_told_in_its_words_without_codes(httpserver, chat, told, shown):
    serve(httpserver, told)
    with pytest.raises(ModelRefused) as caught:
        ask(chat())
    assert str(caught.value).endswith(f": {shown}")


def test_a_server_error_without_words_is_named(httpserver, chat):
    serve(httpserver, (500, "500"))
    with pytest.raises(ModelUnavailable, match=r"answered 500: Internal Server Error \(tried once"):
        ask(chat(retries=Retries(tries=1)))


def test_an_address_without_its_version_is_pointed_out(httpserver, chat):
    httpserver.expect_request("/chat/completions").respond_with_data("nothing", status=404)
    with pytest.raises(ModelRefused, match=r"OPENAI_BASE_URL, which mostly ends in /v1: nothing"):
        ask(chat(base_url=httpserver.url_for("")))


def test_an_unknown_model_is_compared_with_those_that_are_there(httpserver, chat):
    serve(httpserver, error(404, "The model does not exist", code_="model_not_found"))
    listed = {"data": [{"id": "gpt-oss-120b"}, {"id": "qwen3-8b"}, {"id": 4}, "x"]}
    httpserver.expect_request("/v1/models").respond_with_json(listed)
    with pytest.raises(ModelRefused, match=r"did you mean qwen3-8b\?"):
        ask(chat(model="qwen3-8"))


def test_of_an_unknown_model_like_no_other_the_first_that_are_there_are_told(httpserver, chat):
    serve(httpserver, error(404, "The model does not exist", code_="model_not_found"))
    listed = {"data": [{"id": f"{letter * 4}-{'x' * 200}"} for letter in "abcdefgh"]}
    httpserver.expect_request("/v1/models").respond_with_json(listed)
    with pytest.raises(ModelRefused) as caught:
        ask(chat(model="zephyr"))
    assert "; it has aaaa-xxx" in str(caught.value)
    assert str(caught.value).endswith("… and 3 more")
    assert "ffff" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "listed", ["[]", "{}", PAGE, '{"data": null}', '{"data": {"a": 1}}', '{"data": 7}']
)
def test_a_list_of_models_that_is_none_changes_nothing(httpserver, chat, listed):
    serve(httpserver, error(404, "The model does not exist"))
    httpserver.expect_request("/v1/models").respond_with_data(listed)
    with pytest.raises(ModelRefused, match="CAISSON_MODEL") as caught:
        ask(chat())
    assert "it has" not in str(caught.value)


# ---- tools


@pytest.mark.parametrize(
    "told",
    [
        error(400, "registry.ollama.ai/library/m does not support tools"),
        error(404, "No endpoints found that support tool use. To learn more, see docs"),
        error(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'),
        error(500, "tools param requires --jinja flag"),
        error(400, "Unrecognized request argument supplied: tools"),
        error(400, "Function calling is not enabled for this model"),
        error(400, "`tool_choice` is not supported by this model"),
        error(400, "Conversation roles must alternate user/assistant/user/assistant/..."),
        error(500, "Jinja Exception: Conversation roles must alternate user/assistant"),
        error(400, "Only user and assistant roles are supported!"),
        error(422, "Unexpected role 'tool' after role 'assistant'"),
    ],
    ids=lambda told: told[1]["error"]["message"][:40],
)
def test_a_model_without_tools_names_the_protocol_that_needs_none(httpserver, chat, told):
    serve(httpserver, told)
    with pytest.raises(ToolsUnsupported, match="CAISSON_TOOL_PROTOCOL=text"):
        ask(chat(), tools=TOOLS)
    assert len(httpserver.log) == 1


# ---- quotas, limits, windows


@pytest.mark.parametrize(
    "told",
    [
        error(
            429,
            "You exceeded your current quota, please check your plan",
            code_="insufficient_quota",
        ),
        error(402, "Insufficient Balance"),
        error(402, "This request requires more credits, or fewer max_tokens"),
        error(403, "Your account has no credit balance"),
        error(429, "Quota exhausted for this month"),
    ],
    ids=lambda told: told[1]["error"]["message"][:30],
)
def test_an_empty_account_is_not_waited_for(httpserver, chat, told):
    serve(httpserver, told)
    with pytest.raises(QuotaSpent, match="no quota left"):
        ask(chat())


def test_a_quota_that_begins_anew_soon_is_a_rate_limit(httpserver, chat):
    told = "You exceeded your current quota, please check billing. Please retry in 0.2s."
    serve(httpserver, error(429, told), answer())
    assert ask(chat()).waited_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("told", "window"),
    [
        (
            error(
                400,
                "The maximum context length is 8192 tokens. However, you requested 9000",
            ),
            8192,
        ),
        (
            error(
                400, "the request exceeds the available context size", n_prompt_tokens=9, n_ctx=4096
            ),
            4096,
        ),
        (error(400, "prompt is too long: 210000 tokens > 200000 maximum"), 200000),
        (
            error(
                400,
                "The input token count (1200000) exceeds the most tokens allowed (1048576).",
            ),
            1048576,
        ),
        (
            error(
                400,
                "Prompt contains 40000 tokens, too large for model with 32768 maximum context",
            ),
            32768,
        ),
        (
            error(
                422,
                "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
            ),
            4096,
        ),
        (error(400, "Range of input length should be [1, 30720]"), 30720),
        (
            error(
                413,
                "Request too large on tokens per minute (TPM): Limit 6000, Requested 7000",
            ),
            6000,
        ),
        (
            error(
                429,
                "Request too large for m on tokens per min (TPM): Limit 10000, Requested 12000.",
            ),
            10000,
        ),
        (error(400, "context length exceeded, limit 20"), None),
        ((413, "<html><title>413 Request Entity Too Large</title></html>"), None),
    ],
    ids=lambda told: str(told[1])[:50] if isinstance(told, tuple) else "",
)
def test_a_request_that_never_fits_is_not_sent_again_as_it_is(httpserver, chat, told, window):
    serve(httpserver, told)
    with pytest.raises(ContextTooLong) as caught:
        ask(chat())
    assert caught.value.window == window
    assert len(httpserver.log) == 1


@pytest.mark.parametrize(
    "told",
    [
        error(
            400, "Failed to call a function. Please adjust your prompt.", code_="tool_use_failed"
        ),
        error(500, "error parsing tool call: raw='{'"),
        (429, {"error": {"message": "slow down"}}, {"Retry-After": "0"}),
    ],
    ids=["a call that the endpoint cannot read", "another", "no time to wait"],
)
def test_what_may_go_better_is_tried_again(httpserver, chat, told):
    serve(httpserver, told, answer())
    reply = ask(chat(), tools=TOOLS)
    assert reply.text == "hello"
    assert reply.waited_s > 0


def test_too_many_tokens_at_a_time_is_a_rate_limit(httpserver, chat):
    serve(httpserver, error(429, "Too many tokens, please wait before trying again."), answer())
    assert ask(chat()).text == "hello"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 20s. Contact us", 20.0),
        ("Please try again in 1m2.5s.", 62.5),
        ("Please try again in 6ms.", 0.006),
        ("Please try again in 7m33.12s. Visit", 453.12),
        ("Please retry after 26 seconds.", 26.0),
        ("try again in 2 minutes and 3 seconds", 123.0),
        ("Please retry in 37.5s.", 37.5),
        ('[{"@type": "RetryInfo", "retryDelay": "37s"}]', 37.0),
        ("Please wait 3 hours", 10_800.0),
        ("Rate limit reached", None),
        ("try again later", None),
        ("retry in a minute", None),
        ("try again in 999999999999 days", 7 * 86_400.0),
    ],
)
def test_a_wish_to_wait_is_read_from_the_text(text, seconds):
    assert asked_by_text(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2"}, 2.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"Retry-After": "1m30s"}, 90.0),
        ({"Retry-After": "-4"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": ""}, None),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-requests": "0"}, 1.0),
        (
            {
                "x-ratelimit-reset-requests": "9s",
                "x-ratelimit-remaining-requests": "5",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "0",
            },
            360.0,
        ),
        ({"x-ratelimit-reset-tokens": "88ms"}, 0.088),
        ({"ratelimit-reset": "50"}, 50.0),
        ({"x-request-id": "1"}, None),
    ],
)
def test_a_wish_to_wait_is_read_from_headers_of_each_kind(headers, seconds):
    assert asked_by_headers(headers) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("unit", [1, 1000])
def test_a_reset_may_be_a_moment(unit):
    moment = str(int((time.time() + 30) * unit))
    assert 25 < asked_by_headers({"X-RateLimit-Reset": moment}) <= 30
    assert asked_by_headers({"X-RateLimit-Reset": str(int(1.6e9 * unit))}) == 0.0


def test_a_reset_may_be_a_date():
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 30))
    assert 25 < asked_by_headers({"anthropic-ratelimit-tokens-reset": later}) <= 30


def test_what_is_asked_for_in_the_text_is_waited_for(httpserver, chat):
    serve(httpserver, error(429, "Rate limit reached. Please try again in 300ms."), answer())
    assert ask(chat()).waited_s == pytest.approx(0.3)


def test_the_number_of_tries_and_why_are_logged(httpserver, chat, caplog):
    serve(httpserver, error(503, "overloaded"), error(529, "overloaded_error"), answer())
    with caplog.at_level(logging.WARNING):
        ask(chat())
    told = [record.getMessage() for record in caplog.records if "try " in record.getMessage()]
    assert [line[:11] for line in told] == ["try 1 of 5:", "try 2 of 5:"]
    assert "529" in told[1]
    assert all(re.search(r"; again in \d+\.\d s$", line) for line in told)


# ---- learning how to ask


@pytest.mark.parametrize(
    ("refusal", "field", "values"),
    [
        ("Unsupported value: 'temperature' does not support 0.5", "temperature", (0.5, None)),
        ("temperature: Only the default (1) value is supported", "temperature", (0.5, None)),
        ("temperature: Extra inputs are not permitted", "temperature", (0.5, None)),
        (
            "'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            "max_tokens",
            (4096, None),
        ),
        (
            "max_tokens is too large: 4096. This model supports at most 1024 completion tokens",
            "max_tokens",
            (4096, 1024),
        ),
        (
            "Invalid max_tokens value, the valid range of max_tokens is [1, 2048]",
            "max_tokens",
            (4096, 2048),
        ),
        ("`max_tokens` must be less than or equal to `512`", "max_tokens", (4096, 512)),
        ("max_tokens: 4096 > 1000, which is the maximum allowed", "max_tokens", (4096, 1000)),
    ],
)
def test_what_is_refused_is_left_out_or_changed_once_and_for_all(
    httpserver, chat, refusal, field, values
):
    serve(httpserver, error(400, refusal), answer(), answer())
    model = chat(temperature=0.5)
    ask(model)
    ask(model)
    before, after = values
    given = [request.get_json().get(field) for request, _ in httpserver.log]
    assert given == [before, after, after]


SAID = Message.from_wire({**say(None, ("shell", {})), "reasoning_content": "hm"})
DONE = Message(role=Role.TOOL, content="ok", tool_call_id=SAID.tool_calls[0].id)


@pytest.mark.parametrize(
    ("refusal", "is_sent", "then"),
    [
        (
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            False,
            "hm",
        ),
        ("messages.2: property 'reasoning_content' is unsupported", True, None),
    ],
)
def test_reasoning_goes_back_or_not_as_the_endpoint_wants_it(
    httpserver, chat, refusal, is_sent, then
):
    goal = Message(role=Role.USER, content="g")
    history = (Message(role=Role.SYSTEM, content="s"), goal, SAID, DONE)
    serve(httpserver, error(400, refusal), answer(), answer())
    model = chat(send_reasoning=is_sent)
    ask(model, messages=history)
    ask(model, messages=history)
    back = [request.get_json()["messages"][2] for request, _ in httpserver.log]
    assert [b.get("reasoning_content") for b in back] == ["hm" if is_sent else None, then, then]


def test_an_endpoint_that_wants_it_both_ways_is_asked_three_times_at_most(httpserver, chat):
    goal = Message(role=Role.USER, content="g")
    history = (Message(role=Role.SYSTEM, content="s"), goal, SAID, DONE)
    wants = "reasoning_content must be passed back"
    refuses = "unknown field reasoning_content"
    serve(httpserver, error(400, wants), error(400, refuses))
    with pytest.raises(ModelRefused, match="refused the request"):
        ask(chat(), messages=history)
    assert len(httpserver.log) == 2


def test_a_template_without_a_system_role_gets_the_prompt_with_the_goal(httpserver, chat):
    serve(httpserver, error(500, "Jinja Exception: System role not supported"), answer(), answer())
    model = chat()
    ask(model)
    ask(model)
    assert [m["role"] for m in sent(httpserver)["messages"]] == ["user"]
    assert sent(httpserver)["messages"][0]["content"] == "s\n\ng"


def test_a_content_that_may_not_be_null_is_an_empty_text(httpserver, chat):
    goal = Message(role=Role.USER, content="g")
    serve(httpserver, error(422, "messages[2].content: Input should be a valid string"), answer())
    ask(chat(), messages=(Message(role=Role.SYSTEM, content="s"), goal, SAID, DONE))
    assert sent(httpserver)["messages"][2]["content"] == ""


def test_a_refusal_that_changes_nothing_is_not_sent_twice(httpserver, chat):
    serve(httpserver, error(400, "temperature is not supported"))
    with pytest.raises(ModelRefused):
        ask(chat())  # which sends none
    assert len(httpserver.log) == 1


# ---- connections


def test_a_host_that_nobody_knows(chat):
    with pytest.raises(
        ModelUnavailable, match=r"cannot find the host no\.invalid \(OPENAI_BASE_URL"
    ):
        ask(chat(base_url="http://no.invalid/v1", retries=Retries(tries=1)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate that nobody trusts, with its key."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    written = ["-subj", "/CN=127.0.0.1", "-keyout", path, "-out", path.with_suffix(".crt")]
    subprocess.run([openssl, "req", "-x509", *made, *written], check=True, capture_output=True)
    with path.open("ab") as both:
        both.write(path.with_suffix(".crt").read_bytes())
    return path


@pytest.fixture
def https(certificate):
    """The address of a TLS server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def behave(connection, ended):
        with suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True).close()

    with raw_server(behave, reads=False) as (url, _):
        yield url.replace("http:", "https:")


def test_a_certificate_that_is_not_trusted_is_not_tried_again(chat, https):
    started = time.monotonic()
    with pytest.raises(ModelRefused, match=r"not trusted \(.*SSL_CERT_FILE"):
        ask(chat(base_url=https, retries=Retries()))
    assert time.monotonic() - started < 2


def test_an_address_with_tls_of_a_server_without_it(chat, httpserver):
    url = httpserver.url_for("/v1").replace("http:", "https:")
    with pytest.raises(ModelRefused, match=r"does not speak TLS; check OPENAI_BASE_URL"):
        ask(chat(base_url=url))


def test_an_address_without_tls_of_a_server_with_it(chat, https):
    url = https.replace("https:", "http:")
    with pytest.raises(ModelUnavailable, match=r"OPENAI_BASE_URL; the address may need https://"):
        ask(chat(base_url=url))


@pytest.mark.parametrize(
    ("sent_first", "is_hinted"),
    [
        pytest.param(b"", True, id="closed at once"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x46", True, id="an alert of TLS"),
        pytest.param(b"220 mail\r\n\r\n", False, id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", False, id="cut"),
    ],
)
def test_https_is_proposed_where_no_answer_began(chat, sent_first, is_hinted):
    behave = lambda connection, ended: connection.sendall(sent_first)  # noqa: E731
    with raw_server(behave) as (url, _), pytest.raises(ModelUnavailable) as caught:
        ask(chat(base_url=url, retries=Retries(tries=1)))
    assert ("may need https://" in str(caught.value)) is is_hinted


@pytest.mark.parametrize(
    "told",
    [
        "<html><title>400 The plain HTTP request was sent to HTTPS port</title></html>",
        "Client sent an HTTP request to an HTTPS server.\n",
        "<html><h1>Bad</h1>You're speaking plain HTTP to an SSL-enabled server port.</html>",
    ],
)
def test_a_server_that_says_it_wants_tls(httpserver, chat, told):
    serve(httpserver, (400, told))
    with pytest.raises(ModelRefused, match=r"check OPENAI_BASE_URL: the address may need https://"):
        ask(chat())


def test_redirects_in_circles(chat, httpserver):
    there = httpserver.url_for("/v1/chat/completions")
    moved = Response("", status=307, headers={"Location": there})
    httpserver.expect_request("/v1/chat/completions").respond_with_response(moved)
    with pytest.raises(ModelRefused, match="redirects in circles; check OPENAI_BASE_URL"):
        ask(chat())


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_drops_the_request_says_where_it_leads(chat, httpserver, status):
    there = "http://elsewhere.example/v1/chat/completions?state=4"
    serve(httpserver, (status, "", {"Location": there}))
    with pytest.raises(ModelRefused) as caught:
        ask(chat())
    told = "leads to http://elsewhere.example/v1; set OPENAI_BASE_URL to the address there"
    assert str(caught.value) == f"{httpserver.url_for('/v1')} {told}"


def test_a_redirect_to_no_address_is_told_in_one_line(chat):
    told = b"HTTP/1.1 302 No\r\nLocation: http://[bad\r\nContent-Length: 0\r\n\r\n"
    behave = lambda connection, ended: connection.sendall(told)  # noqa: E731
    with raw_server(behave) as (url, _), pytest.raises(ModelUnavailable) as caught:
        ask(chat(base_url=url, retries=Retries(tries=1)))
    assert "OPENAI_BASE_URL" in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_redirect_to_https_says_so(chat, httpserver):
    there = httpserver.url_for("/v1/chat/completions").replace("http:", "https:")
    serve(httpserver, (301, "", {"Location": there}))
    with pytest.raises(ModelRefused, match=r"leads to https://localhost:\d+/v1; set OPENAI_BASE"):
        ask(chat())


def test_what_another_host_refuses_after_a_redirect_is_not_the_fault_of_the_key(chat, httpserver):
    told = b'HTTP/1.1 401 No\r\nContent-Length: 5\r\n\r\n"who"'
    with raw_server(lambda connection, ended: connection.sendall(told)) as (url, _):
        serve(httpserver, (307, "", {"Location": f"{url}/chat/completions"}))
        with pytest.raises(ModelRefused) as caught:
            ask(chat())
    assert f"leads to {url}; set OPENAI_BASE_URL to the address there: 401" in str(caught.value)


def test_a_host_that_a_redirect_leads_to_and_nobody_knows_is_named(chat, httpserver):
    serve(httpserver, (307, "", {"Location": "http://no.invalid/v1/chat/completions"}))
    with pytest.raises(ModelUnavailable) as caught:
        ask(chat(retries=Retries(tries=1)))
    assert "cannot find the host no.invalid (OPENAI_BASE_URL, because http://" in str(caught.value)
    assert f"{httpserver.url_for('/v1')} leads to this address" in str(caught.value)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
    ],
    ids=["nothing", "another protocol", "cut", "not gzip", "not chunked", "999", "tls"],
)
def test_what_is_no_http_is_tried_again_and_told_in_one_line(chat, garbage):
    with raw_server(lambda connection, ended: connection.sendall(garbage)) as (url, connections):
        with pytest.raises(ModelUnavailable) as caught:
            ask(chat(base_url=url, retries=Retries(tries=2, first_wait_s=0.01)))
        assert len(connections) == 2
    assert "\n" not in str(caught.value)
    assert "tried 2 times" in str(caught.value)


def test_a_server_that_accepts_and_says_nothing_is_asked_once_within_the_deadline(chat):
    with raw_server(lambda connection, ended: ended.wait(5)) as (url, connections):
        started = time.monotonic()
        with pytest.raises(ModelTimeout):
            ask(chat(base_url=url), timeout_s=0.7)
        assert time.monotonic() - started < 1.1
        assert len(connections) == 1


def test_a_cancel_is_seen_within_a_fifth_of_a_second(chat):
    with raw_server(lambda connection, ended: ended.wait(5)) as (url, _):
        until = time.monotonic() + 0.4
        with pytest.raises(Cancelled):
            ask(chat(base_url=url), is_cancelled=lambda: time.monotonic() > until)
        assert time.monotonic() - until < 0.6


# ---- replies of odd shapes


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(answer(say("a" * 1_000_000)), id="more text than can be a reply"),
        pytest.param(
            answer({"content": None, "tool_calls": [{"name": "a"}] * 20_000}),
            id="more calls than can be a reply",
        ),
    ],
)
def test_what_is_more_than_a_reply_is_not_asked_for_again(httpserver, chat, body):
    serve(httpserver, body)
    with pytest.raises(ModelUnavailable, match=r"more than 1,000,000 char.* max_output_tokens"):
        ask(chat())
    assert len(httpserver.log) == 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"choices": [{"message": None}]}, id="no message"),
        pytest.param({"choices": [None]}, id="no choice"),
        pytest.param({"choices": "x"}, id="choices are text"),
        pytest.param({"choices": {}}, id="choices are empty"),
        pytest.param({"detail": "oops"}, id="another object"),
        pytest.param("[1]", id="a list"),
        pytest.param("[" * 100_000, id="nested too deeply"),
        pytest.param(
            '{"choices": [{"message": {"content": "x", "y": ' + "[" * 300 + "]" * 300 + "}}]}",
            id="nested more deeply than can be stored",
        ),
        pytest.param({"choices": 7}, id="choices are a number"),
        pytest.param({"choices": True}, id="choices are true"),
        pytest.param(
            '{"choices": [{"message": ' + "9" * 5000 + "}]}", id="a number of 5000 digits"
        ),
        pytest.param(answer(finish="error"), id="an error as its end"),
        pytest.param(
            {"choices": [{"message": {"content": "x"}, "error": {"message": "y"}}]},
            id="an error beside it",
        ),
        pytest.param(PAGE, id="a proxy's page with 200"),
    ],
)
def test_what_is_no_reply_is_asked_for_again(httpserver, chat, body):
    serve(httpserver, body, answer())
    assert ask(chat()).text == "hello"


@pytest.mark.parametrize("depth", [70, 500, 950])
def test_an_error_that_is_nested_deeply_is_told_as_it_stands(httpserver, chat, depth):
    serve(httpserver, (400, '{"error": {"message": ' + "[" * depth + "]" * depth + "}}"))
    with pytest.raises(ModelRefused, match=r'refused the request .400.: \{"error'):
        ask(chat())


def test_a_model_may_call_itself_what_it_likes(httpserver, chat):
    serve(httpserver, answer(model="m\ud800"), answer(model=["\ud800" * 300]))
    for _ in range(2):
        reply = ask(chat())
        assert reply.model_dump_json()
        assert len(reply.model) <= 200


def test_a_page_in_place_of_every_reply_names_the_address(httpserver, chat):
    serve(httpserver, *[PAGE] * 5)
    with pytest.raises(ModelUnavailable, match=r"not answer with JSON .*OPENAI_BASE_URL.*Sign in"):
        ask(chat())


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": "9"}, {"prompt_tokens": 1e300}, [], "x", {"prompt_tokens": True}]
)
def test_counts_that_are_none_are_estimated(httpserver, chat, usage):
    serve(httpserver, answer() | {"usage": usage})
    assert 0 < ask(chat()).usage.input_tokens < 1000


def test_numbers_that_are_none_come_back_as_null(httpserver, chat):
    serve(httpserver, '{"choices": [{"message": {"content": "x", "logs": [NaN, 1e999]}}]}')
    reply = ask(chat())
    assert reply.message.extra["logs"] == [None, None]


def test_whoever_used_all_that_was_allowed_was_cut_off_whatever_is_said(httpserver, chat):
    calls = say(None, ("shell", {"command": "rm -rf /workspace/tmp"}))
    serve(httpserver, answer(calls, finish="tool_calls", usage=(9, 77)))
    assert ask(chat(), max_output_tokens=77).finish is Finish.LENGTH
    serve(httpserver, answer(calls, finish="tool_calls", usage=(9, 76)))
    assert ask(chat(), max_output_tokens=77).finish is Finish.STOP


# ---- what becomes of a job


@pytest.fixture
def drive(bench, chat, httpserver):
    """Drive a job whose model is behind the server; also gives the next request, from the store."""

    def run(*bodies):
        serve(httpserver, *bodies)
        b = bench(max_steps=6)
        b.model = chat()
        b.drive()
        request = Window().request(b.history, TOOLS)
        return b, json.loads(request.model_dump_json())

    return run


CUT = answer(say(None, ("shell", {"command": "rm -rf /workspace/tmp"})), finish="length")


def same_ids():
    calls = say(None, *(("shell", {"command": command}) for command in ("ls", "pwd", "id", "w")))
    for call, identity in zip(
        calls["tool_calls"], ["call_0", "call_0", None, "x" * 43], strict=True
    ):
        call["id"] = identity
    return answer(calls)


@pytest.mark.parametrize(
    ("bodies", "ran", "reason"),
    [
        pytest.param([same_ids(), answer()], ["ls", "pwd", "id", "w"], "answered", id="ids"),
        pytest.param([CUT, answer()], [], "answered", id="cut off once"),
        pytest.param([CUT] * 3, [], "failed", id="cut off always"),
        pytest.param(
            [answer({"content": None, "reasoning_content": "I should call"})] * 3,
            [],
            "failed",
            id="only thoughts",
        ),
        pytest.param([answer({"content": ""}), answer()], [], "answered", id="empty once"),
        pytest.param(
            [answer(say(None, ("python<|channel|>commentary", {"code": "1"}))), answer()],
            None,
            "answered",
            id="a name with a tail",
        ),
        pytest.param(
            [answer({"content": "x <think>", "tool_calls": {}}), answer()],
            [],
            "answered",
            id="no calls",
        ),
        pytest.param(
            [answer({"content": "<think>rm -rf /</think>4"})],
            [],
            "answered",
            id="thoughts in the text",
        ),
        pytest.param(
            [(429, {"error": {"message": "try again in 10ms"}}), PAGE, (503, "busy"), answer()],
            [],
            "answered",
            id="three faults in a row",
        ),
        pytest.param(
            [error(400, "maximum context length is 2048 tokens"), answer()],
            [],
            "answered",
            id="a window that is smaller",
        ),
        pytest.param(
            [error(400, "max_tokens must be at least 1, got -186"), answer()],
            [],
            "answered",
            id="no room for a reply",
        ),
    ],
)
def test_a_job_goes_on_or_has_a_named_end(drive, bodies, ran, reason):
    started = time.monotonic()
    b, again = drive(*bodies)
    assert time.monotonic() - started < 10
    job = b.history.job
    assert job.finish_reason is FinishReason(reason)
    assert job.error is None or job.error.type in {"RepliesCutOff", "EmptyReplies"}
    if ran is not None:
        assert b.sandbox.ran == ran
    assert "rm -rf /" not in (job.answer or "")
    ids = [c["id"] for m in again["messages"] for c in m["tool_calls"]]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == 9 and i.isalnum() for i in ids)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (error(401, "no"), ModelRefused),
        (error(402, "Insufficient Balance"), QuotaSpent),
        (error(400, "tools are not supported"), ToolsUnsupported),
    ],
)
def test_a_refusal_leaves_the_job_as_it_was(bench, chat, httpserver, told, kind):
    serve(httpserver, told, answer())
    b = bench()
    b.model = chat()
    with pytest.raises(kind):
        b.drive()
    assert not b.history.job.status.is_final
    assert b.drive().status is Status.SUCCEEDED  # as by another worker, with another key


def test_an_endpoint_that_cuts_prompts_without_a_word_is_pointed_out(bench, chat, httpserver):
    big = say(None, ("shell", {"command": "x" * 60_000}))
    serve(httpserver, answer(big), answer(usage=(1000, 5)))
    b = bench(max_steps=3)
    b.model = chat()
    assert b.drive().status is Status.SUCCEEDED
    assert any(
        "num_ctx" in getattr(event, "text", "") + getattr(event, "why", "")
        for event in b.watching.events
    )
