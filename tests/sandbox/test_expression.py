import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sandbox.expression
from sandbox.errors import ProtocolError, SandboxUnavailable
from sandbox.expression import MAX_TEXT_CHARS, evaluate
from sandbox.types import MIB, Interpreter, Outcome


def value_of(text):
    result = evaluate(text, timeout_s=5)
    assert result.outcome is Outcome.OK, result.error
    return result.value


def error_of(text):
    result = evaluate(text, timeout_s=5)
    assert result.outcome is Outcome.ERROR, result
    assert result.value is None
    return result.error


# ---- what it is for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sqrt(2)*pi", "4.442882938158366"),
        ("1 + 1", "2"),
        ("  (1 + 2) * 3  ", "9"),
        ("[x * x for x in range(5) if x % 2]", "[1, 9]"),
        ("{k: v for k, v in zip('ab', [1, 2])}", "{'a': 1, 'b': 2}"),
        ("sorted([3, 1, 2], reverse=True)", "[3, 2, 1]"),
        ("sorted({'b': 1, 'a': 2}.items(), key=lambda pair: pair[1])", "[('b', 1), ('a', 2)]"),
        ("sum(x for x in [1, 2, 3]) / len([1, 2, 3])", "2.0"),
        ("min(3, 1, 2), max([1, 5]), min([], default=0)", "(1, 5, 0)"),
        ("tuple(reversed([1, 2])), list(enumerate('ab', 1))", "((2, 1), [(1, 'a'), (2, 'b')])"),
        ("list(map(lambda a, b: a + b, [1, 2], [3, 4]))", "[4, 6]"),
        ("next((x for x in [4, 5] if x > 4), None)", "5"),
        ("date(2024, 3, 1) - date(2024, 2, 1)", "datetime.timedelta(days=29)"),
        ("(date(2024, 3, 1) - date(2024, 2, 1)).days", "29"),
        ("datetime(2024, 5, 6, 7, 8).strftime('%A %H:%M')", "'Monday 07:08'"),
        ("datetime.strptime('2024-05-06', '%Y-%m-%d').date().isocalendar().week", "19"),
        (
            "import datetime\ndatetime.date(2024, 1, 31) + datetime.timedelta(1)",
            "datetime.date(2024, 2, 1)",
        ),
        (
            "from datetime import date as d\nd.fromisoformat('2024-02-29').isoformat()",
            "'2024-02-29'",
        ),
        ("import math as m, statistics\nm.floor(statistics.mean([1, 2, 6]))", "3"),
        ("Decimal('0.1') + Decimal('0.2') == Decimal('0.3')", "True"),
        ("Decimal('2.345').quantize(Decimal('0.01'), ROUND_HALF_UP)", "Decimal('2.35')"),
        ("Fraction(1, 3) + Fraction(1, 6)", "Fraction(1, 2)"),
        ("statistics.median([5, 1, 3])", "3"),
        ("stdev([2, 4, 4, 4, 5, 5, 7, 9]) > 2", "True"),
        ("f'{1234.5678:,.2f} {\"a\":>3}'", "'1,234.57   a'"),
        ("'a,b'.upper().split(',')", "['A', 'B']"),
        ("', '.join(str(n) for n in [1, 2])", "'1, 2'"),
        ("0b101 ^ 0x1f, 7 // 2, -7 % 3, 2 ** 10, 1 < 2 < 3", "(26, 3, 2, 1024, True)"),
        ("isinstance(1, int) and isinstance([], (list, dict))", "True"),
        ("a, (b, *c) = 1, (2, 3, 4)\na + b + sum(c)", "10"),
        ("d = {}\nd['x'] = [1]\nd['x'][0] = 2\nd", "{'x': [2]}"),
        ("x = 1\nx += 2\nx *= 10\nx", "30"),
        ("t = 0\nfor n in range(4):\n    if n == 2:\n        continue\n    t += n\nt", "4"),
        ("n = 27\nwhile n > 3:\n    n = n // 2 if n % 2 == 0 else n - 1\nn", "3"),
        ("Ünits = 2\nÜnits * 3", "6"),
        ("def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(15)", "610"),
        ("f = lambda *a, **k: (a, k)\nf(*[1, 2], **{'z': 3})", "((1, 2), {'z': 3})"),
        ("(y := 4) + y", "8"),
        ("2 ** 200", "1606938044258990275541962092341162602522202993782792835301376"),
        ("'é' * 3, '\\x1b[31m'", "('ééé', '\\x1b[31m')"),
    ],
)
def test_arithmetic_dates_and_small_programs_work(text, value):
    assert value_of(text) == value


