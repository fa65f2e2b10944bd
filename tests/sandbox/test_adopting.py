"""A sandbox that changes hands: taken over, let go of, cut off, and closed to its former host."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sandbox import docker as docker_driver
from sandbox import opening
from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.errors import (
    Detached,
    EngineUnavailable,
    GuestTimeout,
    LinkLost,
    SandboxLost,
    StaleGeneration,
)
from sandbox.hardening import container_options
from sandbox.types import Limits, Outcome, SandboxSpec
from tests.sandbox.test_conformance import InBackground
from tests.sandbox.test_faults import docker

pytestmark = pytest.mark.engine

ENGINE_SOCKET = Path("/var/run/docker.sock")
COUNTED = (
    "import time\nprint('began')\nopen('count', 'a').write('x')\ntime.sleep(2)\nprint('ended')"
)


@pytest.fixture
def spec(job):
    """The spec of one job's sandbox, at a generation: `spec(2)`."""

    def make(generation=1, **fields):
        given = {"linger_s": 30, "store": "test-store", **fields}
        return SandboxSpec(job=job, generation=generation, **given)

    return make


@pytest.fixture
def adopt(spec):
    """Take over by the place: `adopt(sandbox, 2)`; closed with the test."""
    adopted = []

    def take(sandbox, generation=2, **options):
        made = DockerSandbox.adopt(sandbox.place, spec(generation), **options)
        adopted.append(made)
        return made

    yield take
    for made in adopted:
        made.close()


def state(sandbox):
    with closing(Engine()) as engine:
        return engine.state(sandbox.container)


def is_running(sandbox):
    found = state(sandbox)
    return found is not None and found["Running"]


class TestTakingOver:
    def test_the_call_in_flight_is_waited_for_and_has_run_once(self, start, spec, adopt):
        first = start(spec=spec())
        first.python("x = 41")
        call = InBackground(lambda: first.python(COUNTED, execution_id="slow"))
        second = adopt(first)
        done = second.python(COUNTED, execution_id="slow")
        assert (done.outcome, done.output) == (Outcome.OK, "began\nended\n")
        assert second.python("x + 1, open('count').read()").value == "(42, 'x')"
        with pytest.raises((StaleGeneration, LinkLost)):
            call.result()

    def test_a_finished_call_is_collected(self, start, spec, adopt):
        first = start(spec=spec())
        done = first.python("print('done')", execution_id="a")
        second = adopt(first)
        assert second.recall("a") == done
        assert second.recall("never") is None

    def test_the_place_stays_the_same(self, start, spec, adopt):
        first = start(spec=spec())
        second = adopt(first)
        assert (second.place, second.container) == (first.place, first.container)

    def test_what_was_let_go_of_is_taken_over_with_its_call(self, start, spec, adopt):
        first = start(spec=spec())
        call = InBackground(lambda: first.python(COUNTED, execution_id="slow"))
        first.detach()
        with pytest.raises(Detached):
            call.result(1)
        second = adopt(first)
        assert second.python(COUNTED, execution_id="slow").output == "began\nended\n"
        assert second.python("open('count').read()").value == "'x'"

    def test_an_adopted_sandbox_can_be_let_go_of_and_adopted_again(self, start, spec, adopt):
        first = start(spec=spec())
        second = adopt(first)
        call = InBackground(lambda: second.python(COUNTED, execution_id="slow"))
        second.detach()
        with pytest.raises(Detached):
            call.result(1)
        third = adopt(first, 3)
        assert third.python(COUNTED, execution_id="slow").output == "began\nended\n"

    def test_a_container_with_the_labels_of_an_older_version_is_taken_over(self, spec, adopt):
        def older(spec, **options):
            body = container_options(spec, **options)
            kept = {"caisson.job": spec.job, "caisson.owner": "host:123"}
            return body | {"Labels": kept}

        first = DockerSandbox.start(spec(), harden=older)
        assert adopt(first).python("1 + 1").value == "2"
        first.detach()

    def test_half_a_line_of_a_dead_host_is_harmless(self, start, spec, adopt):
        first = start(spec=spec())
        first._session.link.send(b'{"kind":"python","id":"half","te', time.monotonic() + 5)
        assert adopt(first).python("1 + 1").value == "2"


