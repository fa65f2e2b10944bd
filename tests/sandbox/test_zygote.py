"""The process with the libraries: what it is good for, and what user code can do to it."""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import time

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.types import MIB, Interpreter, Outcome, SandboxSpec
from tests.sandbox.conftest import start_as_spare

pytestmark = pytest.mark.engine

LIBRARY = "sqlite3"  # loads quickly, and no part of the guest needs it
IS_LOADED = f"import sys; {LIBRARY!r} in sys.modules"
FIND = """
import os, signal
def zygote():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{pid}/comm") as comm:
            if comm.read() == "caisson-zygote\\n":
                return int(pid)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
# Leaves a process that has been orphaned twice over, one that is stopped, and one in a new session.
LEAVE_BEHIND = """
import os, signal, subprocess, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        while True:
            open("/workspace/beat", "w").close()
            time.sleep(0.02)
    os._exit(0)
subprocess.Popen(["sleep", "600"], start_new_session=True)
os.kill(subprocess.Popen(["sleep", "600"]).pid, signal.SIGSTOP)
time.sleep(0.2)
"""
# Sends a signal to everything there is, again and again, whoever comes and goes.
TORMENT_S = 4
TORMENT = f"""
import os, sys, time
mine, number = os.getpid(), int(sys.argv[1])
deadline = time.monotonic() + {TORMENT_S}
while time.monotonic() < deadline:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) not in (1, mine):
            try: os.kill(int(pid), number)
            except OSError: pass
"""
# Forks again and again, and looks each time whether more than what was asked for has come of it.
FORK = """
import os
from sandbox.guest import processes
from sandbox.guest.zygote import Zygote
processes.adopt_orphans()
zygote = Zygote(lambda _requests, _answers: None, "/")
own, left = f"/proc/{zygote.pid}/task/{zygote.pid}/children", 0
for _ in range(200):
    output = os.open(os.devnull, os.O_WRONLY)
    pipes = [output, *os.pipe()]
    pid = zygote.fork(pipes)
    with open(own) as children:
        left += bool(children.read())
    for fd in pipes:
        os.close(fd)
    os.waitpid(pid, 0)