def test_names_are_seen_in_functions_and_comprehensions():
    text = "k = 3\ndef f():\n    return k\nprint([k * i for i in range(3)])\nf()"
    result = evaluate(text)
    assert (result.output, result.value) == ("[0, 3, 6]\n", "3")


def test_a_text_without_an_expression_at_its_end_has_no_value():
    result = evaluate("x = 1")
    assert (result.outcome, result.value, result.output) == (Outcome.OK, None, "")
    assert evaluate("None").value is None


def test_the_result_tells_what_it_cost():
    result = evaluate("1")
    assert result.interpreter is Interpreter.NONE
    assert 0 < result.duration_s < 10
    assert 0 < result.cpu_s < 10


def test_what_is_printed_is_kept_up_to_a_size():
    result = evaluate("def f(n):\n    print('n =', n, end='!')\nf(1)\nprint()\nf(2)")
    assert result.output == "n = 1!\nn = 2!"
    flood = evaluate("for n in range(3000):\n    print('line', n)")
    assert flood.output_truncated
    assert flood.output_bytes > len(flood.output)
    assert len(flood.output) <= 8000


def test_a_long_value_loses_its_middle_and_says_so():
    value = value_of("list(range(20_000))")
    assert len(value) <= 8000
    assert value.startswith("[0, 1,")
    assert value.endswith("19999]")
    assert "characters omitted" in value


# ---- errors that help ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "message", "line", "source"),
    [
        ("1\n1 / 0", "ZeroDivisionError", "division by zero", 2, "1 / 0"),
        ("'abc'.uper()", "AttributeError", "'uper'", 1, "'abc'.uper()"),
        ("math.sqroot(2)", "AttributeError", "math has no attribute 'sqroot'", 1, None),
        ("int.mro()", "AttributeError", "'mro'", 1, None),
        ("x = 3\ny = x + z", "NameError", "'z' is not defined", 2, "y = x + z"),
        ("{'a': 1}['b']", "KeyError", "'b'", 1, None),
        ("1 +", "SyntaxError", "invalid syntax", 1, "1 +"),
        ("x = (1,\n", "SyntaxError", "never closed", 1, None),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError", "recursion", 2, None),
        ("10 ** 200_000", "ValueError", "more than 100000 digits", None, None),
        ("int('9' * 200_000)", "ValueError", "100000 digits", 1, None),
    ],
)
def test_errors_of_the_text_are_named_with_their_line(text, kind, message, line, source):
    error = error_of(text)
    assert error.type == kind
    assert message in error.message
    assert error.line == line
    if source is not None:
        assert error.source == source


