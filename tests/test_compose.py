"""The whole stack of compose.yaml, brought up by Compose, does a job and goes without a trace."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from sandbox.engine import Engine
from sandbox.errors import ImageMissing
from tests.services import free_port

ROOT = Path(__file__).resolve().parents[1]
PROJECT = f"caisson-test-{os.getpid()}"
LABEL = f"com.docker.compose.project={PROJECT}"
WORKERS = 2
UP_TIMEOUT_S = 100
# The first two stand in for images that have to be pulled.
IMAGES = {
    "REDIS_IMAGE": "caisson-test-redis:latest",
    "POSTGRES_IMAGE": "caisson-test-postgres:latest",
    "WORKER_IMAGE": "caisson-worker:latest",
}
EXAMPLE = ROOT / "examples/operations"
SETTINGS = re.findall(r"^#?(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
OURS = ("CAISSON_", "OPENAI_", "COMPOSE_", *SETTINGS)


def compose_command():
    """How Compose is called here; empty where it is not installed."""
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    found = shutil.which("docker") and subprocess.run(
        ["docker", "compose", "version"], check=False, capture_output=True, timeout=30
    )
    return ("docker", "compose") if found and found.returncode == 0 else ()


class Compose(NamedTuple):
    """Compose with the settings of one `.env`, and nothing from the environment."""

    command: tuple[str, ...]
    settings: Path

    def run(self, *arguments, timeout_s=UP_TIMEOUT_S):
        options = ("--env-file", self.settings, "--project-name", PROJECT, "--file")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        return subprocess.run(
            [*self.command, *options, ROOT / "compose.yaml", *arguments],
            check=False,
            cwd=self.settings.parent,
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def must(self, *arguments, timeout_s=UP_TIMEOUT_S):
        done = self.run(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def compose(tmp_path_factory, leave_out):
    command = compose_command()
    if not command:
        leave_out("there is neither docker-compose nor docker compose here")
    return Compose(command, tmp_path_factory.mktemp("compose") / ".env")


def socket_of(engine):
    if not engine.url.startswith("unix://"):
        return None
    return Path(engine.url.removeprefix("unix://"))


@pytest.fixture(scope="module")
def engine(leave_out):
    with closing(Engine()) as engine:
        try:
            for image in IMAGES.values():
                engine.image(image)
        except ImageMissing as error:
            leave_out(f"{error} (scripts/images worker services)")
        if socket_of(engine) is None:
            leave_out(f"the engine at {engine.url} has no socket to give to a container")
        yield engine


def containers(engine):
    """All containers of the stack by their service, those of single commands left out."""
    found = {}
    for one in engine.labelled(LABEL):
        if one["Labels"]["com.docker.compose.oneoff"] == "False":
            service = one["Labels"]["com.docker.compose.service"]
            found.setdefault(service, []).append(engine.inspect(one["Id"]))
    return found


def unfit(engine):
    """What is not yet as it should be."""
    return {
        inspected["Name"]: inspected["State"]
        for service, all_of_it in containers(engine).items()
        for inspected in all_of_it
        if not is_fit(service, inspected["State"])
    }


def is_fit(service, state):
    if service == "migrate":
        return state["Status"] == "exited" and state["ExitCode"] == 0
    return state.get("Health", {}).get("Status") == "healthy"


@pytest.fixture(scope="module")
def stack(compose, engine, port, tmp_path_factory):
    socket = socket_of(engine)
    secrets = tmp_path_factory.mktemp("secrets")
    secrets.chmod(0o755)
    (secrets / "key").write_text("of a model\n")
    settings = {
        **IMAGES,
        "POSTGRES_PASSWORD": "aword",
        "REDIS_PASSWORD": "another",
        "DOCKER_GID": socket.stat().st_gid,
        "DOCKER_SOCKET": socket,
        "FLOWER_PORT": port,
        "HEALTH_INTERVAL": "5s",
        "FILES_DIR": EXAMPLE,
        "SECRETS_DIR": secrets,
        "OPENAI_API_KEY_FILE": "/run/secrets/key",
    }
    compose.settings.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    try:
        compose.must("--profile", "monitor", "up", "--detach", "--scale", f"worker={WORKERS}")
        wait_until_fit(engine, compose)
        yield compose
    finally:
        compose.must("--profile", "monitor", "down", "--volumes", "--timeout", "20")


@pytest.fixture(scope="module")
def port():
    return free_port()


def wait_until_fit(engine, compose):
    deadline = time.monotonic() + UP_TIMEOUT_S
    while unfit(engine):
        assert time.monotonic() < deadline, (unfit(engine), compose.run("logs").stdout)
        time.sleep(0.5)


@pytest.fixture
def alone(compose, tmp_path):
    """Compose with a `.env` of this test."""
    return compose._replace(settings=tmp_path / ".env")


def test_a_password_that_is_missing_is_asked_for(alone):
    alone.settings.write_text("DOCKER_GID=0\nREDIS_PASSWORD=a\n")
    done = alone.run("config")
    assert done.returncode != 0
    assert "POSTGRES_PASSWORD" in done.stderr
    assert "write it into .env" in done.stderr


def test_the_example_of_settings_names_all_that_the_file_needs(alone):
    example = (ROOT / ".env.example").read_text()
    filled = example.replace("PASSWORD=\n", "PASSWORD=a\n").replace("GID=\n", "GID=0\n")
    alone.settings.write_text(filled)
    alone.must("config", "--quiet")


@pytest.mark.engine
@pytest.mark.timeout(300)
class TestStack:
    def test_all_of_it_comes_up_and_workers_can_be_many(self, stack, engine):
        counts = {service: len(all_of_it) for service, all_of_it in containers(engine).items()}
        one_each = dict.fromkeys(("redis", "postgres", "migrate", "beat", "flower"), 1)
        assert counts == {**one_each, "worker": WORKERS}
        assert unfit(engine) == {}

    def test_a_job_from_outside_is_answered(self, stack):
        command = ("run", "--rm", "-T", "cli", "submit", (EXAMPLE / "goal.txt").read_text())
        files = ("--file", "access.log", "--file", "error.log", "--replay", "recording.jsonl")
        job = json.loads(stack.must(*command, *files, "--wait", "--json"))
        *_, last = (EXAMPLE / "recording.jsonl").read_text().splitlines()
        assert job["status"] == "succeeded"
        assert job["answer"] == json.loads(last)["content"]
        shown = stack.must("run", "--rm", "-T", "cli", "show", job["id"], "--json")
        assert json.loads(shown) == job

    def test_nothing_can_be_reached_from_beyond_this_machine(self, stack, engine, port):
        bindings = [
            binding
            for all_of_it in containers(engine).values()
            for inspected in all_of_it
            for ports in inspected["NetworkSettings"]["Ports"].values()
            for binding in ports or ()
        ]
        assert bindings == [{"HostIp": "127.0.0.1", "HostPort": str(port)}]

    def test_no_service_is_root_or_may_become_more(self, stack, engine):
        for service, all_of_it in containers(engine).items():
            for inspected in all_of_it:
                host = inspected["HostConfig"]
                assert inspected["Config"]["User"] not in {"", "0", "root"}, service
                assert host["CapDrop"] == ["ALL"], service
                assert "no-new-privileges:true" in host["SecurityOpt"], service
                assert host["ReadonlyRootfs"], service
                assert not host["Privileged"], service

    def test_only_workers_have_the_socket_of_the_engine(self, stack, engine):
        having = {
            service
            for service, all_of_it in containers(engine).items()
            for inspected in all_of_it
            if any("docker.sock" in mount["Destination"] for mount in inspected["Mounts"])
        }
        assert having == {"worker"}
        assert stack.must("exec", "-T", "worker", "id", "-u").strip() == "10001"

    def test_a_secret_may_come_from_a_file(self, stack):
        shown = json.loads(stack.must("run", "--rm", "-T", "cli", "config", "show", "--json"))
        origins = {setting["name"]: setting["origin"] for setting in shown}
        assert origins["api_key"] == "OPENAI_API_KEY_FILE"

    def test_the_broker_asks_for_its_password(self, stack):
        assert "NOAUTH" in stack.run("exec", "-T", "redis", "redis-cli", "ping").stdout

    def test_workers_end_when_they_are_told_to(self, stack, engine):
        stack.must("stop", "worker")
        codes = [inspected["State"]["ExitCode"] for inspected in containers(engine)["worker"]]
        assert codes == [0] * WORKERS  # 137: killed, because it did not listen

    def test_it_goes_without_a_trace(self, stack, engine):
        stack.must("--profile", "monitor", "down", "--volumes", "--timeout", "20")
        assert engine.labelled(LABEL) == []
        assert not engine._client.volumes(filters={"label": LABEL})["Volumes"]
        assert engine._client.networks(filters={"label": LABEL}) == []
