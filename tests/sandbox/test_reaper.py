"""What is removed and what is kept, over real containers and the engine's own clock."""

from __future__ import annotations

import itertools
import subprocess
import time
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.errors import EngineUnavailable, SandboxLost
from sandbox.owner import owner
from sandbox.reaper import Reaped, reap
from sandbox.types import SandboxSpec, Standing
from tests.sandbox.test_faults import docker

pytestmark = pytest.mark.engine

HELD = Standing(is_over=False, is_held=True)
FREE = Standing(is_over=False, is_held=False)
OVER = Standing(is_over=True, is_held=False)
DAY_S = 86_400


class Known:
    """What a store knows: how jobs stand, and which lives where (job -> container)."""

    def __init__(self, standing, tenants=(), identity="s"):
        self.standing, self.identity = standing, identity
        self._tenants = {container[:12]: job for job, container in dict(tenants).items()}

    def tenants(self, places):
        return {place: job for place, job in self._tenants.items() if place in places}


class LaterEngine(Engine):
    """The real engine, which shows this test's containers only, some time later."""

    def __init__(self, job, later_s=0.0):
        super().__init__()
        self._job = job
        self._later = timedelta(seconds=later_s)
        self.calls = []
        self.stuck = ""

    def describe(self):
        self.calls.append("describe")
        told = super().describe()
        now = datetime.fromisoformat(told["SystemTime"]) + self._later
        return told | {"SystemTime": now.isoformat()}

    def labelled(self, label):
        self.calls.append("labelled")
        found = super().labelled(label)
        return [one for one in found if one["Labels"][label].startswith(self._job)]

    def inspect(self, container):
        self.calls.append("inspect")
        return super().inspect(container)

    def remove(self, container):
        if container == self.stuck:
            raise EngineUnavailable("the Docker engine refused: device or resource busy")
        super().remove(container)


@pytest.fixture(scope="session")
def dead_owner():
    """An owner on this host that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{owner().split(':')[0]}:{process.pid}:1"


@pytest.fixture
def prefix(job):
    """Begins the names of this test's jobs."""
    return f"{job}-reap"


@pytest.fixture
def make(prefix):
    """Make a container: `make("job", state="exited", store="s", owner=…)`; returns its id."""
    made = []

    def create(name="a", state="running", *, image="caisson-sandbox:latest", **labels):
        given = {"job": f"{prefix}-{name}", "deadline": str(int(time.time()) + DAY_S), **labels}
        words = [f"--label=caisson.{key}={value}" for key, value in given.items()]
        end = "exit 3" if state == "exited" else "sleep 600"
        verb = ["create"] if state == "created" else ["run", "-d"]
        command = [*verb, "--network=none", "--init", *words, "--entrypoint=", image]
        container = docker(*command, "sh", "-c", end).decode().strip()
        made.append(container)
        if state == "paused":
            docker("pause", container)
        if state == "exited":
            docker("wait", container)
        return container

    yield create
    with closing(Engine()) as engine:
        for container in made:
            engine.remove(container)


@pytest.fixture
def engine(prefix):
    """The engine as it will be in so many seconds: `engine(120)`."""
    opened = []

    def open_one(later_s=0.0):
        opened.append(LaterEngine(prefix, later_s))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def sweep(engine, prefix):
    """Reap for the store "s" at a later time: `sweep(120, a=HELD)`; gives id -> reason."""

    def run(later_s=0.0, *, store="s", tenants=(), **standings):
        known = {f"{prefix}-{name}": standing for name, standing in standings.items()}

        def standing(jobs):
            assert len(set(jobs)) == len(jobs)
            return {job: known[job] for job in jobs if job in known}

        reaped = reap(engine(later_s), Known(standing, tenants, store))
        assert not any(one.error for one in reaped)
        return {one.container: one.why for one in reaped}

    return run


def is_there(container):
    with closing(Engine()) as engine:
        return engine.state(container) is not None


