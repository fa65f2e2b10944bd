"""What a worker's processes ask of several models: roles, fallbacks, and slots that they share."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.queue.conftest import eventually
from tests.worker.served import answer
from worker.messages import Status
from worker.store.blobs import Blobs
from worker.submission import Submission, submit
from worker.testing import say


class Endpoint(ThreadingHTTPServer):
    """Refuses `first`, plans as `planner`, and answers as `second`, which takes its time."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Asked)
        self.lock = threading.Lock()
        self.keys = set()
        self.running = self.most = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, model):
        if model == "first":
            return 401, {"error": {"message": "no such key"}}
        if model == "planner":
            return 200, answer(say(None, ("python_interpreter", {"code": "40 + 2"})), model=model)
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.4)
        with self.lock:
            self.running -= 1
        return 200, answer(say("It is 42."), model=model)


class Asked(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.add((body["model"], self.headers["Authorization"]))
        status, said = self.server.reply(body["model"])
        content = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def endpoint():
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_jobs_of_a_worker_are_planned_go_on_with_a_fallback_and_share_its_slots(place_with):
    with endpoint() as server:
        models = {name: {"base_url": server.url} for name in ("first", "planner", "second")}
        models["second"] |= {"max_concurrent": 1, "api_key": "k2"}
        place = place_with(
            model="first", planner_model="planner", fallbacks="second", models=models
        )
        worker = place.worker()
        what = Submission(goal="what is 40 + 2?")
        jobs = [
            submit(what, place.settings, place.store, Blobs(place.home / "blobs")) for _ in "abc"
        ]
        place.ring(3)
        eventually(lambda: all(place.is_over(job) for job in jobs))
    for job in jobs:
        assert place.job(job).status is Status.SUCCEEDED
        assert place.job(job).answer == "It is 42."
        replies = [event.reply for event in place.store.events(job) if event.kind == "reply"]
        assert [reply.model for reply in replies] == ["planner", "second"]
        results = [event.result for event in place.store.events(job) if event.kind == "result"]
        assert [result.execution.value for result in results] == ["42"]
    assert server.most == 1
    assert ("second", "Bearer k2") in server.keys
    assert "k2" not in "\n".join(worker.lines)
