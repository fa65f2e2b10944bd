"""smolagents' CodeAgent: one question from stdin, one answer as JSON on stdout.

Its code runs in its own Docker executor, over the image with its kernel gateway and the same
libraries; the table is shown to it read-only in its folder.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, OpenAIModel
from smolagents.monitoring import LogLevel

from bench.setting import peers_image

_FOLDER = "/data"


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Run an agent with the options that its documentation shows."""
    table = Path(asked["table"])
    shown = {str(table): {"bind": f"{_FOLDER}/{table.name}", "mode": "ro"}}
    model = OpenAIModel(
        asked["model"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        temperature=asked["temperature"],
        max_tokens=asked["max_tokens"],
        client_kwargs={"timeout": asked["timeout_s"]},
    )
    agent = CodeAgent(
        [],
        model,
        max_steps=asked["max_steps"],
        verbosity_level=LogLevel.OFF,
        additional_authorized_imports=["numpy", "pandas", "scipy", "scipy.stats"],
        executor_type="docker",
        executor_kwargs={
            "port": _free_port(),
            "image_name": peers_image(),
            "build_new_image": False,
            "container_run_kwargs": {"volumes": shown, "working_dir": _FOLDER},
        },
        return_full_result=True,
    )
    try:
        done = agent.run(asked["goal"])
    finally:
        agent.cleanup()
    usage = done.token_usage
    steps = [step for step in done.steps if "step_number" in step]
    return {
        "answer": "" if done.output is None else str(done.output),
        "steps": len(steps),
        "tokens": usage.input_tokens + usage.output_tokens if usage else 0,
        "trace": [
            f"{step.get('model_output')}\n---\n{step.get('observations')}\n{step.get('error')}"
            for step in steps
        ],
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    found = answer(json.load(sys.stdin))
    print(json.dumps(found))