class TestOurs:
    def test_a_job_that_is_over_has_no_container(self, make, sweep):
        running, exited = make(store="s"), make(store="s", state="exited")
        assert sweep(a=OVER) == dict.fromkeys((running, exited), "its job is over")
        assert not is_there(running)
        assert not is_there(exited)

    def test_a_running_one_of_an_unknown_job_may_be_anothers(self, make, sweep):
        """Another's that has this store, or a copy of it; it ends by itself in any case."""
        make(store="s")
        exited = make(state="exited", store="s")
        assert sweep(30) == {}
        assert sweep(90) == {exited: "its job is unknown"}

    @pytest.mark.parametrize("standing", [HELD, FREE], ids=["held", "free"])
    def test_a_running_one_is_kept_for_the_next_worker(self, make, sweep, standing):
        running, paused = make("a", store="s"), make("b", "paused", store="s")
        assert sweep(3600, a=standing, b=standing) == {}
        assert is_there(running)
        assert is_there(paused)

    def test_its_own_place_is_kept_and_any_other_goes_after_a_while(self, make, sweep):
        old, new = make(store="s"), make(store="s")
        moved = Standing(is_over=False, is_held=True, generation=2, place=new[:12])
        assert sweep(30, a=moved) == {}
        assert sweep(90, a=moved) == {old: "its job is in another sandbox"}
        assert is_there(new)

    def test_the_sandbox_that_the_holder_of_a_job_is_about_to_move_into_stays(self, make, sweep):
        make(store="s", generation="3")
        holder = Standing(is_over=False, is_held=True, generation=3, place="f" * 12)
        assert sweep(90, a=holder) == {}

    def test_what_is_left_on_the_engine_that_a_job_came_from_goes(self, make, sweep, engine):
        container = make(store="s")
        here = engine().identity()
        stays = Standing(is_over=False, is_held=True, place=container[:12], engine=here)
        assert sweep(90, a=stays) == {}
        moved = Standing(
            is_over=False, is_held=True, generation=2, place="f" * 12, engine="ABCD:another"
        )
        assert sweep(30, a=moved) == {}
        assert sweep(90, a=moved) == {container: "its job has moved to another engine"}

    @pytest.mark.parametrize("state", ["exited", "created"])
    def test_one_that_has_ended_waits_for_whoever_holds_its_job(self, make, sweep, state):
        container = make(store="s", state=state)
        assert sweep(30, a=HELD) == {}
        assert sweep(90, a=HELD) == {container: "it has ended"}

    @pytest.mark.parametrize("state", ["exited", "created"])
    def test_one_that_has_ended_goes_at_once_if_nobody_holds_its_job(self, make, sweep, state):
        container = make(store="s", state=state)
        assert sweep(a=FREE) == {container: "it has ended, and nobody works on its job"}

    def test_the_time_since_its_end_counts_and_not_since_its_beginning(self, make, sweep):
        container = make(store="s")
        time.sleep(10)
        docker("kill", container)
        assert sweep(51, a=HELD) == {}

    def test_what_has_outlived_its_life_goes_though_it_is_held(self, make, sweep):
        by_life = make("a", store="s", max_life_s="100")
        by_deadline = make("b", store="s", deadline=str(int(time.time()) + 100))
        assert sweep(390, a=HELD, b=HELD) == {}
        why = "it has outlived its maximum life"
        assert sweep(410, a=HELD, b=HELD) == {by_life: why, by_deadline: why}

    def test_a_deadline_by_a_clock_that_is_wrong_does_no_harm(self, make, sweep):
        make(store="s", max_life_s="100", deadline="1000000")
        assert sweep(a=HELD) == {}


class TestAnotherStores:
    def test_a_running_one_is_never_touched(self, make, sweep):
        make(store="theirs", deadline="1000000", max_life_s="1")
        make("b", "paused", store="theirs", deadline="1000000")
        assert sweep(DAY_S, a=OVER, b=OVER) == {}

    def test_one_that_has_ended_is_forgotten_after_its_deadline_and_ten_minutes(self, make, sweep):
        soon = make("a", "exited", store="theirs", max_life_s="10")
        late = make("b", "exited", store="theirs", max_life_s="1000")
        assert sweep(590) == {}
        assert sweep(610) == {soon: "another store has left it behind"}
        assert sweep(1010) == {late: "another store has left it behind"}


