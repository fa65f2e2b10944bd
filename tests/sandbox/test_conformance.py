"""What every driver promises: the contract of `sandbox.base.Sandbox`, behaviour by behaviour."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest

from sandbox.base import Sandbox
from sandbox.errors import Detached, FileRefused, SandboxLost, SandboxUnavailable
from sandbox.types import Interpreter, Outcome
from tests.sandbox.conftest import DOCKER


def wait_for_file(sandbox, name):
    """Until there is something in a file; no call is made meanwhile."""
    deadline = time.monotonic() + 20
    while not any(file.name == name and file.size for file in sandbox.files()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def put(sandbox, name, data):
    return sandbox.write_file(name, io.BytesIO(data))


def get(sandbox, name, **limits):
    target = io.BytesIO()
    sandbox.read_file(name, target, **limits)
    return target.getvalue()


class TestPython:
    def test_variables_are_kept_from_call_to_call(self, any_sandbox):
        assert isinstance(any_sandbox, Sandbox)
        any_sandbox.python("x = 41")
        done = any_sandbox.python("x + 1")
        assert (done.outcome, done.value, done.interpreter) == (Outcome.OK, "42", Interpreter.KEPT)

    def test_functions_and_comprehensions_see_the_names_of_the_call(self, sandbox):
        code = "k = 3\nprint([k * i for i in range(3)])\ndef f():\n    return k\nprint(f())"
        assert sandbox.python(code).output == "[0, 3, 6]\n3\n"

    def test_output_and_errors_come_in_the_order_in_which_they_were_written(self, sandbox):
        code = (
            "import sys, os\n"
            "for i in range(3):\n    print('out', i)\n    print('err', i, file=sys.stderr)\n"
            "os.system('echo child')\nprint('last', end='')"
        )
        expected = "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\nchild\nlast"
        assert sandbox.python(code).output == expected

    def test_an_exception_names_its_line_and_the_text_of_the_line(self, sandbox):
        code = "def mean(d):\n    return d['reviews']\n\nmean({'review_count': 1})"
        error = sandbox.python(code).error
        assert (error.type, error.message) == ("KeyError", "'reviews'")
        assert (error.line, error.source) == (2, "return d['reviews']")
        assert error.frames == (
            "line 4: mean({'review_count': 1})",
            "line 2, in mean: return d['reviews']",
        )

    def test_an_error_inside_a_library_is_shown_at_the_users_line(self, sandbox):
        done = sandbox.python("import json\n\njson.loads('{')")
        assert (done.error.type, done.error.line) == ("JSONDecodeError", 3)
        assert not any("decoder" in frame for frame in done.error.frames)

    def test_a_syntax_error_has_its_line(self, sandbox):
        done = sandbox.python("x = 1\nif x\n  print(x)")
        assert (done.outcome, done.error.type, done.error.line) == (Outcome.ERROR, "SyntaxError", 2)
        assert done.error.source == "if x"

    def test_the_cause_of_an_exception_is_told(self, sandbox):
        code = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('bad') from e"
        assert "after ZeroDivisionError: division by zero" in sandbox.python(code).error.frames

    def test_an_exception_that_cannot_be_shown_is_still_reported(self, sandbox):
        code = "class E(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise E"
        done = sandbox.python(code)
        assert (done.outcome, done.error.type) == (Outcome.ERROR, "E")

    @pytest.mark.parametrize(
        "code",
        [
            "raise ValueError('\\ud800')",
            "raise type('E\\ud800', (Exception,), {})('x')",
            "raise KeyError('\\udcff')",
            "import importlib\nimportlib.import_module('a\\udc80')",
            "{'\\ud800': 1}['x']",
            "import os\nos.close(os.open(b'\\xff', os.O_CREAT))\nopen('missing')",
            "globals()['\\ud800'] = 1\n1 / 0",
            "class E(SyntaxError):\n    lineno = 'x'\n    text = 3\nraise E('m')",
            "globals()[1] = 2\n1 / 0",
            "class M(type):\n    __name__ = 3\nclass E(Exception, metaclass=M): pass\nraise E",
            "class S(str):\n    def __str__(self): return 3\nraise ValueError(S('x'))",
        ],
    )
    def test_whatever_an_exception_is_made_of_it_is_told_and_the_interpreter_is_kept(
        self, sandbox, code
    ):
        done = sandbox.python(code)
        assert done.outcome is Outcome.ERROR
        assert done.error.type
        assert done.interpreter is Interpreter.KEPT
        done.model_dump_json().encode()

    def test_names_that_are_no_text_harm_nothing(self, sandbox):
        assert sandbox.python("globals()[1] = 2\nglobals()['\\ud800'] = 3\n'ok'").value == "'ok'"
        done = sandbox.python("import os\nos._exit(1)")
        assert done.interpreter is Interpreter.RESTARTED

    def test_await_works_at_the_top_level(self, sandbox):
        code = "import asyncio\nasync def f():\n    return 7\nawait f()"
        assert sandbox.python(code).value == "7"

    def test_tasks_live_on_from_one_await_to_the_next(self, sandbox):
        code = (
            "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.05)\n    return x\n"
            "t = asyncio.create_task(f(1))\nu = asyncio.create_task(f(2))\nawait t"
        )
        assert sandbox.python(code).value == "1"
        assert sandbox.python("await u").value == "2"

    def test_annotations_mean_what_they_mean_elsewhere(self, sandbox):
        assert sandbox.python("def f(x: int): pass\nf.__annotations__['x'] is int").value == "True"

    def test_a_closed_pipe_is_an_exception_and_not_the_end(self, sandbox):
        code = (
            "import subprocess\n"
            "subprocess.run(['head', '-c1'], input=b'x' * 10**6, capture_output=True).stdout"
        )
        assert sandbox.python(code).value == "b'x'"
        assert sandbox.shell("yes | head -1").output == "y\n"

    def test_a_module_of_the_workspace_can_be_imported(self, sandbox):
        put(sandbox, "helper.py", b"def f():\n    raise ValueError('inside')\n")
        done = sandbox.python("import helper\nhelper.f()")
        assert (done.error.line, done.error.type) == (2, "ValueError")
        assert any("helper.py, line 2" in frame for frame in done.error.frames)

    def test_nobody_answers_a_prompt(self, sandbox):
        done = sandbox.python("name = input('who? ')")
        assert (done.outcome, done.error.type) == (Outcome.ERROR, "EOFError")

    def test_code_of_any_length_runs(self, sandbox):
        done = sandbox.python("x = '" + "a" * 3_000_000 + "'\nprint(len(x))")
        assert done.output == "3000000\n"

    def test_code_that_cannot_be_sent_is_the_codes_fault(self, sandbox):
        assert "NUL" in sandbox.python("print('a\0b')").error.message
        assert sandbox.python("#" * 9_000_000).error.type == "CodeTooLong"
        assert sandbox.python("print(1) # \ud83d").output == "1\n"


class TestEndings:
    def test_exit_codes_are_told_and_the_interpreter_is_kept(self, sandbox):
        done = sandbox.python("x = 41\nimport sys\nsys.exit(3)")
        assert (done.outcome, done.exit_code, done.interpreter) == (
            Outcome.EXITED,
            3,
            Interpreter.KEPT,
        )
        assert sandbox.python("x").value == "41"

    def test_a_dead_interpreter_is_replaced_and_its_names_are_told(self, sandbox):
        sandbox.python("x = 1\ny = 2")
        done = sandbox.python("print('before', flush=True)\nimport os\nos._exit(0)")
        assert (done.outcome, done.exit_code, done.output) == (Outcome.EXITED, 0, "before\n")
        assert (done.interpreter, done.lost_names) == (Interpreter.RESTARTED, ("x", "y"))
        again = sandbox.python("1 + 1")
        assert (again.value, again.interpreter) == ("2", Interpreter.KEPT)

    def test_a_crash_names_its_signal(self, sandbox):
        done = sandbox.python("import ctypes\nctypes.string_at(0)")
        assert (done.outcome, done.error.type, done.exit_code) == (Outcome.KILLED, "SIGSEGV", 139)

    def test_any_signal_number_can_be_told(self, sandbox):
        done = sandbox.python("import os\nos.kill(os.getpid(), 40)")
        assert (done.outcome, done.exit_code) == (Outcome.KILLED, 168)

    def test_an_interpreter_that_dies_between_calls_is_told_of_in_the_next(self, sandbox):
        end = "def end():\n    print('x', file=open('gone', 'w'), flush=True)\n    os._exit(1)\n"
        begin = "threading.Timer(0.2, end).start()"
        sandbox.python(f"import threading, os\nx = 1\n{end}{begin}")
        wait_for_file(sandbox, "gone")
        time.sleep(0.3)
        done = sandbox.shell("echo ok")
        assert (done.output, done.interpreter) == ("ok\n", Interpreter.RESTARTED)
        assert "x" in done.lost_names

    def test_a_busy_loop_ends_in_time_and_keeps_its_output_and_the_variables(self, sandbox):
        sandbox.python("x = 1")
        began = time.monotonic()
        done = sandbox.python("print('step 1 ok')\nwhile True:\n    pass", timeout_s=1)
        assert time.monotonic() - began < 4
        assert (done.outcome, done.output) == (Outcome.TIMEOUT, "step 1 ok\n")
        assert done.interpreter is Interpreter.KEPT
        assert "time limit of 1 s" in done.limit
        assert sandbox.python("x").value == "1"

    @pytest.mark.parametrize(
        "code",
        [
            "sum(iter(int, 1))",
            "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
            "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass",
            "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)",
            "import subprocess\nsubprocess.run(['sh', '-c', 'trap \"\" TERM INT; sleep 60'])",
            "import os\nos.system('setsid sleep 60')",
            "class E:\n    def __repr__(self):\n        while True: pass\nE()",
            "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        ],
        ids=["c-loop", "regex", "catches", "ignores", "child", "setsid", "repr", "str"],
    )
    def test_nothing_outlives_its_time_limit_by_three_seconds(self, sandbox, code):
        began = time.monotonic()
        done = sandbox.python("print('before')\n" + code, timeout_s=1)
        assert time.monotonic() - began < 4
        assert (done.outcome, done.output[:7]) == (Outcome.TIMEOUT, "before\n")
        assert done.interpreter in {Interpreter.KEPT, Interpreter.RESTARTED}
        assert done.background_processes == 0
        assert sandbox.python("1 + 1").value == "2"

    def test_a_sleep_is_interrupted(self, sandbox):
        done = sandbox.python("import time\ntime.sleep(60)", timeout_s=0.5)
        assert (done.outcome, done.interpreter) == (Outcome.TIMEOUT, Interpreter.KEPT)
        assert (done.error.line, done.error.source) == (2, "time.sleep(60)")

    def test_a_call_is_cancelled_from_another_thread(self, sandbox):
        threading.Timer(0.3, sandbox.cancel).start()
        began = time.monotonic()
        done = sandbox.python("import time\ntime.sleep(60)")
        assert time.monotonic() - began < 3
        assert (done.outcome, done.error.type) == (Outcome.KILLED, "Cancelled")

    def test_a_time_limit_spares_what_earlier_python_calls_left_running(self, sandbox):
        sandbox.python("import subprocess\np = subprocess.Popen(['sleep', '60'])")
        done = sandbox.python("import time\ntime.sleep(60)", timeout_s=0.5)
        assert (done.outcome, done.interpreter) == (Outcome.TIMEOUT, Interpreter.KEPT)
        assert sandbox.python("p.poll() is None").value == "True"

    def test_a_late_cancel_harms_nothing(self, sandbox):
        sandbox.python("x = 1")
        sandbox.cancel()
        assert sandbox.python("x").value == "1"


class TestShell:
    def test_each_call_is_a_fresh_shell_in_the_workspace(self, sandbox):
        assert sandbox.shell("cd /; x=1; exit 42").exit_code == 42
        here = sandbox.python("import os; os.getcwd()").value.strip("'")
        assert sandbox.shell('pwd; echo "[$x]"').output == f"{here}\n[]\n"

    def test_it_returns_when_the_foreground_command_ends(self, sandbox):
        began = time.monotonic()
        done = sandbox.shell("sleep 600 & echo done")
        assert time.monotonic() - began < 2
        assert (done.output, done.background_processes) == ("done\n", 1)

    def test_children_in_the_background_live_on_and_can_still_write(self, sandbox):
        sandbox.shell("(sleep 0.3; echo late; echo alive > marker) & echo early")
        wait_for_file(sandbox, "marker")
        assert sandbox.shell("cat marker").output == "alive\n"

    def test_an_unfinished_heredoc_ends_at_once(self, sandbox):
        began = time.monotonic()
        sandbox.shell("cat <<EOF > a.txt\nhello\n  EOF")
        assert time.monotonic() - began < 1
        assert sandbox.shell("cat a.txt").output == "hello\n  EOF\n"

    def test_commands_of_any_length_run(self, sandbox):
        done = sandbox.shell(": " + "a" * 500_000 + "; echo ok")
        assert (done.output, done.exit_code) == ("ok\n", 0)

    def test_nothing_waits_for_a_person(self, sandbox):
        done = sandbox.shell('read x; echo "got: $x"; read y </dev/tty || echo no tty', timeout_s=5)
        assert done.outcome is Outcome.OK
        assert "got: \n" in done.output
        assert done.output.endswith("no tty\n")

    @pytest.mark.parametrize(
        "command",
        [
            "setsid sleep 7777 >/dev/null 2>&1 & wait",
            "trap '' TERM INT; while :; do :; done",
            "sh -c 'trap \"\" TERM INT; sleep 60'",
            "(setsid sh -c 'setsid sleep 60 & sleep 60' &) ; sleep 60",
        ],
        ids=["setsid", "busy-trap", "child-trap", "double-fork"],
    )
    def test_a_time_limit_ends_all_that_the_call_began_and_spares_the_interpreter(
        self, sandbox, command
    ):
        sandbox.python("x = 1")
        done = sandbox.shell(f"echo before; {command}", timeout_s=1)
        assert (done.outcome, done.output[:7]) == (Outcome.TIMEOUT, "before\n")
        assert (done.interpreter, done.background_processes) == (Interpreter.KEPT, 0)
        assert sandbox.python("x").value == "1"

    def test_a_time_limit_spares_what_earlier_calls_left_running(self, sandbox):
        sandbox.shell("sleep 600 &")
        done = sandbox.shell("sleep 600", timeout_s=0.5)
        assert (done.outcome, done.background_processes) == (Outcome.TIMEOUT, 1)


class TestOutput:
    def test_a_little_too_much_loses_its_middle_and_nothing_else(self, sandbox):
        code = "for i in range(20000):\n    print('line', i)\nraise ValueError('the real cause')"
        done = sandbox.python(code)
        assert done.error.message == "the real cause"
        assert done.output_truncated
        assert done.output.startswith("line 0\n")
        assert "line 19999" in done.output
        assert done.output_bytes == sum(len(f"line {i}\n") for i in range(20000))
        whole = get(sandbox, done.output_file)
        assert whole.decode() == "".join(f"line {i}\n" for i in range(20000))

    def test_a_program_that_prints_more_than_is_kept_ends_by_itself(self, sandbox):
        done = sandbox.shell("for i in $(seq 20000); do echo Hello world; done; exit 3")
        assert (done.outcome, done.exit_code, done.output_bytes) == (Outcome.ERROR, 3, 240_000)

    @pytest.mark.parametrize(
        "code",
        [
            "while True:\n    print('x' * 1000)",
            "import sys\nwhile True:\n    sys.stdout.write('a' * 65536)",
        ],
        ids=["lines", "no-newline"],
    )
    def test_a_flood_is_ended_with_its_reason(self, sandbox, code):
        done = sandbox.python(code, timeout_s=60)
        assert done.outcome is Outcome.OUTPUT_LIMIT
        assert "output limit of 256 MiB" in done.limit
        assert len(done.output) < 100_000
        assert sandbox.python("1 + 1").value == "2"

    def test_a_text_that_is_too_long_for_its_file_says_so(self, start):
        sandbox = start("process", spill_bytes=100_000)
        done = sandbox.python("print('x\\n' * 100_000)")
        assert f"the first 100000 bytes are in {done.output_file}" in done.output
        assert len(get(sandbox, done.output_file)) == 100_000

    def test_a_line_that_fits_is_whole(self, sandbox):
        done = sandbox.python("print('x' * 20_000)")
        assert (done.output, done.output_truncated) == ("x" * 20_000 + "\n", False)

    def test_bytes_that_are_no_text_become_text(self, sandbox):
        done = sandbox.python(
            "import sys\nprint('a\\0b')\nsys.stdout.flush()\n"
            "import os\nos.write(1, b'\\xff\\xfe\\n')\nprint('\\ud800 end')"
        )
        assert "\0" not in done.output
        assert "end" in done.output
        done.output.encode()

    def test_one_enormous_line_is_bounded(self, sandbox):
        done = sandbox.python("print('z' * 10_000_000)")
        assert (done.outcome, done.output_bytes) == (Outcome.OK, 10_000_001)
        assert len(done.output) < 100_000

    def test_an_enormous_value_is_bounded(self, sandbox):
        done = sandbox.python("list(range(1_000_000))")
        assert done.value.startswith("[0,")
        assert done.value.endswith("999999]")
        assert len(done.value) < 100_000


class TestFiles:
    def test_files_go_in_and_come_out_unchanged(self, any_sandbox):
        data = bytes(range(256)) * 20_000
        assert put(any_sandbox, "in/a.bin", data) == len(data)
        assert get(any_sandbox, "in/a.bin") == data
        assert [(f.name, f.size) for f in any_sandbox.files()] == [("in/a.bin", len(data))]

    def test_an_empty_file_is_a_file(self, any_sandbox):
        assert put(any_sandbox, "empty", b"") == 0
        assert get(any_sandbox, "empty") == b""

    def test_new_and_changed_files_are_reported_and_the_hosts_own_are_not(self, sandbox):
        put(sandbox, "input.csv", b"a\n1\n")
        done = sandbox.python("open('out.csv', 'w').write('x')\nopen('input.csv').read()")
        assert [(f.name, f.size, f.mime) for f in done.files] == [("out.csv", 1, "text/csv")]
        changed = sandbox.shell("echo more >> input.csv")
        assert [f.name for f in changed.files] == ["input.csv"]
        assert sandbox.shell("true").files == ()

    @pytest.mark.parametrize(
        "name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a/..", "x\0y", "a" * 300]
    )
    def test_names_that_leave_the_workspace_are_refused(self, any_sandbox, name):
        with pytest.raises(FileRefused):
            put(any_sandbox, name, b"x")
        with pytest.raises(FileRefused):
            get(any_sandbox, name)
        assert any_sandbox.python("1").value == "1"

    def test_links_and_other_things_are_not_followed(self, sandbox):
        sandbox.shell("ln -s /etc/passwd report.txt; ln -s / root; mkfifo pipe; mkdir folder")
        for name in ("report.txt", "root/etc/passwd", "pipe", "folder"):
            with pytest.raises(FileRefused):
                get(sandbox, name)
        with pytest.raises(FileRefused):
            put(sandbox, "root/tmp/x", b"x")
        assert sandbox.files() == ()

    def test_what_is_too_large_is_refused_before_anything_is_copied(self, sandbox):
        sandbox.python("open('big', 'wb').truncate(3_000_000)")
        target = io.BytesIO()
        with pytest.raises(FileRefused, match="3000000 bytes, the limit is 1000000"):
            sandbox.read_file("big", target, max_bytes=1_000_000)
        assert target.getvalue() == b""

    def test_a_missing_file_is_refused_by_name(self, any_sandbox):
        with pytest.raises(FileRefused, match=r"nothing\.txt"):
            get(any_sandbox, "nothing.txt")

    def test_names_that_nobody_can_read_are_not_listed(self, sandbox):
        sandbox.python("import os\nos.close(os.open(b'bad\\xff\\nname', os.O_CREAT))")
        assert sandbox.files() == ()


class TestExecutionIds:
    def test_the_same_id_never_runs_twice(self, any_sandbox):
        first = any_sandbox.python("print('once')\nn = globals().get('n', 0) + 1", execution_id="a")
        again = any_sandbox.python("n = 100", execution_id="a")
        assert again == first
        assert any_sandbox.python("n").value == "1"

    def test_an_unknown_execution_is_not_recalled(self, any_sandbox):
        assert any_sandbox.recall("never") is None

    def test_a_finished_execution_is_recalled(self, any_sandbox):
        done = any_sandbox.python("print('x')", execution_id="a")
        assert any_sandbox.recall("a") == done

    def test_an_acknowledged_result_is_gone_and_its_id_still_refused(self, any_sandbox):
        any_sandbox.python("1", execution_id="a")
        any_sandbox.python("2", execution_id="b")
        with pytest.raises(SandboxUnavailable, match="already acknowledged"):
            any_sandbox.python("3", execution_id="a")


class InBackground:
    """A call in another thread, which has begun when this is made."""

    def __init__(self, call):
        self._call = call
        self._result = self._error = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        time.sleep(0.4)

    def _run(self):
        try:
            self._result = self._call()
        except SandboxUnavailable as error:
            self._error = error

    def result(self, timeout_s=20):
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
        if self._error:
            raise self._error
        return self._result


class TestPlace:
    @pytest.mark.parametrize("driver", [DOCKER, "process", "fake"])
    def test_each_sandbox_has_a_name_of_its_own_that_stays(self, start, driver):
        one, other = start(driver), start(driver)
        assert one.place != other.place
        assert re.fullmatch("[0-9a-f]{12}", one.place)
        before = one.place
        one.close()
        assert one.place == before


class TestDetaching:
    def test_the_call_in_flight_ends_at_once_and_later_ones_never_begin(self, any_sandbox):
        code = "import time\ntime.sleep(20)"
        call = InBackground(lambda: any_sandbox.python(code, execution_id="a"))
        began = time.monotonic()
        any_sandbox.detach()
        with pytest.raises(Detached):
            call.result()
        assert time.monotonic() - began < 1
        self.check_that_nothing_works(any_sandbox)

    def test_letting_go_twice_is_fine_and_so_is_closing_after_it(self, any_sandbox):
        any_sandbox.python("1")
        any_sandbox.detach()
        any_sandbox.detach()
        any_sandbox.close()
        self.check_that_nothing_works(any_sandbox)

    def test_a_closed_sandbox_stays_closed(self, any_sandbox):
        any_sandbox.close()
        any_sandbox.detach()
        with pytest.raises(SandboxLost, match="closed"):
            any_sandbox.python("1")

    def check_that_nothing_works(self, sandbox):
        for call in (
            lambda: sandbox.python("1"),
            lambda: sandbox.recall("a"),
            lambda: put(sandbox, "f", b""),
            lambda: get(sandbox, "f"),
            sandbox.files,
            sandbox.cancel,
        ):
            with pytest.raises(Detached):
                call()


class TestClosing:
    def test_closing_twice_is_fine_and_a_closed_sandbox_says_so(self, any_sandbox):
        any_sandbox.close()
        any_sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            any_sandbox.python("1")
