"""Infrastructure that fails: each fault has its own error, soon, and leaves nothing behind."""

from __future__ import annotations

import gc
import io
import socket
import subprocess
import tarfile
import threading
import time
from contextlib import closing

import pytest

from sandbox import bundle
from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.errors import (
    EngineUnavailable,
    ImageMissing,
    ImageUnsuitable,
    ProtocolError,
    SandboxLost,
    SandboxUnavailable,
    SpecInvalid,
)
from sandbox.types import Limits, Outcome, SandboxSpec

pytestmark = pytest.mark.engine


def docker(*words, data=None):
    return subprocess.run(["docker", *words], input=data, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def image_without_python():
    """An image that holds one file and nothing to run."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    name = "caisson-test-nopython:1"
    docker("import", "-", name, data=archive.getvalue())
    yield name
    docker("rmi", name)


class TestStarting:
    def test_a_missing_image_is_named_and_never_pulled(self, start, job):
        began = time.monotonic()
        with pytest.raises(ImageMissing, match=r"no-such-image:7"):
            start(spec=SandboxSpec(job=job, image="no-such-image:7"))
        assert time.monotonic() - began < 3

    def test_an_image_without_python_is_named(self, start, job, image_without_python):
        with pytest.raises(ImageUnsuitable, match=r"Python 3\.9 or newer"):
            start(spec=SandboxSpec(job=job, image=image_without_python))

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_an_engine_that_is_not_there_is_named_by_its_address(self, job):
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"unix:///nowhere\.sock"):
            DockerSandbox.start(SandboxSpec(job=job), engine_url="unix:///nowhere.sock")
        assert time.monotonic() - began < 3
        gc.collect()  # docker-py leaves the socket of a failed connection to the collector

    def test_an_engine_that_does_not_answer_is_given_up(self, job, tmp_path):
        path = tmp_path / "mute.sock"
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(str(path))
            mute.listen()
            began = time.monotonic()
            with pytest.raises(EngineUnavailable, match="mute"):
                DockerSandbox.start(SandboxSpec(job=job), engine_url=f"unix://{path}")
            assert time.monotonic() - began < 15

    def test_a_runtime_that_the_engine_lacks_is_an_error_not_a_fallback(self, start, job):
        with pytest.raises(SpecInvalid, match=r"runsc-missing; change `runtime` \(docker info"):
            start(spec=SandboxSpec(job=job, runtime="runsc-missing"))

    def test_more_processors_than_there_are_name_the_setting(self, start, job):
        with pytest.raises(SpecInvalid, match=r"Range of CPUs .*; change `cpus`"):
            start(spec=SandboxSpec(job=job, limits=Limits(cpus=999)))

    def test_a_network_that_does_not_exist_is_an_error(self, start, job):
        with pytest.raises(SpecInvalid, match=r"no-such-network not found; change `network`"):
            start(spec=SandboxSpec(job=job, network="no-such-network"))


class TestTravelling:
    """The guest comes with the worker; an image's compiled copy is used only if it is the same."""

    def where(self, sandbox):
        code = "import sys\nprint(sys.modules['caisson_guest.main'].__spec__.origin)"
        return sandbox.python(code).output

    def test_the_images_own_copy_is_the_travellers(self, start):
        assert self.where(start()) == "/usr/lib/caisson/caisson_guest/main.py\n"

    def test_another_copy_is_passed_over(self, start, monkeypatch):
        constants = bundle._constants()
        other = constants.replace("DIGEST = '", "DIGEST = 'other")
        monkeypatch.setattr(bundle, "_constants", lambda: other)
        assert self.where(start()) == "None\n"


class TestLosing:
    def test_a_container_removed_from_outside_between_calls(self, container):
        docker("rm", "-f", container.container)
        began = time.monotonic()
        with pytest.raises(SandboxLost, match="removed from outside"):
            container.python("1")
        assert time.monotonic() - began < 5
        with pytest.raises(SandboxLost):
            container.python("1")

    def test_a_container_removed_in_the_middle_of_a_call(self, container):
        threading.Timer(0.5, docker, ["rm", "-f", container.container]).start()
        began = time.monotonic()
        with pytest.raises(SandboxLost):
            container.python("import time\ntime.sleep(30)")
        assert time.monotonic() - began < 6

    def test_a_container_killed_from_outside_is_told_with_its_exit_code(self, container):
        docker("kill", container.container)
        with pytest.raises(SandboxLost, match="137"):
            container.python("1")

    def test_a_sandbox_ends_itself_at_its_maximum_life(self, start):
        sandbox = start(max_life_s=1.5)
        with pytest.raises(SandboxLost, match=r"maximum life of 1\.5 s"):
            sandbox.python("import time\ntime.sleep(30)")

    def test_a_frozen_container_is_given_up_after_the_hosts_own_deadline(self, start, monkeypatch):
        monkeypatch.setattr("sandbox.session.ENDING_S", 1.0)
        sandbox = start()
        docker("pause", sandbox.container)
        with pytest.raises(SandboxUnavailable, match="does not answer"):
            sandbox.python("1", timeout_s=0.5)
        with closing(Engine()) as engine:
            assert engine.state(sandbox.container) is None

    def test_a_sandbox_without_a_host_ends_by_itself(self, job):
        sandbox = DockerSandbox.start(SandboxSpec(job=job, linger_s=0.5))
        sandbox._session.close()
        engine = Engine()
        deadline = time.monotonic() + 5
        while engine.state(sandbox.container)["Running"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        sandbox.close()
        engine.close()


class TestLimitsAreEnforced:
    """Each limit is given an odd value, and the kernel is asked what it has got."""

    def test_open_files(self, start):
        assert start(open_files=177).shell("ulimit -n").output == "177\n"

    def test_cpus(self, start):
        code = "import time\nt, c = time.time(), time.process_time()\n"
        code += "while time.time() - t < 2: pass\n(time.process_time() - c) / 2"
        share = float(start(cpus=0.3).python(code).value)
        assert share < 0.45

    def test_inodes(self, start):
        sandbox = start(inodes=300)
        done = sandbox.python("for i in range(1000): open(str(i), 'w').close()")
        assert done.error.type == "OSError"
        assert 250 < len(sandbox.files()) <= 300

    def test_workspace_and_tmp_sizes(self, start):
        sandbox = start(workspace_bytes=7 * 2**20, tmp_bytes=3 * 2**20)
        sizes = sandbox.shell("df -B1 --output=size /workspace /tmp | tail -2").output.split()
        assert sizes == [str(7 * 2**20), str(3 * 2**20)]

    def test_default_time_limit(self, start):
        done = start(timeout_s=0.7).python("import time\ntime.sleep(10)")
        assert "time limit of 0.7 s" in done.limit

    def test_output_limits(self, start):
        sandbox = start(output_bytes=2000, spill_bytes=5000, output_kill_bytes=65_536)
        done = sandbox.python("print('x' * 10_000)")
        assert len(done.output) < 2500
        spilled = io.BytesIO()
        assert sandbox.read_file(done.output_file, spilled) == 5000
        assert sandbox.python("while True: print('x' * 1000)").outcome is Outcome.OUTPUT_LIMIT

    def test_reading_limit(self, start):
        sandbox = start(read_bytes=10)
        sandbox.shell("echo 12345678901 > f")
        with pytest.raises(SpecInvalid, match="limit is 10"):
            sandbox.read_file("f", io.BytesIO())

    def test_negative_and_nonsense_limits_are_refused(self):
        for wrong in ({"memory_bytes": -1}, {"cpus": 0}, {"pids": 1}, {"timeout_s": float("nan")}):
            with pytest.raises(ValueError, match="Limits"):
                Limits(**wrong)


def test_protocol_error_is_infrastructure():
    assert issubclass(ProtocolError, SandboxUnavailable)


@pytest.fixture
def plots(start):
    return start()


class TestFigures:
    def test_open_figures_are_saved_and_closed(self, plots):
        code = "import matplotlib.pyplot as plt\nfor i in range(2):\n    plt.figure()\n'value'"
        done = plots.python(code)
        assert done.value == "'value'"
        assert [(f.name, f.mime) for f in done.files] == [
            ("figure-1.png", "image/png"),
            ("figure-2.png", "image/png"),
        ]
        assert plots.python("plt.get_fignums()").value == "[]"

    def test_a_figure_that_cannot_be_drawn_costs_neither_the_value_nor_later_calls(self, plots):
        code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.title('$\\\\foo{$')\n'value'"
        done = plots.python(code)
        assert (done.outcome, done.value) == (Outcome.OK, "'value'")
        assert "figure 1 was not saved" in done.output
        assert plots.python("1 + 1").value == "2"

    def test_figures_that_are_left_out_are_told(self, plots):
        code = (
            "import matplotlib.pyplot as plt\nfor i in range(22):\n    plt.figure(figsize=(1, 1))"
        )
        done = plots.python(code)
        assert "only 20 of 22 open figures were saved" in done.output
        assert len(done.files) == 20
