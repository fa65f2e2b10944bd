"""Spares: as hard as any sandbox, each used once, as many as are asked for, none left behind."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from sandbox import pool as pools
from sandbox import session as sessions
from sandbox import stock as stocks
from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.errors import SandboxLost, SandboxUnavailable
from sandbox.lending import Borrower, Lender
from sandbox.pool import Pool
from sandbox.stock import LEAST, SPARE_S, Idle, Stock, shape_of
from sandbox.types import MIB, Interpreter, Limits, Mount, Outcome, SandboxSpec

pytestmark = pytest.mark.engine

STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
LOADED = "import sys; sorted({'numpy', 'pandas', 'matplotlib'} & set(sys.modules))"


def eventually(check, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def spec(job):
    """What a job of a store of this test's own asks for."""
    return SandboxSpec(job=job, store=f"store-of-{job}")


@pytest.fixture
def engine():
    with closing(Engine()) as made:
        yield made


@pytest.fixture
def spares(engine, spec):
    """The containers of this test's store that are there, running or not."""

    def found(**state):
        listed = engine.labelled(f"caisson.store={spec.store}")
        return [one for one in listed if all(one[key] == value for key, value in state.items())]

    yield found
    assert found() == []


@pytest.fixture
def pool(spares):
    """A pool without libraries, which is quick."""
    with Pool(libraries=()) as made:
        yield made
    assert spares() == []


def taken(pool, spec):
    return eventually(lambda: pool.take(spec))


def test_each_is_used_by_one_job_only(pool, spec, spares):
    pool.expect(spec)
    eventually(lambda: pool.count() == (2, 0))
    with closing(taken(pool, spec)) as first, closing(taken(pool, spec)) as second:
        assert first.container != second.container
        assert first.python("x = 1; open('mine', 'w').close()").interpreter is Interpreter.KEPT
        assert (
            second.python("'x' in globals(), __import__('os').listdir('.')").value == "(False, [])"
        )
        used = {first.container, second.container}
    eventually(lambda: not used & {one["Id"] for one in spares()})
    with closing(taken(pool, spec)) as third:
        assert third.container not in used


def plain(inspected):
    """A container as the engine describes it, without what is another each time."""
    uid = inspected["Config"]["User"].partition(":")[0]
    kept = {name: inspected[name] for name in ("Config", "HostConfig", "Mounts", "Path", "Args")}
    for name in ("AppArmorProfile", "Driver", "Platform", "Image"):
        kept[name] = inspected[name]
    labels = kept["Config"]["Labels"]
    own = {"job", "generation", "owner", "deadline", "max_life_s", "spare"}
    kept["Config"]["Labels"] = {
        k: v for k, v in labels.items() if k.removeprefix("caisson.") not in own
    }
    return re.sub(r"[0-9a-f]{16}\.sock", "DOOR", repr(kept).replace(uid, "UID"))


def test_a_spare_differs_in_no_limit_from_a_sandbox_that_was_started_for_its_job(
    pool, spec, engine
):
    changed = Limits(memory_bytes=320 * MIB, cpus=0.5, pids=77, open_files=333, inodes=999)
    spec = spec.model_copy(update={"limits": changed, "environment": {"A": "b"}})
    pool.expect(spec)
    with closing(DockerSandbox.start(spec)) as cold, closing(taken(pool, spec)) as warm:
        assert plain(engine.inspect(warm.container)) == plain(engine.inspect(cold.container))


def test_only_what_a_container_is_made_from_tells_shapes_apart(spec, tmp_path):
    same = {"job": "other", "owner": "o", "generation": 7, "preload": ("json",)}
    same["limits"] = Limits(timeout_s=7, read_bytes=9)
    assert shape_of(spec.model_copy(update=same)) == shape_of(spec)
    others = [
        {"image": "x"},
        {"network": "lab"},
        {"runtime": "runsc"},
        {"environment": {"A": "b"}},
        {"linger_s": 1.0},
        {"store": "another"},
        *({"limits": Limits(**{name: value})} for name, value in OTHER_LIMITS.items()),
    ]
    shapes = [shape_of(spec.model_copy(update=other)) for other in others]
    assert len({shape.model_dump_json() for shape in [*shapes, shape_of(spec)]}) == len(others) + 1
    mounted = spec.model_copy(update={"mounts": (Mount(source=tmp_path, target="/mnt/x"),)})
    assert shape_of(mounted) is None


OTHER_LIMITS = {
    name: getattr(Limits(), name) * 2 if getattr(Limits(), name) else 32 * MIB
    for name in set(Limits.model_fields) - {"timeout_s", "read_bytes"}
}


def test_what_is_asked_for_is_there_the_next_time(pool, spec):
    small = spec.model_copy(update={"limits": Limits(memory_bytes=128 * MIB)})
    assert pool.take(small) is None
    with closing(taken(pool, small)) as sandbox:
        assert sandbox.spec == small
        assert sandbox.python("1 + 1").value == "2"


