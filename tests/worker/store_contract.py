"""What every store must do. A store's own test file subclasses `StoreContract`."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.types import Execution, FileInfo, Interpreter, Outcome, Standing
from worker.errors import JobExists, JobTaken, JobUnknown, LeaseLost
from worker.history import fold
from worker.messages import (
    Artifact,
    ArtifactsAdded,
    Budget,
    CallStarted,
    Ended,
    Finish,
    FinishReason,
    Input,
    Job,
    JobError,
    Message,
    MessageAdded,
    NoticeAdded,
    Order,
    Remarked,
    Reply,
    ReplyAdded,
    ResultAdded,
    ResultStatus,
    SandboxOpened,
    SandboxReplaced,
    Status,
    SummaryAdded,
    ToolCall,
    ToolResult,
    Usage,
    WindowLearnt,
)
from worker.store.base import Store, WorkerSeen

ASKED = (
    *("load", "events", "get", "order", "attempts", "claim"),
    *("request_cancel", "is_cancel_requested", "delivered"),
)
SHORT_S = 0.25
TICK_S = 0.02  # what is between an act and the clock that is read beside it
LONG_S = 60.0
GIB = 2**30
AWKWARD = (
    "",
    "plain",
    "a\0b",
    "\x00",
    "\x1a\x1a0000",  # what a way of escaping may stumble over
    "\ud800 alone, \udfff too",
    "\\u0000 \\ud800",
    "grüße 数据 🧪 \u2028 \x7f \x1b[31m",
    "'; DROP TABLE jobs; --",
    "%s %(x)s :name ? $1 {}",
)


def artifact(name, size=1, **more):
    return Artifact(name=name, size=size, mime="text/plain", path=f"/x/{name}", **more)


CALL = ToolCall(id="c1", name="shell", arguments='{"a": 1', repaired="a brace", extra={"i": 0})
REPLY = Reply(
    message=Message(role="assistant", content="hm", tool_calls=(CALL,), extra={"reasoning": "x"}),
    finish=Finish.LENGTH,
    usage=Usage(input_tokens=11, output_tokens=5, cost=0.1),
    model="m",
    duration_s=1.25,
    waited_s=0.1,
)
EXECUTION = Execution(
    outcome=Outcome.ERROR,
    exit_code=-9,
    value="None",
    output="out",
    output_truncated=True,
    output_bytes=2**40,
    output_file="o.txt",
    duration_s=0.1 + 0.2,
    interpreter=Interpreter.RESTARTED,
    lost_names=("df", "x"),
    files=(FileInfo(name="a.png", size=3, mime="image/png"),),
)
RESULT = ToolResult(
    call_id="c1",
    name="shell",
    status=ResultStatus.ERROR,
    text="status: error",
    execution=EXECUTION,
    hint="look",
    files=EXECUTION.files,
    duration_s=3.0,
)
ENDED = Ended(
    status=Status.FAILED,
    finish_reason=FinishReason.BUDGET,
    answer="as far as it came",
    error=JobError(type="BudgetSpent", message="10 of 10 steps"),
)
ANSWERED = Ended(status=Status.SUCCEEDED, finish_reason=FinishReason.ANSWERED, answer="42")
OF_EVERY_KIND = (
    MessageAdded(at=1795999830.344014, message=Message(role="system", content="s")),
    MessageAdded(message=Message(role="user", content=({"type": "text", "text": "hi"},))),
    MessageAdded(message=Message(role="assistant", content=None, extra={"content": None})),
    SandboxOpened(at=-1.5, place="abc", engine="e1"),
    ReplyAdded(at=1e300, reply=REPLY),
    ReplyAdded(reply=Reply(message=Message(role="assistant"), usage=Usage(cost=None))),
    CallStarted(call_id="c1", place="abc"),
    ResultAdded(result=RESULT),
    NoticeAdded(text="t", reason="r", landing=FinishReason.LOOP, why="w"),
    Remarked(text=""),
    SummaryAdded(text="so far", steps=3, usage=Usage(input_tokens=9, output_tokens=2), model="m"),
    SummaryAdded(steps=4, usage=Usage(input_tokens=5, cost=0.5), fault="the summary was empty"),
    WindowLearnt(tokens=4096, why="cut"),
    SandboxReplaced(why="gone"),
    ArtifactsAdded(artifacts=(artifact("a"), artifact("b", source="b.txt", sha256="00"))),
    ENDED,
    ArtifactsAdded(artifacts=(artifact("a", 2),)),
)


def worker(name="w", engine="e1", **more):
    return WorkerSeen(name=name, host=f"host-{name}", engine=engine, **more)


def eventually(act):
    """Do something until it gives a result; returns that, and when it was last asked for."""
    give_up_at = time.monotonic() + 20
    while (asked_at := time.monotonic()) < give_up_at:
        if found := act():
            return found, asked_at
        time.sleep(0.01)
    raise AssertionError("it never came")


def at_once(count, work):
    """Do something in many threads at the same moment; returns what they return."""
    gate, found = threading.Barrier(count), []

    def meet(number):
        gate.wait()
        found.append(work(number))

    threads = [threading.Thread(target=meet, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == count
    return found


class StoreContract:
    """Needs a fixture `opened`: a function that gives an empty store.

    It takes `preferred_s` and `patience_s`. What it gave is closed after the test.
    """

    @pytest.fixture
    def store(self, opened):
        return opened()

    @pytest.fixture
    def job(self, store):
        job = Job(id="one", goal="g")
        store.create(job)
        return job

    @pytest.fixture
    def claim(self, store, job):
        return store.claim("one", "w", LONG_S)

    def append(self, store, *events, job_id="one"):
        """Append as the holder of a job; claims it if there is none."""
        generation = store.get(job_id).generation or store.claim(job_id).generation
        for event in events:
            store.append(job_id, event, generation=generation)

    def end(self, store, job_id, event=ANSWERED):
        claim = store.claim(job_id)
        store.append(job_id, event, generation=claim.generation)
        return store.release(job_id, generation=claim.generation)

    # ---- keeping

    def test_it_fulfils_the_protocol(self, store):
        assert isinstance(store, Store)

    def test_it_has_a_name_of_its_own(self, store):
        assert store.identity

    def test_closing_twice_is_harmless(self, store):
        store.close()
        store.close()

    def test_a_new_job_is_kept_as_it_was_given(self, store, job):
        assert store.load("one") == (job, ())

    def test_everything_of_a_job_and_its_order_is_kept(self, store):
        job = Job(
            id="full",
            goal="g",
            model="m",
            tools=("shell",),
            budget=Budget(max_steps=3, timeout_s=0.5, max_cost=1e-9),
        )
        order = Order(
            options={"preload": ["pandas"], "max_steps": 3, "nothing": None, "f": 0.1},
            inputs=(Input(name="a.csv", size=2**40, sha256="ab", header="x,y"),),
            mounts=("/data",),
            replay="cd",
            key="k",
            priority=-7,
            memory_bytes=512 * 2**20,
            cpus=0.3,
            deliver={"task": "t", "args": [1, {"x": "\0"}]},
        )
        store.create(job, order)
        assert store.load("full") == (job, ())
        assert store.order("full") == order
        assert store.get("full").order == order

    def test_a_job_without_an_order_has_an_empty_one(self, store, job):
        assert store.order("one") == Order()

    def test_a_second_job_of_the_same_id_is_refused(self, store, job):
        with pytest.raises(JobExists, match="one"):
            store.create(Job(id="one", goal="another"))
        assert store.load("one") == (job, ())

    @pytest.mark.parametrize("ask", ASKED)
    def test_an_unknown_job_is_an_error(self, store, job, ask):
        for name in ("nothing", "", "nul\0", "\ud800"):
            with pytest.raises(JobUnknown):
                getattr(store, ask)(name)

    def test_an_unknown_job_takes_nothing(self, store):
        with pytest.raises(JobUnknown):
            store.append("nothing", Remarked(text="x"), generation=1)
        with pytest.raises(JobUnknown):
            store.renew("nothing", generation=1, lease_s=1.0, figures={})
        with pytest.raises(JobUnknown):
            store.release("nothing", generation=1)

    # ---- events

    def test_every_kind_of_event_comes_back_exactly(self, store, claim):
        self.append(store, *OF_EVERY_KIND)
        found = store.load("one")[1]
        assert found == OF_EVERY_KIND
        assert [type(event) for event in found] == [type(event) for event in OF_EVERY_KIND]

    def test_events_are_kept_in_their_order(self, store, claim):
        events = tuple(Remarked(text=str(i), at=float(i)) for i in range(50))
        self.append(store, *events)
        assert store.load("one")[1] == events

    def test_events_are_read_from_any_point_on(self, store, claim):
        events = tuple(Remarked(text=str(i)) for i in range(10))
        self.append(store, *events)
        for after in range(12):
            assert store.events("one", after) == events[after:]

    @pytest.mark.parametrize("text", AWKWARD)
    def test_any_text_survives(self, store, text):
        key = f"k{text}"
        store.create(Job(id=f"id{text}", goal=text, model=text), Order(key=key))
        job_id = f"id{text}"
        claim = store.claim(job_id, f"w{text}", LONG_S)
        message = Message(role="user", content=text, extra={text: [text, {"deep": text}]})
        error = JobError(type=text, message=text)
        events = (
            MessageAdded(message=message),
            SandboxOpened(place=text, engine=text),
            ArtifactsAdded(artifacts=(artifact(text, source=text),)),
            Ended(status="failed", finish_reason="failed", answer=text, error=error),
        )
        self.append(store, *events, job_id=job_id)
        store.renew(job_id, generation=claim.generation, lease_s=LONG_S, figures={text: text})
        store.see(worker(f"w{text}"))
        found = store.get(job_id)
        assert store.events(job_id) == events
        assert (found.job.goal, found.job.answer, found.job.error) == (text, text, error)
        assert (found.place, found.engine, found.worker) == (text, text, f"w{text}")
        assert found.job.artifacts == events[2].artifacts
        assert store.attempts(job_id)[0].figures == {text: text}
        assert [seen.name for seen in store.workers()] == [f"w{text}"]
        assert store.create(Job(id="other", goal="g"), Order(key=key)) == job_id

    def test_whatever_is_said_survives(self, store):
        @settings(max_examples=30, deadline=None)
        @given(text=st.text(st.characters(), max_size=40))
        def check(text):
            job = Job(id=f"job-{len(store.jobs(limit=1000))}", goal="g")
            store.create(job)
            said = Remarked(text=text)
            self.append(store, said, job_id=job.id)
            assert store.events(job.id) == (said,)

        check()

    def test_numbers_that_json_does_not_know_survive(self, store, claim):
        extra = {"nan": float("nan"), "inf": float("-inf"), "large": 10**40, "zero": -0.0}
        event = MessageAdded(message=Message(role="user", content="x", extra=extra))
        self.append(store, event)
        assert repr(store.events("one")) == repr((event,))

    def test_a_large_event_is_kept_whole(self, store, claim):
        text = "".join(chr(32 + i % 5000) for i in range(2**20))
        self.append(store, Remarked(text=text))
        assert store.events("one")[0].text == text

    # ---- leases

    def test_every_claim_has_a_higher_generation(self, store, job):
        claims = [store.claim("one").generation for _ in range(3)]
        assert claims == sorted(set(claims))
        assert claims[0] >= 1

    def test_a_claim_names_its_job(self, claim):
        assert claim.job_id == "one"

    def test_a_held_job_is_not_given_to_another(self, store, claim):
        with pytest.raises(JobTaken, match="w holds job one"):
            store.claim("one", "other", LONG_S)
        assert store.claim_next(worker("other"), LONG_S) is None
        assert store.get("one").generation == claim.generation

    def test_a_lease_that_is_over_excludes_nobody(self, store, job):
        def try_it():
            try:
                return store.claim("one", "other", LONG_S)
            except JobTaken:
                return None

        started = time.monotonic()
        first = store.claim("one", "w", SHORT_S)
        second, _ = eventually(try_it)
        assert time.monotonic() - started >= SHORT_S - TICK_S
        assert second.generation > first.generation

    def test_a_job_whose_worker_is_gone_is_due_again(self, store, job):
        started = time.monotonic()
        first = store.claim_next(worker(), SHORT_S)
        second, _ = eventually(lambda: store.claim_next(worker("other"), LONG_S))
        assert time.monotonic() - started >= SHORT_S - TICK_S
        assert (second.job_id, second.losses) == ("one", 1)
        assert second.generation > first.generation

    def test_a_lease_may_be_cut_short(self, store, claim):
        store.renew("one", generation=claim.generation, lease_s=0.0, figures={})
        assert not store.get("one").is_held
        assert store.claim_next(worker("other"), LONG_S) is not None

    def test_a_renewed_lease_goes_on(self, store, job):
        claim = store.claim("one", "w", SHORT_S)
        store.renew("one", generation=claim.generation, lease_s=LONG_S, figures={})
        time.sleep(SHORT_S + 0.05)
        with pytest.raises(JobTaken):
            store.claim("one", "other", LONG_S)

    def test_who_is_late_may_go_on_as_long_as_nobody_else_came(self, store, job):
        claim = store.claim("one", "w", 0.0)
        store.append("one", Remarked(text="late"), generation=claim.generation)
        store.renew("one", generation=claim.generation, lease_s=LONG_S, figures={})
        assert store.get("one").is_held

    def test_an_older_generation_writes_nothing(self, store, job):
        old = store.claim("one", "old", 0.0).generation
        new = store.claim("one", "new", LONG_S).generation
        before = store.get("one")
        with pytest.raises(LeaseLost):
            store.append("one", ArtifactsAdded(artifacts=(artifact("a"),)), generation=old)
        with pytest.raises(LeaseLost):
            store.append("one", ANSWERED, generation=old)
        with pytest.raises(LeaseLost):
            store.renew("one", generation=old, lease_s=LONG_S, figures={"x": 1})
        with pytest.raises(LeaseLost):
            store.release("one", generation=old)
        assert store.get("one") == before
        assert store.events("one") == ()
        assert store.attempts("one")[0].figures == {}
        store.append("one", Remarked(text="new"), generation=new)
        assert [event.text for event in store.events("one")] == ["new"]

    def test_nobody_writes_before_a_claim_or_after_the_release(self, store, job):
        with pytest.raises(LeaseLost):
            store.append("one", Remarked(text="x"), generation=0)
        claim = store.claim("one", "w", LONG_S)
        store.release("one", generation=claim.generation)
        for write in (
            lambda g: store.append("one", Remarked(text="x"), generation=g),
            lambda g: store.renew("one", generation=g, lease_s=1.0, figures={}),
            lambda g: store.release("one", generation=g),
        ):
            with pytest.raises(LeaseLost):
                write(claim.generation)
        assert store.events("one") == ()

    def test_a_generation_that_was_never_given_writes_nothing(self, store, claim):
        with pytest.raises(LeaseLost):
            store.append("one", Remarked(text="x"), generation=claim.generation + 1)

    def test_claims_from_many_threads_are_all_different(self, store, job):
        claims = at_once(8, lambda _: store.claim("one").generation)
        assert len(set(claims)) == 8

    def test_a_lease_is_given_to_one_of_many_threads(self, store, job):
        def try_it(number):
            try:
                return store.claim("one", f"w{number}", LONG_S)
            except JobTaken:
                return None

        assert sum(claim is not None for claim in at_once(8, try_it)) == 1

    def test_each_job_goes_to_one_of_many_threads(self, store):
        for number in range(20):
            store.create(Job(id=f"j{number}", goal="g"))

        def take_all(number):
            claims = iter(lambda: store.claim_next(worker(f"w{number}"), LONG_S), None)
            return [claim.job_id for claim in claims]

        taken = [job_id for some in at_once(4, take_all) for job_id in some]
        assert sorted(taken) == sorted(f"j{number}" for number in range(20))

    # ---- losses

    def test_claims_that_were_lost_in_a_row_are_counted(self, store, job):
        assert [store.claim("one").losses for _ in range(4)] == [0, 1, 2, 3]
        assert store.get("one").losses == 3

    @pytest.mark.parametrize(
        "event", [ReplyAdded(reply=REPLY), ResultAdded(result=RESULT), ANSWERED]
    )
    def test_progress_makes_up_for_losses(self, store, job, event):
        for _ in range(3):
            claim = store.claim("one")
        store.append("one", event, generation=claim.generation)
        assert store.get("one").losses == 0
        assert store.claim("one").losses == 1

    @pytest.mark.parametrize(
        "event",
        [
            *(Remarked(text="x"), CallStarted(call_id="c"), SandboxOpened(place="p")),
            *(
                ResultAdded(result=ToolResult(call_id="c", name="shell", status=status, text=""))
                for status in ResultStatus
                if status not in {ResultStatus.OK, ResultStatus.ERROR}
            ),
        ],
        ids=lambda event: event.result.status if event.kind == "result" else event.kind,
    )
    def test_what_is_no_progress_makes_up_for_nothing(self, store, job, event):
        for _ in range(3):
            claim = store.claim("one")
        store.append("one", event, generation=claim.generation)
        assert store.claim("one").losses == 3

    def test_a_job_that_is_given_back_was_not_lost(self, store, job):
        store.claim("one")
        claim = store.claim("one")
        assert claim.losses == 1
        store.release("one", generation=claim.generation)
        assert store.claim("one").losses == 0

    def test_the_jobs_of_a_worker_that_is_dead_are_due_at_once_and_counted_as_lost(self, store):
        for name in ("one", "two", "given back", "over", "anothers"):
            store.create(Job(id=name, goal="g"))
        claims = [store.claim(name, "dead", LONG_S) for name in ("one", "two", "given back")]
        store.release("given back", generation=claims[2].generation)
        self.end(store, "over")
        store.claim("anothers", "dead.2", LONG_S)
        assert sorted(store.lose("dead")) == ["one", "two"]
        assert store.lose("dead") == store.lose("unknown") == ()
        assert store.get("anothers").is_held
        assert store.counts().held == 1
        later = store.claim("one", "next", LONG_S)
        assert (later.losses, later.generation) == (1, claims[0].generation + 1)
        lost = store.attempts("one")[0]
        assert lost.ending == "lost"
        assert lost.ended_at - lost.started_at < LONG_S / 2
        with pytest.raises(LeaseLost):
            store.append("one", Remarked(text="x"), generation=claims[0].generation)

    # ---- release

    def test_a_job_that_is_given_back_is_queued(self, store, claim):
        self.append(store, MessageAdded(message=Message(role="user", content="x")))
        assert store.get("one").job.status is Status.RUNNING
        assert store.release("one", generation=claim.generation) is Status.QUEUED
        found = store.get("one")
        assert (found.job.status, found.is_held, found.ended_at) == (Status.QUEUED, False, None)
        assert store.claim_next(worker(), LONG_S).generation > claim.generation

    def test_a_job_is_running_until_everything_of_it_is_stored(self, store, claim):
        self.append(store, ENDED)
        found = store.get("one")
        assert (found.job.status, found.job.answer) == (Status.RUNNING, ENDED.answer)
        assert store.release("one", generation=claim.generation) is Status.FAILED
        found = store.get("one")
        assert (found.job.status, found.is_held) == (Status.FAILED, False)
        assert found.ended_at is not None
        assert found.ended_at >= found.created_at

    @pytest.mark.parametrize(
        "status", [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.DEAD]
    )
    def test_a_job_that_is_over_is_not_claimed_again(self, store, job, status):
        self.end(store, "one", ANSWERED.model_copy(update={"status": status}))
        with pytest.raises(JobTaken, match=f"one is over: {status}"):
            store.claim("one", "w", LONG_S)
        assert store.claim_next(worker(), LONG_S) is None

    # ---- how it is told

    def test_what_is_told_is_what_the_events_come_to(self, store, claim):
        expected = Job(id="one", goal="g")
        for event in OF_EVERY_KIND:
            self.append(store, event)
            expected = fold(expected, event)
        store.release("one", generation=claim.generation)
        found = store.get("one")
        assert found.job == expected
        assert found.events == len(OF_EVERY_KIND)
        assert (found.place, found.engine) == ("abc", "e1")

    @pytest.mark.parametrize("costs", [(0.1, 0.2), (0.1, None), (None, 0.2)])
    def test_a_cost_is_known_only_if_all_of_it_is(self, store, claim, costs):
        events = [
            ReplyAdded(reply=REPLY.model_copy(update={"usage": Usage(input_tokens=1, cost=cost)}))
            for cost in costs
        ]
        self.append(store, *events)
        expected = events[0].reply.usage + events[1].reply.usage
        assert store.get("one").job.usage == expected

    def test_a_summary_is_paid_for_and_is_no_step(self, store, claim):
        used = Usage(input_tokens=7, output_tokens=3, cost=0.25)
        self.append(store, SummaryAdded(text="notes", steps=4, usage=used))
        job = store.get("one").job
        assert (job.steps, job.usage) == (0, used)

    def test_counts_of_tokens_that_are_nonsense_do_not_break_it(self, store, claim):
        usage = Usage(input_tokens=10**30, output_tokens=10**30)
        event = ReplyAdded(reply=REPLY.model_copy(update={"usage": usage}))
        self.append(store, *[event] * 3)
        assert store.events("one") == (event,) * 3
        assert store.get("one").job.usage.input_tokens > 10**12

    def test_a_newer_artefact_takes_the_place_of_the_older(self, store, claim):
        self.append(
            store,
            ArtifactsAdded(artifacts=(artifact("b"), artifact("a"))),
            ArtifactsAdded(artifacts=(artifact("c"), artifact("b", 7, sha256="ff"))),
        )
        found = store.get("one").job.artifacts
        assert found == (artifact("b", 7, sha256="ff"), artifact("a"), artifact("c"))

    def test_files_that_are_gone_from_the_workspace_are_no_artefacts_any_more(self, store, claim):
        odd, many = "odd \udc80\0 name", [f"f{number}" for number in range(1200)]
        made = [artifact(name, source=f"w/{name}") for name in ("a", "b", odd, *many)]
        gone = tuple(f"w/{name}" for name in (odd, "a", "never seen", *many))
        self.append(
            store,
            ArtifactsAdded(artifacts=tuple(made)),
            ArtifactsAdded(artifacts=(artifact("a", 2, source="w/c"),), gone=gone),
        )
        found = store.get("one").job.artifacts
        assert found == (artifact("b", source="w/b"), artifact("a", 2, source="w/c"))
        assert store.events("one")[-1].gone == gone

    def test_times_are_the_stores_clock(self, store, job):
        created = store.get("one")
        assert abs(created.created_at - time.time()) < 5
        self.append(store, Remarked(text="x", at=1.0))
        assert store.get("one").updated_at >= created.updated_at
        assert store.get("one").created_at == created.created_at

    def test_the_newest_jobs_are_listed_first(self, store):
        for number in range(5):
            store.create(Job(id=str(number), goal="g"), Order(priority=number % 2))
        assert [found.job.id for found in store.jobs()] == ["4", "3", "2", "1", "0"]
        assert [found.job.id for found in store.jobs(limit=2)] == ["4", "3"]
        assert store.jobs(limit=0) == ()

    def test_jobs_are_listed_by_their_status(self, store):
        for name in ("a", "b", "c", "d"):
            store.create(Job(id=name, goal="g"))
        self.end(store, "a")
        self.end(store, "d")
        store.claim("b", "w", LONG_S)

        def listed(*args):
            return [found.job.id for found in store.jobs(*args)]

        assert listed(Status.SUCCEEDED) == ["d", "a"]
        assert listed(Status.SUCCEEDED, 1) == ["d"]
        assert listed(Status.RUNNING) == ["b"]
        assert listed(Status.QUEUED) == ["c"]
        assert listed(Status.DEAD) == []

    def test_a_listed_job_says_who_has_it(self, store, claim):
        found = store.jobs()[0]
        assert (found.worker, found.is_held, found.generation) == ("w", True, claim.generation)
        assert found.job.status is Status.RUNNING

    # ---- keys

    def test_a_known_key_is_the_same_job(self, store):
        first = store.create(Job(id="one", goal="g"), Order(key="k"))
        assert store.create(Job(id="two", goal="other"), Order(key="k")) == first == "one"
        assert store.load("one")[0].goal == "g"
        with pytest.raises(JobUnknown):
            store.get("two")

    def test_a_job_is_found_by_its_key(self, store):
        long = "k" * 5000
        store.create(Job(id="one", goal="g"), Order(key="k"))
        store.create(Job(id="two", goal="g"), Order(key=long))
        store.create(Job(id="three", goal="g"))
        assert (store.keyed("k"), store.keyed(long), store.keyed("other")) == ("one", "two", None)

    def test_a_known_key_goes_before_a_known_id(self, store):
        store.create(Job(id="one", goal="g"), Order(key="k"))
        store.create(Job(id="two", goal="g"))
        assert store.create(Job(id="two", goal="g"), Order(key="k")) == "one"
        with pytest.raises(JobExists):
            store.create(Job(id="two", goal="g"), Order(key="new"))

    def test_jobs_without_a_key_are_all_different(self, store):
        assert [store.create(Job(id=name, goal="g")) for name in "abc"] == ["a", "b", "c"]

    def test_a_key_outlives_its_job(self, store):
        store.create(Job(id="one", goal="g"), Order(key="k"))
        self.end(store, "one")
        assert store.create(Job(id="two", goal="g"), Order(key="k")) == "one"

    def test_a_key_may_be_long(self, store):
        key = "".join(chr(0x4E00 + i * 7919 % 20_000) for i in range(20_000))
        store.create(Job(id="one", goal="g"), Order(key=key))
        assert store.create(Job(id="two", goal="g"), Order(key=key)) == "one"
        assert store.create(Job(id="three", goal="g"), Order(key=key[:-1])) == "three"
        assert store.order("one").key == key

    def test_one_key_from_many_threads_at_once_is_one_job(self, store):
        def submit(number):
            return store.create(Job(id=f"j{number}", goal="g"), Order(key="k"))

        assert len(set(at_once(8, submit))) == 1
        assert len(store.jobs()) == 1

    def test_one_id_from_many_threads_at_once_is_kept_once(self, store):
        def submit(number):
            try:
                return store.create(Job(id="one", goal=str(number)))
            except JobExists:
                return None

        assert sorted(map(bool, at_once(8, submit))) == [False] * 7 + [True]

    # ---- what is due

    def taken(self, store, *, by=None):
        claims = iter(lambda: store.claim_next(by or worker(), LONG_S), None)
        return [claim.job_id for claim in claims]

    def test_an_empty_store_has_nothing_to_do(self, store):
        assert store.claim_next(worker(), LONG_S) is None

    def test_the_oldest_is_due_first(self, store):
        for name in ("c", "a", "b"):
            store.create(Job(id=name, goal="g"))
        assert self.taken(store) == ["c", "a", "b"]

    def test_a_higher_priority_is_due_sooner(self, store):
        for name, priority in {"low": -5, "first": 0, "high": 9, "second": 0}.items():
            store.create(Job(id=name, goal="g"), Order(priority=priority))
        assert self.taken(store) == ["high", "first", "second", "low"]

    def test_a_job_that_is_given_back_keeps_its_turn(self, store):
        for name in ("a", "b"):
            store.create(Job(id=name, goal="g"))
        claim = store.claim_next(worker(), LONG_S)
        store.release("a", generation=claim.generation)
        assert self.taken(store) == ["a", "b"]

    # ---- what fits

    def test_what_held_jobs_reserve_is_taken(self, store):
        for name in ("a", "b", "c"):
            store.create(Job(id=name, goal="g"), Order(memory_bytes=GIB, cpus=1.0))
        by = worker(memory_bytes=2 * GIB, cpus=8.0)
        assert self.taken(store, by=by) == ["a", "b"]
        waits = store.get("c").waits_for
        assert waits == "1.0 GiB of memory on host-w, where 2.0 GiB of 2.0 GiB are taken"
        store.release("a", generation=store.get("a").generation)
        assert self.taken(store, by=by) == ["a"]

    def test_cpus_are_counted_as_well(self, store):
        for name in ("a", "b", "c"):
            store.create(Job(id=name, goal="g"), Order(cpus=0.1))
        assert self.taken(store, by=worker(cpus=0.2)) == ["a", "b"]
        assert "CPUs" in store.get("c").waits_for

    def test_shares_that_add_up_to_all_fit(self, store):
        for name in "abcd":
            store.create(Job(id=name, goal="g"), Order(cpus=0.1))
        assert 0.1 + 0.1 + 0.1 > 0.3
        assert self.taken(store, by=worker(cpus=0.3)) == ["a", "b", "c"]

    def test_memory_that_is_not_there_is_not_given(self, store):
        store.create(Job(id="a", goal="g"), Order(memory_bytes=GIB))
        assert store.claim_next(worker(memory_bytes=9 * GIB, free_bytes=GIB // 2), LONG_S) is None
        assert store.get("a").waits_for == "1.0 GiB of memory; host-w has 512 MiB left"

    def crowded(self, opened, patience_s, need):
        """A store in which small jobs run, and a job that does not fit beside them is due."""
        store = opened(patience_s=patience_s)
        by = worker(memory_bytes=2 * GIB)
        store.create(Job(id="small", goal="g"), Order(memory_bytes=GIB))
        assert store.claim_next(by, LONG_S).job_id == "small"
        store.create(Job(id="large", goal="g"), Order(memory_bytes=need, priority=9))
        store.create(Job(id="small2", goal="g"), Order(memory_bytes=GIB))
        time.sleep(2 * TICK_S)
        return store, by

    def test_room_is_made_for_a_job_that_has_been_passed_over_for_long(self, opened):
        store, by = self.crowded(opened, TICK_S, 2 * GIB)
        assert store.claim_next(by, LONG_S) is None
        store.release("small", generation=store.get("small").generation)
        assert store.claim_next(by, LONG_S).job_id == "large"

    def test_until_then_smaller_ones_go_before_it(self, opened):
        store, by = self.crowded(opened, LONG_S, 2 * GIB)
        assert store.claim_next(by, LONG_S).job_id == "small2"

    def test_no_room_is_made_for_a_job_that_can_never_fit(self, opened):
        store, by = self.crowded(opened, TICK_S, 3 * GIB)
        assert store.claim_next(by, LONG_S).job_id == "small2"

    def test_a_claim_says_when_it_was_made(self, store, claim):
        (attempt,) = store.attempts("one")
        assert claim.claimed_at == pytest.approx(attempt.started_at, abs=0.05)

    def test_what_another_engine_has_given_is_not_counted(self, store):
        for name in ("a", "b"):
            store.create(Job(id=name, goal="g"), Order(memory_bytes=GIB))
        assert store.claim_next(worker("x", "e1", memory_bytes=GIB), LONG_S).job_id == "a"
        assert store.claim_next(worker("y", "e1", memory_bytes=GIB), LONG_S) is None
        assert store.claim_next(worker("z", "e2", memory_bytes=GIB), LONG_S).job_id == "b"

    def test_what_a_lost_job_had_reserved_is_free_again(self, store):
        store.create(Job(id="a", goal="g"), Order(memory_bytes=GIB))
        store.create(Job(id="b", goal="g"), Order(memory_bytes=GIB, priority=-1))
        by = worker(memory_bytes=GIB)
        claim = store.claim_next(by, LONG_S)
        assert claim.job_id == "a"
        assert store.claim_next(by, LONG_S) is None
        store.renew("a", generation=claim.generation, lease_s=0.0, figures={})
        assert store.claim_next(by, LONG_S).job_id == "a"

    def test_what_does_not_fit_does_not_hold_up_what_does(self, store):
        store.create(Job(id="large", goal="g"), Order(memory_bytes=8 * GIB))
        store.create(Job(id="small", goal="g"), Order(memory_bytes=GIB))
        by = worker(memory_bytes=2 * GIB)
        assert self.taken(store, by=by) == ["small"]
        said = "8.0 GiB of memory; all that host-w may give is 2.0 GiB"
        assert store.get("large").waits_for == said

    def test_one_that_fits_is_found_behind_many_that_do_not(self, store):
        for number in range(250):
            store.create(Job(id=f"large{number}", goal="g"), Order(memory_bytes=8 * GIB))
        store.create(Job(id="small", goal="g"), Order(memory_bytes=GIB, cpus=1.0))
        store.create(Job(id="next", goal="g"), Order(memory_bytes=GIB, cpus=2.0))
        assert self.taken(store, by=worker(memory_bytes=2 * GIB, cpus=2.0)) == ["small"]
        assert store.get("large0").waits_for

    def test_a_job_that_is_taken_waits_for_nothing(self, store):
        store.create(Job(id="a", goal="g"), Order(memory_bytes=8 * GIB))
        assert store.claim_next(worker(memory_bytes=GIB), LONG_S) is None
        assert store.get("a").waits_for
        assert store.claim_next(worker(memory_bytes=9 * GIB), LONG_S) is not None
        assert store.get("a").waits_for == ""

    def test_two_workers_do_not_both_take_the_last_room(self, store):
        for number in range(8):
            store.create(Job(id=f"j{number}", goal="g"), Order(memory_bytes=GIB))

        def take(number):
            return store.claim_next(worker(f"w{number}", memory_bytes=3 * GIB), LONG_S)

        taken = [claim.job_id for claim in at_once(8, take) if claim]
        assert len(taken) == len(set(taken)) == 3

    # ---- where it was

    def handed_over(self, store, engine="e1"):
        """A job that has a sandbox on an engine and is given back; returns since when."""
        store.create(Job(id="one", goal="g"))
        claim = store.claim_next(worker("x", engine), LONG_S)
        self.append(store, SandboxOpened(place="p", engine=engine))
        time.sleep(SHORT_S)  # the last event was long ago
        started = time.monotonic()
        assert store.release("one", generation=claim.generation) is Status.QUEUED
        return started

    def test_a_job_is_left_to_the_engine_that_has_its_sandbox(self, opened):
        store = opened(preferred_s=LONG_S)
        self.handed_over(store)
        store.create(Job(id="two", goal="g"))
        assert store.claim_next(worker("y", "e2"), LONG_S).job_id == "two"
        assert store.claim_next(worker("y", "e2"), LONG_S) is None
        assert store.claim_next(worker("x2", "e1"), LONG_S).job_id == "one"

    def test_it_is_left_to_it_from_the_moment_when_it_was_given_back(self, opened):
        store = opened(preferred_s=SHORT_S)
        started = self.handed_over(store)
        eventually(lambda: store.claim_next(worker("y", "e2"), LONG_S))
        assert time.monotonic() - started >= SHORT_S - TICK_S
        assert store.get("one").engine == "e2"

    def test_it_is_left_to_it_from_the_moment_when_its_lease_was_over(self, opened):
        store = opened(preferred_s=SHORT_S)
        store.create(Job(id="one", goal="g"))
        started = time.monotonic()
        store.claim_next(worker("x", "e1"), 2 * SHORT_S)
        self.append(store, SandboxOpened(place="p", engine="e1"))
        claim, _ = eventually(lambda: store.claim_next(worker("y", "e2"), LONG_S))
        assert claim.losses == 1
        assert time.monotonic() - started >= 3 * SHORT_S - TICK_S

    def test_a_job_that_had_no_sandbox_is_anybodys(self, store, job):
        claim = store.claim_next(worker("x", "e1"), LONG_S)
        store.release("one", generation=claim.generation)
        assert store.claim_next(worker("y", "e2"), LONG_S) is not None

    # ---- cancelling

    def test_a_cancelled_job_is_known_to_be(self, store, job):
        assert not store.is_cancel_requested("one")
        store.request_cancel("one")
        store.request_cancel("one")
        assert store.is_cancel_requested("one")
        assert store.get("one").is_cancelling

    def test_whoever_holds_it_is_told_and_may_go_on_writing(self, store, claim):
        store.request_cancel("one")
        assert store.is_cancel_requested("one")
        self.append(store, Remarked(text="x"))

    def test_a_job_that_is_over_is_not_cancelled(self, store, job):
        self.end(store, "one")
        store.request_cancel("one")
        assert not store.is_cancel_requested("one")

    # ---- attempts

    def test_a_job_that_nobody_took_has_no_attempts(self, store, job):
        assert store.attempts("one") == ()

    def test_what_became_of_every_attempt_is_kept(self, store, job):
        store.claim("one", "lost", SHORT_S)
        lost = store.get("one").generation
        store.renew("one", generation=lost, lease_s=SHORT_S, figures={"rss_bytes": 1})
        store.renew("one", generation=lost, lease_s=SHORT_S, figures={"rss_bytes": 2**40})
        time.sleep(SHORT_S + 0.1)
        drained = store.claim("one", "drained", LONG_S)
        store.release("one", generation=drained.generation)
        last = store.claim("one", "last", LONG_S)
        found = store.attempts("one")
        assert [(a.worker, a.ending) for a in found] == [
            ("lost", "lost"),
            ("drained", "released"),
            ("last", ""),
        ]
        assert found[0].figures == {"rss_bytes": 2**40}
        assert found[0].started_at < found[0].ended_at < found[1].started_at
        assert found[1].started_at <= found[1].ended_at <= found[2].started_at
        assert found[2].ended_at is None
        assert [a.generation for a in found] == [lost, drained.generation, last.generation]
        self.append(store, ANSWERED)
        store.release("one", generation=last.generation)
        assert store.attempts("one")[2].ending == "finished"

    # ---- tending

    def test_it_counts_what_waits_and_what_is_held(self, store):
        assert (store.counts().claimable, store.counts().held) == (0, 0)
        assert store.counts().lapses_in_s is None
        for name in ("queued", "held", "over", "lost", "huge"):
            store.create(Job(id=name, goal="g"), Order(memory_bytes=GIB if name == "huge" else 0))
        store.claim("held", "w", LONG_S)
        store.claim("lost", "w", 0.0)
        self.end(store, "over")
        assert (store.counts().claimable, store.counts().held) == (3, 1)
        assert LONG_S - 10 < store.counts().lapses_in_s <= LONG_S
        store.create(Job(id="brief", goal="g"))
        store.claim("brief", "w", 5.0)
        assert 0 < store.counts().lapses_in_s <= 5

    def test_it_says_how_jobs_stand(self, store):
        for name in ("queued", "held", "over", "lost", "unasked"):
            store.create(Job(id=name, goal="g"))
        claim = store.claim("held", "w", LONG_S)
        opened = SandboxOpened(place="p1", engine="e1")
        store.append("held", opened, generation=claim.generation)
        store.claim("lost", "w", 0.0)
        self.end(store, "over")
        found = store.standing(["queued", "held", "over", "lost", "unknown", "nul\0"])
        assert dict(found) == {
            "queued": Standing(is_over=False, is_held=False),
            "held": Standing(is_over=False, is_held=True, generation=1, place="p1", engine="e1"),
            "over": Standing(is_over=True, is_held=False, generation=1),
            "lost": Standing(is_over=False, is_held=False, generation=1),
        }
        assert dict(store.standing([])) == {}
        assert dict(store.tenants(["p1", "p2", "nul\0"])) == {"p1": "held"}
        assert dict(store.tenants([])) == {}

    def test_nobody_lives_where_a_job_has_ended_or_has_moved_out(self, store, job):
        claim = store.claim("one", "w", LONG_S)
        for place in ("p1", "p2"):
            opened = SandboxOpened(place=place, engine="e1")
            store.append("one", opened, generation=claim.generation)
        many = [f"q{i}" for i in range(1500)]
        assert dict(store.tenants(["p1", *many, "p2"])) == {"p2": "one"}
        self.append(store, ANSWERED)
        store.release("one", generation=claim.generation)
        assert dict(store.tenants(["p1", "p2"])) == {}

    def test_it_says_how_very_many_jobs_stand(self, store, job):
        names = [f"n{i}" for i in range(1500)]
        assert set(store.standing([*names, "one"])) == {"one"}

    def test_it_knows_the_workers_that_were_seen(self, store):
        seen = worker("a", slots=3, memory_bytes=GIB, cpus=1.5, free_bytes=GIB - 1)
        store.see(seen)
        store.see(worker("b"))
        by_name = {found.name: found for found in store.workers()}
        assert set(by_name) == {"a", "b"}
        assert abs(by_name["a"].seen_at - time.time()) < 5
        assert by_name["a"].model_copy(update={"seen_at": 0.0}) == seen

    def test_a_worker_is_seen_anew(self, store):
        store.see(worker("a", free_bytes=1))
        first = store.workers()[0].seen_at
        time.sleep(0.02)
        store.see(worker("a", free_bytes=2))
        (again,) = store.workers()
        assert again.seen_at > first
        assert again.free_bytes == 2

    def test_a_worker_that_was_not_seen_lately_is_left_out(self, store):
        store.see(worker("old"))
        time.sleep(SHORT_S)
        store.see(worker("new"))
        old, new = sorted(found.seen_at for found in store.workers())
        lately_s = time.time() - (old + new) / 2
        assert [found.name for found in store.workers(within_s=lately_s)] == ["new"]

    # ---- telling pipelines

    def test_an_end_is_told_until_it_was_taken(self, store):
        deliver = {"task": "notify", "args": ["x", 1]}
        for name in ("one", "two"):
            store.create(Job(id=name, goal="g"), Order(deliver=deliver))
        assert store.undelivered() == ()
        self.end(store, "one")
        assert store.undelivered() == (("one", deliver),)
        assert store.undelivered() == (("one", deliver),)
        store.delivered("one")
        store.delivered("one")
        assert store.undelivered() == ()
        self.end(store, "two")
        assert store.undelivered() == (("two", deliver),)

    def test_an_end_is_told_again_only_after_a_while(self, store):
        store.create(Job(id="one", goal="g"), Order(deliver={"x": 1}))
        since = time.monotonic()
        self.end(store, "one")
        for _ in range(2):
            _, asked_at = eventually(lambda: store.undelivered(SHORT_S))
            assert time.monotonic() - since >= SHORT_S - TICK_S
            since = asked_at

    def test_an_end_that_nobody_waits_for_is_not_told(self, store, job):
        self.end(store, "one")
        assert store.undelivered() == ()

    def test_an_end_is_told_to_one_of_many_that_ask_at_once(self, store):
        store.create(Job(id="one", goal="g"), Order(deliver={"x": 1}))
        self.end(store, "one")
        time.sleep(2 * SHORT_S)
        told = at_once(4, lambda _: len(store.undelivered(2 * SHORT_S)))
        assert sorted(told) == [0, 0, 0, 1]
