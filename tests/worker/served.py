"""Endpoints of models that say what a test wants, over real HTTP or over a bare socket."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager

from werkzeug import Response

from worker.endpoints import ModelChoice
from worker.messages import Message, Role
from worker.models.base import Request
from worker.models.openai_chat import OpenAIChat, Retries
from worker.testing import say

SYSTEM = Message(role=Role.SYSTEM, content="s")
GOAL = Message(role=Role.USER, content="g")
TOOLS = ({"type": "function", "function": {"name": "shell", "parameters": {}}},)


def answer(message=None, finish="stop", usage=(9, 4), **fields):
    counted = {"prompt_tokens": usage[0], "completion_tokens": usage[1]} if usage else None
    choice = {"index": 0, "finish_reason": finish, "message": message or say("hello")}
    return {"id": "1", "model": "m-1", "choices": [choice], "usage": counted, **fields}


QUICK = Retries(first_wait_s=0.01)


def ask(model, *, timeout_s=10.0, is_cancelled=lambda: False, messages=(SYSTEM, GOAL), **request):
    request = Request(messages=messages, **request)
    return model.reply(request, timeout_s=timeout_s, is_cancelled=is_cancelled)


def serve(httpserver, *bodies):
    """Answer with each body in turn; (status, body[, headers]) or a body of status 200."""
    for body in bodies:
        status, content, headers = (*body, {})[:3] if isinstance(body, tuple) else (200, body, {})
        text = content if isinstance(content, str) else json.dumps(content)
        kind = "text/html" if text.startswith("<") else "application/json"
        response = Response(text, status=status, headers=headers, content_type=kind)
        httpserver.expect_ordered_request("/v1/chat/completions").respond_with_response(response)


def sent(httpserver, index=-1):
    return httpserver.log[index][0].get_json()


def make_chat(url, **options):
    """A model at an address; options are of its choice, or of the class."""
    fields = {"name": "m", "model": "m", "base_url": url, "api_key": "k"}
    fields |= {k: options.pop(k) for k in list(options) if k in ModelChoice.model_fields}
    return OpenAIChat(ModelChoice(**fields), **{"retries": QUICK, **options})


@contextmanager
def raw_server(behave, *, reads=True):
    """A TCP server whose connections are handled by `behave(connection)`."""
    ended = threading.Event()
    connections = []

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection):
        if reads:
            connection.recv(65536)
        try:
            behave(connection, ended)
        except OSError:
            pass
        finally:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", connections
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