def test_the_life_of_a_job_begins_when_its_spare_is_taken(pool, spec):
    brief = spec.model_copy(update={"limits": Limits(max_life_s=2.0)})
    pool.expect(brief)
    eventually(lambda: pool.count() == (2, 0))
    time.sleep(2.5)
    with closing(taken(pool, brief)) as sandbox:
        assert sandbox.python("1").value == "1"
        with pytest.raises(SandboxLost, match="maximum life of 2 s"):
            sandbox.python("import time; time.sleep(9)")


def test_one_that_has_died_is_given_to_nobody_and_replaced(pool, spec, engine, spares):
    pool.expect(spec)
    eventually(lambda: pool.count() == (2, 0))
    dead = {one["Id"] for one in spares()}
    for container in dead:
        engine._client.kill(container)
    with closing(taken(pool, spec)) as sandbox:
        assert sandbox.container not in dead
        assert sandbox.python("1").value == "1"
    eventually(lambda: not dead & {one["Id"] for one in spares()})


def test_demand_makes_more_of_them_and_memory_bounds_them(spec, spares):
    with Pool(libraries=(), memory_bytes=4 * pools.SPARE_BYTES) as pool:
        pool.expect(spec)
        eventually(lambda: pool.count()[0] == 2)
        for _ in range(8):
            if (sandbox := pool.take(spec)) is not None:
                sandbox.close()
        eventually(lambda: pool.count()[0] == 4)
        time.sleep(1.5)
        assert pool.count()[0] == 4


def test_what_nobody_asks_for_any_more_goes(spec, spares, monkeypatch):
    with Pool(libraries=()) as pool:
        pool.expect(spec)
        other = spec.model_copy(update={"linger_s": 1.0})
        for each in (spec, spec, spec, other):
            if (sandbox := pool.take(each)) is not None:
                sandbox.close()
        eventually(lambda: pool.count()[0] > 2)
        for name in ("DEMAND_S", "IDLE_S", "FORGET_S"):
            monkeypatch.setattr(stocks, name, 0.5)
        eventually(lambda: pool.count()[0] == 2)
        eventually(lambda: not pool._stocks.keys() - {shape_of(spec).model_dump_json()})
        eventually(lambda: len(spares()) == 2)


def test_libraries_are_there_from_the_first_call_on_and_after_the_interpreter_was_ended(
    spec, spares
):
    with Pool() as pool:
        pool.expect(spec)
        eventually(lambda: pool.count() == (2, 2), 60)
        with closing(taken(pool, spec)) as sandbox:
            assert sandbox.python(LOADED).value == "['matplotlib', 'numpy', 'pandas']"
            over = sandbox.python(STUBBORN, timeout_s=0.3)
            assert (over.outcome, over.interpreter) == (Outcome.TIMEOUT, Interpreter.RESTARTED)
            assert sandbox.python(LOADED).value == "['matplotlib', 'numpy', 'pandas']"
            began = time.monotonic()
            done = sandbox.python("import pandas; pandas.DataFrame({'a': [1, 2]}).a.sum()")
            assert done.value in {"3", "np.int64(3)"}
            assert time.monotonic() - began < 1


def test_a_library_that_is_not_there_is_no_harm(spec, spares):
    with Pool(libraries=("no_such_module", "json")) as pool:
        pool.expect(spec)
        eventually(lambda: pool.count() == (2, 2))
        with closing(taken(pool, spec)) as sandbox:
            assert sandbox.python("1").value == "1"


