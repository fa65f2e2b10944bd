"""A step of our loop, with each store; and of a bare loop over the same client, with none.

    contestants: memory, sqlite, postgres, client

The loop is the product's, with its hooks, its window and its prompt; only its tools are replaced by
the trivial one that all agents here are given.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from openai import OpenAI

from bench.serve import serve
from bench.stepping import ABOUT, GOAL, Steps, base_url
from bench.stores import opened
from worker import assembly
from worker.builtin import Workplace
from worker.endpoints import ModelChoice
from worker.history import History
from worker.hooks import Run
from worker.messages import Job, MessageAdded
from worker.models.base import Model
from worker.models.openai_chat import OpenAIChat
from worker.settings import Settings
from worker.store.base import Store
from worker.testing import FakeSandbox, ScriptedModel, say
from worker.tools import Toolbox, tool


def claimed(store: Store, job_id: str, settings: Settings) -> Run:
    """A new job as a worker holds it, with its first messages."""
    store.create(Job(id=job_id, goal=GOAL, budget=settings.budget()))
    claim = store.claim(job_id, "bench", 600.0)
    run = Run(History(*store.load(job_id)), store, claim.generation)
    for message in assembly.opening(GOAL):
        run.append(MessageAdded(message=message))
    return run


def drive(store: Store, model: Model, act: Callable[[int], str], count: int) -> str:
    """Work on a job of so many steps until its answer; returns its id."""

    def double(number: int) -> str:
        return act(number)

    double.__doc__ = ABOUT
    settings = Settings(max_steps=count + 2)
    run = claimed(store, f"bench-{model.name.replace('/', '-')}", settings)
    loop = assembly.build(settings, model, Workplace(FakeSandbox))
    job = replace(loop, tools=Toolbox([tool(double)], place=lambda: "bench")).drive(run)
    assert job.answer == "42", job
    store.release(job.id, generation=run.generation)
    return job.id


class Named(ScriptedModel):
    """Replies as the endpoint's, without the way there."""

    def __init__(self, name: str, count: int) -> None:
        calls = [say(None, ("double", {"number": n + 1})) for n in range(count)]
        super().__init__([*calls, say("42")])
        self.name = name


class Loop:
    """Our loop with one kind of store."""

    def __init__(self, kind: str) -> None:
        self._steps, self._stack = Steps(), ExitStack()
        self._store, _ = self._stack.enter_context(opened(kind))

    def steps(self, count: int) -> list[float]:
        """What each step takes over HTTP."""
        return self._steps.run(lambda name: self._over_http(name, count), count)

    def alone(self, count: int) -> list[float]:
        """What of that is the loop's and the store's."""
        return self._steps.run(
            lambda name: drive(self._store, Named(name, count), self._steps.double, count), count
        )

    def end(self) -> None:
        self._stack.close()

    def _over_http(self, name: str, count: int) -> None:
        model = OpenAIChat(ModelChoice(name=name, model=name, base_url=base_url()))
        try:
            drive(self._store, model, self._steps.double, count)
        finally:
            model.close()


class Client:
    """The least that can be written over the same client."""

    def __init__(self) -> None:
        self._steps = Steps()
        self._client = OpenAI(base_url=base_url(), api_key="none", max_retries=0)

    def steps(self, count: int) -> list[float]:
        return self._steps.run(self._work, count)

    def _work(self, name: str) -> None:
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        function = {"name": "double", "description": ABOUT, "parameters": schema}
        messages: list[Any] = [{"role": "user", "content": GOAL}]
        while True:
            answer = self._client.chat.completions.create(
                model=name, messages=messages, tools=[{"type": "function", "function": function}]
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                said = self._steps.double(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


if __name__ == "__main__":
    chosen = sys.argv[1]
    serve(*((Client(), "openai") if chosen == "client" else (Loop(chosen), "caisson")))