class TestRefusing:
    def test_a_host_of_a_lower_generation(self, start, spec, adopt):
        first = start(spec=spec(5))
        with pytest.raises(StaleGeneration, match="generation 5"):
            adopt(first, 4)
        assert first.python("1 + 1").value == "2"

    def test_a_container_that_is_gone(self, start, spec, adopt):
        first = start(spec=spec())
        first.close()
        with pytest.raises(SandboxLost, match="removed"):
            adopt(first)

    def test_a_container_that_has_stopped_which_is_removed(self, start, spec, adopt):
        first = start(spec=spec())
        docker("kill", first.container)
        with pytest.raises(SandboxLost, match="137"):
            adopt(first)
        assert state(first) is None

    def test_another_jobs_container_which_stays(self, start, spec, job):
        first = start(spec=spec())
        other = spec().model_copy(update={"job": f"{job}-other"})
        with pytest.raises(SandboxLost, match="not one of job"):
            DockerSandbox.adopt(first.place, other)
        assert first.python("1 + 1").value == "2"

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_an_engine_that_is_not_there(self, start, spec, adopt):
        first = start(spec=spec())
        with pytest.raises(EngineUnavailable):
            adopt(first, engine_url="unix:///nowhere.sock")
        assert first.python("1 + 1").value == "2"
        gc.collect()  # docker-py leaves the socket of a failed connection to the collector

    def test_a_paused_container_which_stays(self, start, spec, adopt):
        first = start(spec=spec())
        docker("pause", first.container)
        began = time.monotonic()
        with pytest.raises(GuestTimeout, match="paused"):
            adopt(first)
        assert time.monotonic() - began < 5
        docker("unpause", first.container)
        assert first.python("1 + 1").value == "2"

    def test_a_wedged_guest_which_is_removed(self, start, spec, adopt, monkeypatch):
        monkeypatch.setattr(docker_driver, "ADOPT_S", 1.5)
        monkeypatch.setattr(docker_driver, "FENCE_S", 0.5)
        first = start(spec=spec())
        docker("kill", "--signal", "STOP", first.container)
        began = time.monotonic()
        with pytest.raises(GuestTimeout):
            adopt(first)
        assert time.monotonic() - began < 10
        assert state(first) is None

    def test_containers_that_end_at_that_very_moment(self, start, job):
        chance = random.Random(7)
        for number in range(8):
            life_s = chance.uniform(0.05, 0.5)
            first = start(spec=SandboxSpec(job=job, linger_s=30, limits=Limits(max_life_s=life_s)))
            time.sleep(chance.uniform(0, life_s))
            began = time.monotonic()
            with contextlib.suppress(SandboxLost):
                second = DockerSandbox.adopt(first.place, SandboxSpec(job=job, generation=2))
                second.close()
            assert time.monotonic() - began < 5, number
            first.close()
            assert state(first) is None


class TestFormerHosts:
    """A host that was stopped and goes on, long after another has taken its place."""

    PROGRAM = """
import sys
import sandbox.session
from sandbox.docker import DockerSandbox
from sandbox.errors import SandboxUnavailable
from sandbox.types import SandboxSpec

spec, code, sandbox.session.ENDING_S = SandboxSpec.model_validate_json(sys.argv[1]), sys.argv[2], 1
held = DockerSandbox.start(spec)
held.python("x = 41")
print(held.container, flush=True)
for call in (
    lambda: held.python(code, timeout_s=float(sys.argv[3]), execution_id="slow"),
    lambda: held.shell("echo y >> count"),
    held.files,
):
    try:
        call()
    except SandboxUnavailable as error:
        print(type(error).__name__, flush=True)
held.close()
print("closed", flush=True)
"""

    # With a short limit it finds its own deadline gone when it wakes up, before it reads anything.
    @pytest.mark.parametrize("timeout_s", [30, 2.5], ids=["reading", "past its deadline"])
    def test_it_can_do_nothing(self, spec, timeout_s):
        code = COUNTED
        command = [sys.executable, "-c", self.PROGRAM, spec().model_dump_json(), code]
        with subprocess.Popen([*command, str(timeout_s)], stdout=subprocess.PIPE) as old:
            container = old.stdout.readline().decode().strip()
            time.sleep(0.5)
            old.send_signal(signal.SIGSTOP)
            second = DockerSandbox.adopt(container[:12], spec(2))
            try:
                assert second.python(code, execution_id="slow").output == "began\nended\n"
                time.sleep(3)
                old.send_signal(signal.SIGCONT)
                said = old.communicate(timeout=20)[0].decode().split()
                assert len(said) == 4
                assert said[-1] == "closed"
                assert second.python("x, open('count').read()").value == "(41, 'x')"
            finally:
                second.close()
        with closing(Engine()) as engine:
            assert engine.state(container) is None

    def test_closing_removes_nothing_of_a_newer_host(self, start, spec, adopt):
        first = start(spec=spec())
        second = adopt(first)
        first.close()
        assert second.python("1 + 1").value == "2"

    def test_it_is_told_and_leaves_no_trace(self, start, spec, adopt):
        first = start(spec=spec())
        second = adopt(first)
        with pytest.raises(StaleGeneration, match="generation 2 owns"):
            first.python("open('trace', 'w')")
        first.close()
        assert second.files() == ()

    def test_a_job_that_is_still_ours_is_closed_in_the_middle_of_a_call(self, start, spec):
        first = start(spec=spec())
        call = InBackground(lambda: first.python("import time\ntime.sleep(20)"))
        first.close()
        with pytest.raises(SandboxLost, match="closed"):
            call.result(2)
        assert state(first) is None


