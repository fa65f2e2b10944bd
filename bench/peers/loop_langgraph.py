"""LangGraph's prebuilt agent, over LangChain's OpenAI client; without a checkpointer."""

from __future__ import annotations

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

from bench.serve import serve
from bench.stepping import ABOUT, GOAL, Steps, base_url

_steps = Steps()


@tool(description=ABOUT)
def double(number: int) -> str:
    return _steps.double(number)


class Loop:
    """A new agent for each run."""

    def steps(self, count: int) -> list[float]:
        return _steps.run(lambda model: self._work(model, count), count)

    def _work(self, name: str, count: int) -> None:
        agent = create_react_agent(
            ChatOpenAI(model=name, base_url=base_url(), api_key="none"), [double]
        )
        asked = {"messages": [("user", GOAL)]}
        ended = agent.invoke(asked, {"recursion_limit": 2 * count + 4})
        assert ended["messages"][-1].content == "42"


if __name__ == "__main__":
    serve(Loop(), "langgraph")