class TestAdHoc:
    def test_a_live_owner_keeps_all_that_is_its_own(self, make, sweep):
        for state in ("running", "exited", "created"):
            make(state=state, owner=owner())
        assert sweep(3600) == {}

    def test_the_running_one_of_a_dead_owner_gets_ten_seconds(self, make, sweep, dead_owner):
        container = make(owner=dead_owner)
        assert sweep() == {}
        assert sweep(15) == {container: "its owner is gone"}

    @pytest.mark.parametrize("state", ["exited", "created"])
    def test_what_has_ended_goes_with_its_owner(self, make, sweep, dead_owner, state):
        container = make(state=state, owner=dead_owner)
        assert sweep() == {container: "its owner is gone"}

    @pytest.mark.parametrize("name", ["elsewhere-123:7:1", "host:7", ""])
    def test_of_an_owner_elsewhere_only_what_ended_long_ago_goes(self, make, sweep, name):
        make(owner=name)
        gone = [make(state=state, owner=name) for state in ("exited", "created")]
        assert sweep(590) == {}
        assert set(sweep(610)) == set(gone)

    def test_what_has_outlived_its_life_goes_whoever_owns_it(self, make, sweep):
        container = make(owner=owner(), max_life_s="100")
        assert sweep(390) == {}
        assert sweep(410) == {container: "it has outlived its maximum life"}

    def test_they_are_nobodys_for_a_store_without_a_name(self, make, sweep):
        make(owner=owner())
        assert sweep(3600, store="", a=OVER) == {}


class TestReaping:
    def test_nothing_is_looked_at_that_is_no_sandbox(self):
        words = ["--label=caisson.deadline=1", "--label=caisson.store=s", "caisson-sandbox:latest"]
        container = docker("create", *words, "true").decode().strip()
        with closing(Engine()) as engine:
            try:
                would = reap(engine, Known(lambda _: {}), dry_run=True)
                assert container not in [one.container for one in would]
            finally:
                engine.remove(container)

    def test_a_dry_run_removes_nothing_and_says_what_it_would(self, make, engine, prefix):
        container = make(store="s")
        would = reap(engine(), Known(lambda jobs: dict.fromkeys(jobs, OVER)), dry_run=True)
        (one,) = would
        assert (one.container, one.job, one.error) == (container, f"{prefix}-a", "")
        assert one.name
        assert not one.name.startswith("/")
        assert is_there(container)

    def test_one_that_cannot_be_removed_is_told_and_the_others_go(self, make, engine):
        stuck, other = make(store="s"), make(store="s")
        here = engine()
        here.stuck = stuck
        reaped = reap(here, Known(lambda jobs: dict.fromkeys(jobs, OVER)))
        errors = {one.container: one.error for one in reaped}
        assert errors == {
            stuck: "the Docker engine refused: device or resource busy",
            other: "",
        }
        assert is_there(stuck)
        assert not is_there(other)

    def test_one_that_somebody_else_removes_meanwhile_is_done(self, make, engine):
        container = make(store="s")

        def standing(jobs):
            docker("rm", "-f", container)
            return dict.fromkeys(jobs, OVER)

        assert [(one.container, one.error) for one in reap(engine(), Known(standing))] == [
            (container, "")
        ]

    def test_the_clock_of_this_host_is_not_asked(self, make, engine):
        make(store="s")

        def now():
            raise AssertionError("the engine has told its time")

        assert reap(engine(30), Known(lambda _: {}), now) == []

    def test_the_engine_is_asked_as_little_as_can_be(self, make, engine, dead_owner):
        make("a", store="s")
        make("b", "exited", store="s")
        make("c", "exited", store="theirs")
        make("d", "exited", owner="elsewhere:1:1")
        make("e", owner=dead_owner)
        here, asked = engine(), []

        def standing(jobs):
            asked.append(list(jobs))
            return dict.fromkeys(jobs, HELD)

        assert reap(here, Known(standing)) == []
        assert sorted(here.calls) == ["describe", "labelled"]
        assert len(asked) == 1

    def test_a_store_that_does_not_answer_costs_nothing(self, make, engine):
        container = make(store="s")

        def standing(jobs):
            raise ConnectionError("the database is away")

        with pytest.raises(ConnectionError):
            reap(engine(DAY_S), Known(standing))
        assert is_there(container)