def test_spares_stay_bare_where_loading_libraries_loses_them(spec, spares, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(sessions, "PRELOAD_S", 0.01)  # as on a machine that is far too slow
    monkeypatch.setattr(pools, "FAULT_S", 2.0)
    with Pool() as pool:
        pool.expect(spec)
        eventually(lambda: "no longer loaded" in caplog.text)
        eventually(lambda: pool.count() == (2, 0))
        before = {one["Id"] for one in spares(State="running")}
        time.sleep(3)
        assert {one["Id"] for one in spares(State="running")} == before
        with closing(taken(pool, spec)) as sandbox:
            assert sandbox.python("1").value == "1"
    losses = [one.created for one in caplog.records if "was lost" in one.getMessage()]
    assert len(losses) == stocks.MOST_LOSSES
    assert losses[1] - losses[0] >= pools.FAULT_S
    assert caplog.text.count("no longer loaded") == 1


def test_a_spare_that_was_lost_is_not_replaced_without_a_pause(pool, spec, engine, monkeypatch):
    monkeypatch.setattr(pools, "FAULT_S", 3.0)
    pool.expect(spec)
    eventually(lambda: pool.count() == (2, 0))
    for idle in [idle for one in pool._stocks.values() for idle in one.ready]:
        engine._client.kill(idle.sandbox.container)
    eventually(lambda: pool.count() == (0, 0))
    began = time.monotonic()
    eventually(lambda: pool.count() == (2, 0))
    assert time.monotonic() - began > pools.FAULT_S - 1


def test_a_sandbox_that_ends_over_its_libraries_says_what_it_probably_lacks(spec, spares):
    limits = Limits(memory_bytes=64 * MIB)
    # far more than fits: which pages of a library count towards a container differs by machine
    libraries = ("pandas", "matplotlib.pyplot", "scipy.stats", "sklearn.ensemble")
    asked = {"limits": limits, "preload": libraries}
    with pytest.raises(SandboxUnavailable, match=r"while libraries were loaded.* 64 MiB") as raised:
        DockerSandbox.start(spec.model_copy(update=asked))
    assert raised.type is SandboxUnavailable


def test_an_engine_that_is_away_is_told_once_and_waited_for(tmp_path, caplog, monkeypatch, spec):
    monkeypatch.setattr(pools, "FAULT_S", 0.1)
    with Pool(f"unix://{tmp_path}/none.sock") as pool:
        pool.expect(spec)
        eventually(lambda: "no Docker engine answers" in caplog.text)
        time.sleep(0.5)
        assert pool.take(spec) is None
    assert caplog.text.count("no spare sandboxes can be made") == 1


BORROW = """
import sys, time
from sandbox.lending import Borrower
from sandbox.types import SandboxSpec
spec = SandboxSpec.model_validate_json(sys.argv[2])
deadline = time.monotonic() + 20
while (sandbox := Borrower(sys.argv[1]).take(spec)) is None and time.monotonic() < deadline:
    time.sleep(0.1)
print(sandbox.container, sandbox.python("20 + 1").value, flush=True)
input()
sandbox.close()
print("closed", flush=True)
"""


@pytest.fixture
def lent(pool, spec, engine, tmp_path):
    """A pool that lends, and a process that has borrowed of it."""
    pool.expect(spec)
    eventually(lambda: pool.count() == (2, 0))
    given = spec.model_copy(update={"generation": 3})
    with Lender(pool, tmp_path / "pool") as lender:
        command = [sys.executable, "-c", BORROW, str(lender.path), given.model_dump_json()]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            container, value = process.stdout.readline().split()
            assert value == "21"
            yield process, container, given
            process.kill()
    engine.remove(container)


def test_another_process_takes_one_and_leaves_its_removal_to_the_lender(lent, spares):
    process, container, _ = lent
    out, _ = process.communicate("\n", timeout=10)
    assert out == "closed\n"
    eventually(lambda: container not in {one["Id"] for one in spares()})


def test_a_spare_outlives_the_process_that_took_it_and_is_taken_over(lent):
    process, container, given = lent
    process.send_signal(signal.SIGKILL)
    process.wait()
    later = given.model_copy(update={"generation": 4})
    with closing(DockerSandbox.adopt(container, later)) as sandbox:
        assert sandbox.python("20 + 2").value == "22"


def test_one_of_another_store_is_not_taken_over(lent):
    _, container, given = lent
    with pytest.raises(SandboxLost, match="not one of job"):
        DockerSandbox.adopt(
            container, given.model_copy(update={"store": "another", "generation": 9})
        )


LEFT = """
import sys, time
from sandbox.pool import Pool
from sandbox.types import SandboxSpec
spec = SandboxSpec.model_validate_json(sys.argv[1])
with Pool(libraries=()) as pool:
    pool.expect(spec)
    while pool.count()[0] < 2:
        time.sleep(0.05)
    print("ready", flush=True)
    input()
"""


def test_those_of_a_process_that_was_killed_end_soon_however_long_jobs_wait_for_a_host(
    spec, spares, engine
):
    patient = spec.model_copy(update={"linger_s": 900.0})
    command = [sys.executable, "-c", LEFT, patient.model_dump_json()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
    eventually(lambda: {one["State"] for one in spares()} == {"exited"}, 15)
    for one in spares():
        engine.remove(one["Id"])


def test_one_that_was_taken_has_its_jobs_name_in_the_engines_list(pool, spec, spares):
    pool.expect(spec)
    with closing(taken(pool, spec)) as sandbox:
        name = f"/caisson-{spec.job}-"
        eventually(
            lambda: any(
                one["Id"] == sandbox.container and one["Names"][0].startswith(name)
                for one in spares()
            )
        )


def test_a_lender_that_is_gone_is_no_fault(spec, tmp_path, engine):
    borrower = Borrower(tmp_path / "none")
    assert borrower.take(spec) is None
    with closing(DockerSandbox.start(spec)) as sandbox:
        borrower.remove(sandbox.container)
        assert engine.state(sandbox.container) is None


@pytest.mark.parametrize("said", [b"", b"\n", b"{}\n", b'{"spec":{"image":1}}\n', b"x" * 70_000])
def test_a_lender_survives_whatever_it_is_asked(pool, spec, tmp_path, said):
    with Lender(pool, tmp_path / "pool") as lender:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(lender.path))
            stranger.sendall(said)
        assert lender.path.stat().st_mode & 0o777 == 0o600
        borrower = Borrower(lender.path)
        with closing(eventually(lambda: borrower.take(spec))) as sandbox:
            assert sandbox.python("1").value == "1"
    assert not lender.path.exists()


def test_a_peer_that_drips_its_request_holds_a_lender_up_for_a_second_only(pool, tmp_path):
    with (
        Lender(pool, tmp_path / "pool") as lender,
        socket.socket(socket.AF_UNIX) as dripping,
        socket.socket(socket.AF_UNIX) as waiting,
    ):
        began = time.monotonic()
        dripping.connect(str(lender.path))
        waiting.connect(str(lender.path))
        waiting.sendall(b"{}\n")
        waiting.settimeout(0.3)
        while True:
            with contextlib.suppress(OSError):  # it was hung up on
                dripping.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                assert waiting.recv(1000)
                break
            assert time.monotonic() - began < 5
        assert time.monotonic() - began > 0.9


def test_a_spare_that_dies_on_its_way_is_no_fault(pool, spec, engine, caplog):
    caplog.set_level("INFO")
    pool.expect(spec)
    eventually(lambda: pool.count() == (2, 0))
    spare = pool.hand_out(spec)
    engine._client.kill(spare.container)
    assert pools.moved_in(spare, spec, None, pool.remove) is None
    assert "of no use" in caplog.text


def test_spares_of_an_image_that_was_built_anew_are_replaced(spec, spares, engine, monkeypatch):
    monkeypatch.setattr(pools, "IMAGE_S", 0.3)
    name, tag = "caisson-test-moving", f"t{spec.job.replace('-', '')}"
    with closing(DockerSandbox.start(spec)) as sandbox:
        made = engine._client.commit(sandbox.container, name, tag)["Id"]
    moving = spec.model_copy(update={"image": f"{name}:{tag}"})
    try:
        with Pool(libraries=()) as pool:
            pool.expect(moving)
            eventually(lambda: pool.count() == (2, 0))
            old = {one["Id"] for one in spares(State="running")}
            engine._client.tag(spec.image, name, tag, force=True)
            eventually(lambda: not old & {one["Id"] for one in spares()})
            with closing(taken(pool, moving)) as sandbox:
                found = engine.inspect(sandbox.container)["Image"]
                assert found == engine.image(spec.image)["Id"]
    finally:
        engine._client.remove_image(f"{name}:{tag}", force=True)
        engine._client.remove_image(made, force=True)


class Standin:
    """A sandbox as far as a stock sees it."""

    is_quiet = True


def stock(spec, *, ready=0, asked_at=(), is_expected=False, since=0.0):
    made = Stock(shape_of(spec), is_expected)
    made.ready.extend(Idle(Standin(), since) for _ in range(ready))
    made.asked_at.extend(asked_at)
    return made


@pytest.mark.parametrize(
    ("asked_at", "is_expected", "wanted"),
    [
        ((), False, 0),
        ((), True, LEAST),
        ((995,), False, 1),
        ((995,), True, LEAST),
        ((991, 992, 993, 994, 995), True, 5),
        ((900,), False, 1),  # once lately: it may be asked for again
        ((600,), False, 0),
        ((600,), True, LEAST),
    ],
)
def test_as_many_are_wanted_as_were_asked_for_lately(spec, asked_at, is_expected, wanted):
    assert stock(spec, asked_at=asked_at, is_expected=is_expected).wanted(1000) == wanted


def test_more_than_are_wanted_stay_for_a_minute_and_old_or_broken_ones_go_at_once(spec):
    busy = stock(spec, ready=5, asked_at=(1000,), is_expected=True, since=1000.0)
    assert busy.sort_out(1050) == []
    assert len(busy.sort_out(1061)) == 5 - LEAST
    busy.ready[0].sandbox.is_quiet = False
    broken = busy.ready[0]
    assert busy.sort_out(1062) == [broken]
    assert len(busy.sort_out(1001 + SPARE_S / 2)) == LEAST - 1
    assert busy.best(1001 + SPARE_S) is None


def test_one_with_its_libraries_is_taken_first_and_none_that_is_broken(spec):
    some = stock(spec, ready=3)
    some.ready[1].is_loaded, some.ready[2].is_loaded = True, True
    some.ready[1].sandbox.is_quiet = False
    best = some.ready[2]
    assert some.best(1) is best
    assert some.best(1).is_loaded is False
    assert some.best(1) is None
