"""The endpoint and the steps that loops are compared by."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench import endpoint
from bench.contest import Contestant, Failed
from bench.stepping import ENDPOINT, Steps

ROOT = Path(__file__).parents[2]


def tools(*names):
    return [{"type": "function", "function": {"name": name}} for name in names]


def test_the_endpoint_calls_so_often_and_then_ends():
    asked = {"model": "a/2", "tools": tools("final_answer", "double")}
    made = [endpoint.reply(asked)["tool_calls"][0]["function"] for _ in range(3)]
    assert [call["name"] for call in made] == ["double", "double", "final_answer"]
    assert [json.loads(call["arguments"]) for call in made[:2]] == [{"number": 1}, {"number": 2}]
    plain = {"model": "b/0", "tools": tools("double")}
    assert endpoint.reply(plain) == {"role": "assistant", "content": "42"}


@pytest.fixture
def port():
    with subprocess.Popen(
        [sys.executable, "-m", "bench.endpoint"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield int(process.stdout.readline())
        process.stdin.close()


def test_headers_and_body_come_in_one_piece(port):
    body = json.dumps({"model": "a/1", "tools": tools("double")}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(head.encode() + body)
        piece = line.recv(65_536)
    headers, _, answer = piece.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200")
    assert json.loads(answer)["choices"][0]["finish_reason"] == "tool_calls"


def test_steps_are_what_lies_between_calls_and_all_of_them_must_be_made():
    steps = Steps()

    def work(name):
        for number in range(int(name.rpartition("/")[2])):
            assert steps.double(number) == str(2 * number)

    assert len(steps.run(work, 5)) == 4
    assert len(steps.run(work, 3)) == 2
    with pytest.raises(AssertionError, match="0 calls of 2"):
        steps.run(lambda _: None, 2)


@pytest.mark.parametrize("kind", ["client", "memory", "sqlite"])
def test_a_loop_is_measured_step_by_step(port, kind):
    address = {ENDPOINT: f"http://127.0.0.1:{port}/v1"}
    contestant = Contestant(kind, "bench.steps", kind, environment=address)
    try:
        for act in sorted({"steps", "alone"} & {*start(contestant)}):
            taken = contestant.ask(act, 6)[act]
            assert len(taken) == 5
            assert all(0 < each < 5 for each in taken)
    finally:
        contestant.close()


def start(contestant):
    try:
        contestant.start()
    except Failed as failure:
        pytest.fail(str(failure))
    return contestant.acts


def test_histories_of_any_length_are_taken_up():
    contestant = Contestant("histories", "bench.histories")
    try:
        found = contestant.ask("history", 15)
        assert len(found["step"]) == 10
        assert len(found["load"]) == 3
    finally:
        contestant.close()