@pytest.mark.parametrize(
    "text",
    [
        # underscores
        "().__class__.__base__.__subclasses__()",
        "[].__class__",
        "lambda: 0 .__globals__",
        "__import__('os')",
        "__builtins__",
        "_getattr_",
        "_print",
        "_ = 1\n_x = 2",
        "x = 1\nx.__class__ = 2",
        "f'{().__class__}'",
        "f'{1:{().__class__}}'",
        "def __init__(): pass",
        "[__x for __x in [1]]",
        "(lambda __x: 1)(2)",
        "f = lambda **k: k\nf(__class__=1).__class__",
        # frames
        "g = (x for x in [1])\ng.gi_frame.f_back.f_globals",
        "(x for x in [1]).gi_code",
        "(x for x in [1]).gi_yieldfrom",
        "(x for x in [1]).send(None)",
        "(lambda: 1).func_globals",
        "getattr((x for x in [1]), 'gi_frame')",
        # hooks shadowed by parameters, functions, loops, walrus
        "def host(o, n):\n    return n\ndef f(o, _getattr_, /):\n    return o.upper\nf('a', host)",
        "def f(_getitem_, /):\n    return [1][0]\nf(1)",
        "def f(*, _write_):\n    return 1\nf(_write_=1)",
        "def f(*_inplacevar_):\n    return 1\nf(1)",
        "def f(**_print_):\n    return 1\nf()",
        "def _getiter_(x):\n    return x",
        "for _getattr_ in [1]:\n    pass",
        "[1 for _getattr_ in [1]]",
        "(_getattr_ := 1)",
        "_getattr_ = lambda o, n: n",
        "import math as _getattr_",
        # format
        "'{0.__class__}'.format(1)",
        "'{0}'.format_map({})",
        "str.format('{0.__class__}', 1)",
        "list(map(str.format, ['{0.__class__}'], [1]))",
        "string.Formatter().format('{0.__class__}', 1) if False else str.format",
        "f = 'a'.format",
        # modules and what they lead to
        "import os",
        "import os as math",
        "import math, os",
        "from os import path",
        "from math import *",
        "from . import math",
        "from math import os",
        "import datetime.sys",
        # functions that are not there
        "open('/etc/passwd')",
        "eval('1')",
        "exec('1')",
        "compile('1', '', 'eval')",
        "type(1)",
        "getattr(1, 'real')",
        "setattr(1, 'real', 2)",
        "object()",
        "vars()",
        "globals()",
        "input()",
        "super()",
        "memoryview(b'')",
        "classmethod(1)",
        "breakpoint()",
        "hash('a')",
        # statements that are not there
        "try:\n    1\nexcept Exception:\n    2",
        "raise ValueError",
        "class A:\n    pass",
        "with 1:\n    pass",
        "global x",
        "assert 1",
        "def f():\n    yield 1\nlist(f())",
        "def f():\n    yield from [1]\nlist(f())",
        "async def f():\n    pass",
        "def f():\n    x = 1\n    def g():\n        nonlocal x\nf()",
        "match 1:\n    case 1:\n        pass",
        "(yield)",
        # attributes of what has none, and changes to what is ours
        "sqrt.__self__",
        "math.sqrt.real",
        "mean.func",
        "sorted.real",
        "math.pi = 3",
        "datetime.date = 3",
        "str.upper = 3",
        "'abc'.upper.real",
        "print.real",
        "x = [1]\nx.append.real",
        # results that are no plain value
        "lambda: 1",
        "(x for x in [1])",
        "math",
        "str",
        "print",
        # text that would need the disk
        "'abc'.encode('cp037')",
        "x: int = 1",
        "a = [1]\na[0] += 1",
        "é.__class__",
        "\uff4fpen('/etc/passwd')",
        "().\uff3f\uff3fclass\uff3f\uff3f",
        "+".join(["1"] * 4000),
        "-" * 9000 + "1",
        "1" + "**1" * 2000,
    ],
)
def test_what_is_not_allowed_is_refused_and_said(text):
    error = error_of(text)
    assert error.type in {"NotAllowed", "SyntaxError"}, error
    if error.type == "NotAllowed":
        assert error.message.startswith("not allowed in an expression: ")
        assert error.message.endswith("; python_interpreter can do more")


@pytest.mark.parametrize(
    "text",
    [
        "datetime.sys",
        "statistics.sys",
        "math.__loader__ if False else math.loader",
        "decimal.sys.modules['os']",
        "statistics.random",
        "decimal.getcontext()",
        "datetime.time.sys",
        "re.enum.sys",
        "os.system('id')",
        "operator.attrgetter('x')",
        "json.codecs",
        "Decimal.sys",
        "Fraction.numbers",
        "date.min.sys",
        "string.Formatter()",
        "random.SystemRandom",
    ],
)
def test_no_module_is_reached(text):
    assert error_of(text).type in {"AttributeError", "NameError", "NotAllowed"}


@pytest.mark.parametrize(
    "text",
    [
        "a, b = map",
        "[x for x in sqrt]",
        "sorted(lambda: 1)",
        "list(math)",
        "tuple(sqrt)",
        "zip([1], sqrt)",
        "dict(sqrt)",
        "reversed(sqrt)",
        "max(sqrt)",
        "sum(print)",
        "sqrt[0]",
        "list[int]",
        "for x in 5:\n    pass",
        "next([1])",
        "print(1, file=2)",
        "print('a', sep=1)",
        "math()",
    ],
)
def test_what_iterates_in_c_meets_the_guards_too(text):
    assert error_of(text).type == "TypeError"


def test_misuse_of_the_text_itself_is_refused_without_a_child(monkeypatch):
    monkeypatch.setattr(sandbox.expression.sys, "executable", "/nonexistent")
    for text in ("", " \n", "1 + \0", "1" * (MAX_TEXT_CHARS + 1)):
        assert error_of(text).type == "NotAllowed"


def test_a_lone_surrogate_is_no_more_than_a_wrong_character():
    assert evaluate("'\ud83d'").value == "'?'"


