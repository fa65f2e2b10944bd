"""Pydantic AI, over chat completions."""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.serve import serve
from bench.stepping import ABOUT, GOAL, Steps, base_url

_steps = Steps()


class Loop:
    """A new agent for each run, one client and event loop for all."""

    def __init__(self) -> None:
        self._provider = OpenAIProvider(base_url=base_url(), api_key="none")
        self._loop = asyncio.new_event_loop()

    def steps(self, count: int) -> list[float]:
        return _steps.run(lambda model: self._work(model, count), count)

    def _work(self, name: str, count: int) -> None:
        agent = Agent(OpenAIChatModel(name, provider=self._provider))

        @agent.tool_plain(description=ABOUT)
        def double(number: int) -> str:
            return _steps.double(number)

        running = agent.run(GOAL, usage_limits=UsageLimits(request_limit=count + 2))
        assert self._loop.run_until_complete(running).output == "42"


if __name__ == "__main__":
    serve(Loop(), "pydantic-ai-slim")