class Proxy:
    """Stands between a host and its engine, and can be away."""

    def __init__(self, path):
        self.url = f"unix://{path}"
        self._path = path
        self._pairs = []
        self._listener = self._listen()

    def _listen(self):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener):
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(ENGINE_SOCKET))
                self._pairs.append((near, far))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self):
        """Break every connection; new ones are taken."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def go_away(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        self.cut()

    def come_back(self):
        self._listener = self._listen()


@pytest.fixture
def proxy(tmp_path):
    """An engine that can be away, without harm to the real one."""
    if not ENGINE_SOCKET.exists():
        pytest.skip("the engine is not at its usual socket")
    made = Proxy(tmp_path / "engine.sock")
    yield made
    made.go_away()


class TestCutOff:
    @pytest.fixture
    def by_engine(self, proxy, monkeypatch):
        """Let the engine behind the proxy carry the links to its sandboxes."""
        monkeypatch.setattr(opening, "without_doors", {proxy.url})

    @pytest.fixture
    def first(self, proxy, spec, by_engine):
        """A sandbox whose engine is behind the proxy."""
        made = DockerSandbox.start(spec(), engine_url=proxy.url)
        yield made
        made.detach()
        with closing(Engine()) as engine:
            engine.remove(made.container)

    def test_a_call_by_the_door_does_not_even_notice(self, proxy, spec):
        with closing(DockerSandbox.start(spec(), engine_url=proxy.url)) as sandbox:
            call = InBackground(lambda: sandbox.python(COUNTED))
            proxy.go_away()
            assert call.result(10).output == "began\nended\n"
            assert sandbox.python("1").value == "1"
            proxy.come_back()

    def test_a_broken_link_is_no_loss(self, proxy, first, adopt):
        first.python("x = 41")
        call = InBackground(lambda: first.python(COUNTED, execution_id="slow"))
        proxy.cut()
        with pytest.raises(LinkLost, match="runs on"):
            call.result(5)
        with pytest.raises(LinkLost):
            first.files()
        first.detach()
        second = adopt(first, 1)
        assert second.python(COUNTED, execution_id="slow").output == "began\nended\n"
        assert second.python("x, open('count').read()").value == "(41, 'x')"

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_an_engine_that_is_away_for_a_while_is_no_loss(self, proxy, first, adopt):
        call = InBackground(lambda: first.python(COUNTED, execution_id="slow"))
        proxy.go_away()
        with pytest.raises(LinkLost, match=r"no Docker engine answers at .*engine\.sock"):
            call.result(5)
        first.detach()
        with pytest.raises(EngineUnavailable):
            adopt(first, engine_url=proxy.url)
        proxy.come_back()
        second = adopt(first, engine_url=proxy.url)
        assert second.python(COUNTED, execution_id="slow").output == "began\nended\n"
        gc.collect()  # as above

    @pytest.mark.parametrize("store", ["", "test-store"])
    def test_whoever_does_not_adopt_closes_and_nothing_is_left(self, proxy, spec, store, by_engine):
        first = DockerSandbox.start(spec(store=store), engine_url=proxy.url)
        proxy.cut()
        with pytest.raises(LinkLost):
            first.python("1")
        assert is_running(first)
        first.close()
        assert state(first) is None
        with pytest.raises(SandboxLost):
            first.python("1")

    def test_letting_go_wins_over_asking_how_it_ended(self, proxy, first):
        call = InBackground(lambda: first.python("import time\ntime.sleep(20)"))
        proxy.cut()
        time.sleep(0.3)  # the engine is being asked now, for two seconds
        first.detach()
        with pytest.raises(Detached):
            call.result(1)
        assert is_running(first)

    def test_a_container_that_ended_meanwhile_is_a_loss(self, proxy, first):
        call = InBackground(lambda: first.python("import time\ntime.sleep(20)"))
        docker("kill", first.container)
        with pytest.raises(SandboxLost, match="137"):
            call.result(5)
        assert state(first) is None
