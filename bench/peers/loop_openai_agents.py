"""The OpenAI Agents SDK, over chat completions."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from bench.serve import serve
from bench.stepping import ABOUT, GOAL, Steps, base_url

_steps = Steps()


@function_tool(description_override=ABOUT)
def double(number: int) -> str:
    return _steps.double(number)


class Loop:
    """A new agent for each run, one client and event loop for all."""

    def __init__(self) -> None:
        set_tracing_disabled(disabled=True)
        self._client = AsyncOpenAI(base_url=base_url(), api_key="none")
        self._loop = asyncio.new_event_loop()

    def steps(self, count: int) -> list[float]:
        return _steps.run(lambda model: self._work(model, count), count)

    def _work(self, name: str, count: int) -> None:
        model = OpenAIChatCompletionsModel(model=name, openai_client=self._client)
        agent = Agent(name="bench", model=model, tools=[double])
        running = Runner.run(agent, GOAL, max_turns=count + 2)
        assert self._loop.run_until_complete(running).final_output == "42"


if __name__ == "__main__":
    serve(Loop(), "openai-agents")