# ---- limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "sum(range(10**12))",
        "while True:\n    pass",
        "[1 for _ in range(10**12) if False]",
        "math.factorial(10**8)",
        "10**10**8 % 7",
        "max(range(10**12))",
        "(10**12) in (x for x in range(10**13))",
        "n = 0\nwhile n < 10**9:\n    n += 1",
        "f = lambda: [f() for _ in range(1)] and f()\nwhile 1:\n    1",
    ],
)
def test_what_does_not_end_is_ended(text):
    started = time.monotonic()
    result = evaluate(text, timeout_s=0.6)
    assert time.monotonic() - started < 3
    assert result.outcome is Outcome.TIMEOUT
    assert result.error.type == "TimeLimit"
    assert "0.6 s" in result.error.message
    assert result.limit == "time limit of 0.6 s"
    assert value_of("1 + 1") == "2"


@pytest.mark.parametrize(
    "text",
    [
        "'a' * 10**10",
        "list(range(10**9))",
        "[0] * 10**9",
        "x = [1]\nwhile True:\n    x = x + x",
        "f'{1:>{10**10}}'",
        "'%01000000000d' % 1",
        "x = 'a'\nwhile True:\n    x += x",
        "int.to_bytes(1, 10**10, 'big')",
        "1 << 10**10",
        "[[0] * 10**6 for _ in range(10**6)]",
    ],
)
def test_what_needs_too_much_memory_is_refused_with_the_limit(text):
    result = evaluate(text, timeout_s=5)
    assert result.outcome is Outcome.OOM, result
    assert result.error.type == "MemoryLimit"
    assert "128 MiB" in result.error.message
    assert result.limit == "memory limit of 128 MiB"


def test_a_smaller_memory_limit_holds():
    assert evaluate("len('a' * 70_000_000)", timeout_s=5).value == "70000000"
    small = evaluate("len('a' * 70_000_000)", timeout_s=5, memory_bytes=64 * MIB)
    assert small.outcome is Outcome.OOM


def test_it_is_quick():
    assert any(evaluate("1 + 1").duration_s < 0.1 for _ in range(30))


def test_it_works_from_many_threads_at_once():
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda n: evaluate(f"{n} * 2", timeout_s=10).value, range(12)))
    assert values == [str(n * 2) for n in range(12)]


def _in_a_daemon(queue):
    queue.put(evaluate("6 * 7", timeout_s=10).value)


def test_it_works_in_a_daemonic_process():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_a_daemon, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) == "42"
    process.join(10)


# ---- the process --------------------------------------------------------------------------


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_behind():
    evaluate("1")
    files, children = open_files(), psutil.Process().children()
    for text in ("1", "9**9**9", "'a' * 10**10", "(", "import os"):
        evaluate(text, timeout_s=0.3)
    assert open_files() == files
    assert psutil.Process().children() == children


def child_while_running():
    """The evaluator's process, while it is busy."""
    before = {child.pid for child in psutil.Process().children()}
    thread = threading.Thread(target=evaluate, args=("9**9**9",), kwargs={"timeout_s": 3})
    thread.start()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for child in psutil.Process().children():
            if child.pid not in before and child.cpu_times().user > 0.3:
                return child, thread
        time.sleep(0.02)
    raise AssertionError("no child was seen")


def test_the_child_has_nothing_of_ours(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with Path("/etc/hostname").open() as ours:
        os.set_inheritable(ours.fileno(), True)
        child, thread = child_while_running()
        folder = Path(f"/proc/{child.pid}")
        limits = (folder / "limits").read_text()
        assert child.environ().keys() <= {"LC_CTYPE"}  # Python's own doing
        assert {entry.name for entry in (folder / "fd").iterdir()} == {"0", "1", "2"}
        assert child.cwd() == "/"
        if os.geteuid() == 0:
            assert set(child.uids()) == {65534}
            assert set(child.gids()) == {65534}
        thread.join(20)
    rows = {line[:25].strip(): line[25:].split()[:2] for line in limits.splitlines()[1:]}
    assert rows["Max open files"] == ["3", "3"]
    assert rows["Max processes"] == ["0", "0"]
    assert rows["Max file size"] == ["0", "0"]
    assert rows["Max core file size"] == ["0", "0"]
    assert rows["Max address space"] == [str(128 * MIB)] * 2
    assert rows["Max cpu time"] == ["4", "4"]


def test_a_child_that_is_killed_from_elsewhere_is_reported():
    results = []
    thread = threading.Thread(target=lambda: results.append(evaluate("9**9**9", timeout_s=10)))
    before = {child.pid for child in psutil.Process().children()}
    thread.start()
    while not (new := [c for c in psutil.Process().children() if c.pid not in before]):
        time.sleep(0.01)
    while new[0].cpu_times().user < 0.3:
        time.sleep(0.01)
    new[0].kill()
    thread.join(20)
    assert results[0].outcome is Outcome.KILLED
    assert "signal 9" in results[0].error.message


def test_an_evaluator_that_cannot_start_is_our_failure(monkeypatch):
    monkeypatch.setattr(sandbox.expression.sys, "executable", "/nonexistent/python")
    with pytest.raises(SandboxUnavailable, match="cannot start the evaluator"):
        evaluate("1")
    monkeypatch.setattr(sandbox.expression.sys, "executable", "/bin/false")
    with pytest.raises(SandboxUnavailable, match="did not start"):
        evaluate("1")


def test_an_evaluator_that_hangs_at_the_start_is_our_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox.expression, "START_TIMEOUT_S", 0.3)
    use_child(monkeypatch, tmp_path, "sleep 60")
    with pytest.raises(SandboxUnavailable, match=r"within 0\.3 s"):
        evaluate("1")