zygote.end()
print(left)
"""
ATTACKS = (
    "open(f'/proc/{zygote()}/mem', 'rb')",
    "os.listdir(f'/proc/{zygote()}/fd')",
    "open(f'/proc/{zygote()}/oom_score_adj', 'w')",
    "import resource as r; r.prlimit(zygote(), r.RLIMIT_NOFILE, (0, 0))",
    "os.setpriority(os.PRIO_PROCESS, zygote(), 19)",
    "os.setpriority(os.PRIO_PGRP, os.getpgid(zygote()), 19)",
    "os.sched_setaffinity(zygote(), {0})",
    "os.sched_setscheduler(zygote(), os.SCHED_IDLE, os.sched_param(0))",
    "import ctypes\n"  # pidfd_getfd
    "if ctypes.CDLL(None).syscall(438, os.pidfd_open(zygote()), 3, 0) < 0: raise PermissionError",
)


@pytest.fixture
def spare(job):
    """Make sandboxes that have waited with a library loaded: `spare(memory_bytes=…)`."""
    started = []

    def begin(**limits):
        spec = SandboxSpec(job=job)
        spec = spec.model_copy(update={"limits": spec.limits.model_copy(update=limits)})
        started.append(start_as_spare(spec, [LIBRARY]))
        return started[-1]

    yield begin
    for made in started:
        made.close()


class TestLibraries:
    def test_the_first_and_every_later_interpreter_has_them(self, spare):
        sandbox = spare()
        assert sandbox.python(IS_LOADED).value == "True"
        for _ in range(3):
            assert sandbox.python("import os; os._exit(1)").interpreter is Interpreter.RESTARTED
            assert sandbox.python(IS_LOADED).value == "True"

    def test_more_are_loaded_for_a_job_that_asks_for_more(self, job):
        sandbox = start_as_spare(SandboxSpec(job=job, preload=("wave",)), [LIBRARY])
        try:
            both = f"import sys; {{'wave', {LIBRARY!r}}} <= set(sys.modules)"
            assert sandbox.python(both).value == "True"
        finally:
            sandbox.close()

    @pytest.mark.parametrize("ending", [STUBBORN, f"{LEAVE_BEHIND}{STUBBORN}"])
    def test_an_interpreter_that_is_killed_takes_all_along_but_them(self, spare, ending):
        sandbox = spare()
        done = sandbox.python(ending, timeout_s=1)
        assert (done.outcome, done.background_processes) == (Outcome.TIMEOUT, 0)
        alive = "set -- /proc/[0-9]*; echo $#"  # PID 1, zygote, kernel, this shell
        assert sandbox.shell(alive).output == "4\n"
        assert sandbox.python(IS_LOADED).value == "True"

    def test_they_are_there_after_the_memory_ran_out(self, spare):
        sandbox = spare(memory_bytes=256 * MIB)
        rank = "open('/proc/self/oom_score_adj', 'w').write('0')\n"
        for code in ("a = bytearray(4 << 30)", f"{rank}a = bytearray(4 << 30)"):
            assert sandbox.python(code).outcome is Outcome.OOM
        assert sandbox.python(IS_LOADED).value == "True"

    def test_they_are_there_after_a_fork_bomb(self, spare):
        sandbox = spare()
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        assert sandbox.python(bomb, timeout_s=1).outcome is Outcome.TIMEOUT
        assert sandbox.shell("f(){ f|f& }; f; sleep 30", timeout_s=1).limit
        assert sandbox.python(IS_LOADED).value == "True"

    def test_eight_processes_are_enough(self, spare):
        sandbox = spare(pids=8)
        assert sandbox.shell("true | true | true").outcome is Outcome.OK
        fill = "import subprocess\nwhile True: subprocess.Popen(['sleep', '600'])"
        assert "process limit of 8" in sandbox.python(fill).limit
        assert sandbox.shell("echo ok").output == "ok\n"  # room was made for it
        assert sandbox.python(IS_LOADED).value == "True"

    def test_no_process_of_the_guests_counts_as_the_users(self, spare):
        sandbox = spare()
        assert sandbox.python("1").background_processes == 0
        assert sandbox.shell("sleep 600 >/dev/null 2>&1 &").background_processes == 1


class TestTheProcessItself:
    def test_its_memory_descriptors_limits_and_rank_are_closed_to_user_code(self, spare):
        sandbox = spare()
        for attack in ATTACKS:
            told = sandbox.python(FIND + attack).error
            assert (attack, told and told.type) == (attack, "PermissionError")
            told = sandbox.shell(f"python3 <<'E'\n{FIND}{attack}\nE").output
            assert "PermissionError" in told, attack

    @pytest.mark.parametrize("number", ["STOP", "KILL", "USR1"])
    def test_calls_go_on_whatever_signal_it_gets(self, spare, number):
        sandbox = spare()
        assert sandbox.python(f"{FIND}x = os.kill(zygote(), signal.SIG{number})").error is None
        assert sandbox.shell("echo ok").output == "ok\n"
        sandbox.python("import os; os._exit(1)")
        done = sandbox.python("import sqlite3; 1 + 1")
        assert done.value == "2"
        assert done.duration_s < 2

    def test_what_has_hung_is_not_asked_again(self, spare):
        sandbox = spare()
        sandbox.python(f"{FIND}os.kill(zygote(), signal.SIGSTOP)")
        sandbox.python("import os; os._exit(1)")  # costs its deadline, afterwards
        assert sandbox.python("1 + 1").value == "2"
        assert sandbox.python("import os; os._exit(1)").duration_s < 0.5
        assert sandbox.python("1 + 1").duration_s < 0.5
        took = []
        for _ in range(5):
            began = time.monotonic()
            sandbox.python("import os; os._exit(1)")
            assert sandbox.python("1 + 1").value == "2"
            took.append(time.monotonic() - began)
        assert statistics.median(took) < 0.9  # it would cost its deadline of a second each time
        assert sandbox.shell("grep -l zygote /proc/*/comm").output == ""

    @pytest.mark.parametrize("number", [9, 19])
    def test_a_process_that_torments_all_others_keeps_no_call_from_ending(self, spare, number):
        sandbox = spare()
        began = time.monotonic()
        sandbox.write_file("torment.py", io.BytesIO(TORMENT.encode()))
        sandbox.shell(f"setsid python3 torment.py {number} >/dev/null 2>&1 &")
        for call in ("python", "shell") * 2:
            done = getattr(sandbox, call)("1 + 1" if call == "python" else "true", timeout_s=1)
            assert done.duration_s < 6
        time.sleep(max(0.0, began + TORMENT_S + 0.5 - time.monotonic()))
        sandbox.python("import os; os._exit(1)", timeout_s=1)
        assert sandbox.python("1 + 1").value == "2"
        assert sandbox.shell("echo ok").output == "ok\n"

    def test_a_fork_leaves_no_process_but_the_one_that_was_asked_for(self):
        command = [sys.executable, "-c", FORK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "0\n"


class TestLoading:
    def test_what_does_not_fit_costs_the_libraries_and_not_the_sandbox(self, start):
        sandbox = start(memory_bytes=64 * MIB)
        heavy = ("pandas", "matplotlib.pyplot", "scipy.stats", "sklearn.ensemble")
        with pytest.raises(SandboxUnavailable, match=r"while libraries were loaded.* 64 MiB"):
            sandbox.preload(heavy)
        assert sandbox.python("1 + 1").value == "2"
        assert sandbox.shell("echo ok").output == "ok\n"

    def test_what_cannot_be_loaded_is_told_and_the_rest_is_there(self, start, caplog):
        sandbox = start()
        sandbox.preload(["no_such_library", LIBRARY])
        assert "no_such_library" in caplog.text
        assert sandbox.python(IS_LOADED).value == "True"

    def test_nothing_is_loaded_once_a_call_was_begun(self, start):
        sandbox = start()
        sandbox.python("x = 1")
        with pytest.raises(SandboxUnavailable, match="a call was begun already"):
            sandbox.preload([LIBRARY])
        assert sandbox.python("x").value == "1"
