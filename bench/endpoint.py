"""A chat endpoint that answers at once: with a call of the tool that it is offered, or its end.

    python -m bench.endpoint        prints its port, and ends with its stdin

The name of the model says how many calls it will make: `NAME/CALLS`; each name is a conversation of
its own. Headers and body leave in one write: in two, the second would wait for the delayed
acknowledgement of the first, 40 ms.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

END = "final_answer"  # the tool with which some agents want to end
_asked: Counter[str] = Counter()


def reply(request: dict[str, Any]) -> dict[str, Any]:
    """The next message of a conversation."""
    model = str(request["model"])
    _asked[model] += 1
    names = [tool["function"]["name"] for tool in request.get("tools", ())]
    work = next(name for name in names if name != END)
    if _asked[model] <= int(model.rpartition("/")[2]):
        return call(work, {"number": _asked[model]})
    del _asked[model]
    return call(END, {"answer": "42"}) if END in names else {"content": "42", "role": "assistant"}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"id": f"call_{arguments.get('number', 0)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def completion(request: dict[str, Any]) -> dict[str, Any]:
    message = reply(request)
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20  # flushed once, when the whole answer is in it
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(completion(request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