def use_child(monkeypatch, tmp_path, script):
    child = tmp_path / "child"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    monkeypatch.setattr(sandbox.expression.sys, "executable", str(child))


@pytest.mark.parametrize(
    "answer",
    [
        "nonsense",
        "[]",
        '{"value": 3}',
        '{"value": null, "extra": 1}',
        '{"error": {"type": "A"}}',
        '{"cpu_s": -1}',
        '{"output": ["a"]}',
        '{"oom": "yes"}',
        "[" * 100_000,
        '{"value": "' + "x" * 300_000 + '"}',
    ],
)
def test_an_escaped_evaluator_that_lies_is_a_breach_of_protocol(monkeypatch, tmp_path, answer):
    (tmp_path / "answer").write_text(answer)
    use_child(monkeypatch, tmp_path, f"cat > /dev/null; echo; cat {tmp_path}/answer")
    with pytest.raises(ProtocolError):
        evaluate("1", timeout_s=10)


def test_an_escaped_evaluator_cannot_smuggle_control_characters(monkeypatch, tmp_path):
    (tmp_path / "answer").write_text(r'{"value": "a\u001b[2Jb\u0000\ud800", "output": "\r\u202e"}')
    use_child(monkeypatch, tmp_path, f"cat > /dev/null; echo; cat {tmp_path}/answer")
    result = evaluate("1", timeout_s=10)
    assert result.value == "ab\ufffd\ufffd"
    assert result.output == "\\u202e"


def test_an_escaped_evaluator_that_never_stops_talking_is_ended(monkeypatch, tmp_path):
    use_child(monkeypatch, tmp_path, "cat > /dev/null; echo; exec cat /dev/zero")
    with pytest.raises(ProtocolError):
        evaluate("1", timeout_s=10)


# ---- anything -----------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["x", "sqrt", "math", "datetime", "date", "str", "int", "print", "sorted", "mean", "Decimal"]
)
ATTRIBUTES = st.sampled_from(
    ["real", "upper", "format", "sqrt", "now", "gi_frame", "sys", "modules", "mro", "days"]
)
EXPRESSIONS = st.recursive(
    NAMES | st.sampled_from(["1", "'a'", "[1, 2]", "{}", "(x for x in [1])", "lambda: 1"]),
    lambda inner: st.one_of(
        st.builds("({}).{}".format, inner, ATTRIBUTES),
        st.builds("{}({})".format, NAMES, inner),
        st.builds("({})()".format, inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("[{} for x in {}]".format, inner, inner),
        st.builds("{} + {}".format, inner, inner),
        st.builds("f'{{{}}}'".format, inner.filter(lambda text: "'" not in text)),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(EXPRESSIONS | st.text(max_size=40))
def test_whatever_the_text_the_result_is_a_result(text):
    result = evaluate(text, timeout_s=5)
    assert result.outcome in {Outcome.OK, Outcome.ERROR, Outcome.OOM}
    assert result.error is None or "Traceback" not in result.error.message
    assert "<module" not in f"{result.value} {result.output}"


def test_an_escaped_evaluator_that_closes_its_output_and_stays_is_a_breach_of_protocol(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(sandbox.expression, "END_TIMEOUT_S", 0.3)
    use_child(monkeypatch, tmp_path, "cat > /dev/null; echo; exec sleep 60 > /dev/null")
    with pytest.raises(ProtocolError, match="went on running"):
        evaluate("1")


def test_a_cancelled_evaluation_ends_at_once():
    until = time.monotonic() + 0.5
    result = evaluate(
        "sum(range(10**12))", timeout_s=20, is_cancelled=lambda: time.monotonic() > until
    )
    assert (result.outcome, result.error.type) == (Outcome.KILLED, "Cancelled")
    assert result.duration_s < 3