def test_real_sandboxes_are_judged_by_their_labels(start, prefix, engine):
    specs = [
        SandboxSpec(job=f"{prefix}-{name}", store=store, owner=owner(), linger_s=30)
        for name, store in itertools.product("ab", ("s", ""))
    ]
    made = {(spec.job[-1], spec.store): start(spec=spec) for spec in specs}
    standings = {f"{prefix}-a": OVER, f"{prefix}-b": FREE}
    reaped = reap(engine(), Known(lambda _: standings))
    lost = made["a", "s"]
    assert [one.container for one in reaped] == [lost.container]
    assert isinstance(reaped[0], Reaped)
    with pytest.raises(SandboxLost):
        lost.python("1")
    adopted = DockerSandbox.adopt(made["b", "s"].place, made["b", "s"].spec)
    assert adopted.python("1 + 1").value == "2"
    adopted.close()


class TestSpares:
    @pytest.fixture
    def spare(self, make):
        """Make a spare of the store "s", by default one that this process has made."""

        def made(state="running", **labels):
            return make(
                "spare", state, **{"spare": "yes", "store": "s", "owner": owner(), **labels}
            )

        return made

    @pytest.mark.parametrize("store", ["", "s"])
    @pytest.mark.parametrize("state", ["running", "paused"])
    def test_a_live_one_is_kept_whoever_made_it_as_a_job_may_be_moving_in(
        self, spare, sweep, dead_owner, store, state
    ):
        kept = [spare(state, store=store, owner=one) for one in (owner(), dead_owner, "x:7:1")]
        assert sweep(3600) == {}
        assert all(is_there(container) for container in kept)

    @pytest.mark.parametrize("store", ["", "s"])
    @pytest.mark.parametrize("state", ["exited", "created"])
    def test_one_that_has_ended_goes_at_once_if_its_maker_has_died(
        self, spare, sweep, dead_owner, store, state
    ):
        container = spare(state, owner=dead_owner, store=store)
        assert sweep() == {container: "its owner is gone"}

    def test_a_live_one_that_has_outlived_its_life_goes(self, spare, sweep, dead_owner):
        gone = [spare(owner=one, max_life_s="100") for one in (owner(), dead_owner)]
        assert sweep(390) == {}
        assert sweep(410) == dict.fromkeys(gone, "it has outlived its maximum life")

    @pytest.mark.parametrize("state", ["exited", "created"])
    def test_one_that_has_ended_goes_though_its_maker_lives_or_is_elsewhere(
        self, spare, sweep, state
    ):
        gone = [spare(state), spare(state, owner="elsewhere-123:7:1")]
        assert sweep(30) == {}
        assert sweep(90) == dict.fromkeys(gone, "it has ended, and no job lives in it")

    @pytest.mark.parametrize("standing", [HELD, FREE], ids=["held", "free"])
    def test_one_in_which_a_job_lives_is_the_jobs(self, spare, sweep, dead_owner, prefix, standing):
        container = spare(owner=dead_owner)
        at_home = standing.model_copy(update={"generation": 5, "place": container[:12]})
        assert sweep(3600, tenants={f"{prefix}-a": container}, a=at_home) == {}
        assert not sweep(3600, tenants={"spare": container}, spare=OVER).get(container)

    def test_one_in_which_a_job_lived_when_it_ended_goes(self, spare, sweep, prefix):
        container = spare("exited")
        at_home = FREE.model_copy(update={"place": container[:12]})
        gone = sweep(3600, tenants={f"{prefix}-a": container}, a=at_home)
        assert gone == {container: "it has ended, and nobody works on its job"}

    def test_one_of_another_store_is_left_alone_while_it_lives(self, spare, sweep, dead_owner):
        spare(owner=dead_owner, store="theirs")
        assert sweep(3600) == {}

    def test_one_of_another_store_that_ended_goes_when_its_maker_has_died(
        self, spare, sweep, dead_owner
    ):
        container = spare("exited", owner=dead_owner, store="theirs")
        assert sweep(500) == {}
        assert sweep(700) == {container: "another store has left it behind"}

    def test_one_of_another_store_that_ended_stays_while_its_maker_lives(self, spare, sweep):
        spare("exited", store="theirs")
        assert sweep(3600) == {}

    def test_a_job_of_the_same_name_as_their_label_is_not_meant(self, spare, engine, prefix):
        spare()

        def standing(jobs):
            raise AssertionError(f"no job lives in it: {jobs}")

        assert reap(engine(3600), Known(standing)) == []
