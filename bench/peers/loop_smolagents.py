"""smolagents' ToolCallingAgent."""

from __future__ import annotations

from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.monitoring import LogLevel

from bench.serve import serve
from bench.stepping import GOAL, Steps, base_url

_steps = Steps()


@tool
def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number.
    """
    return _steps.double(number)


class Loop:
    """A new agent for each run."""

    def steps(self, count: int) -> list[float]:
        return _steps.run(lambda model: self._work(model, count), count)

    def _work(self, name: str, count: int) -> None:
        model = OpenAIModel(name, api_base=base_url(), api_key="none")
        agent = ToolCallingAgent([double], model, max_steps=count + 2, verbosity_level=LogLevel.OFF)
        assert agent.run(GOAL) == "42"


if __name__ == "__main__":
    serve(Loop(), "smolagents")
