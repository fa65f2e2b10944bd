"""A whole agent on fakes: what the model says and what calls do is given, the rest is real."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from tests.worker.served import make_chat
from worker import assembly
from worker.builtin import Workplace
from worker.history import History
from worker.hooks import Observer, Run
from worker.messages import Job, MessageAdded
from worker.settings import Settings
from worker.store.memory import MemoryStore
from worker.testing import FakeSandbox, ScriptedModel, echo


class Watching(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.events = []
        self.asked = 0

    def on_event(self, event, history):
        self.events.append(event)

    def on_asking(self, history):
        self.asked += 1

    def of(self, kind):
        return [event for event in self.events if event.kind == kind]


@dataclass
class Bench:
    """One job and its agent. `drive` may be called again, as after a crash."""

    model: ScriptedModel
    sandbox: FakeSandbox
    store: MemoryStore
    settings: Settings
    job: Job
    watching: Watching = field(default_factory=Watching)
    clock: object = None
    is_cancelled: object = lambda: False

    def run(self):
        claim = self.store.claim(self.job.id)
        history = History(*self.store.load(self.job.id))
        run = Run(history, self.store, claim.generation, self.watching, self.is_cancelled)
        if self.clock:
            run.clock = self.clock
        for message in assembly.opening(self.job.goal)[len(history.opening) :]:
            run.append(MessageAdded(message=message))
        return run

    @property
    def place(self):
        place = Workplace(lambda: self.sandbox)
        place.open()
        return place

    def drive(self):
        loop = assembly.build(self.settings, self.model, self.place)
        return loop.drive(self.run())

    @property
    def history(self):
        return History(*self.store.load(self.job.id))

    @property
    def results(self):
        return [result for _, result in self.history.results()]

    @property
    def notices(self):
        return [n for turn in self.history.turns for n in turn.notices]


@pytest.fixture
def bench():
    """Make a job with a scripted model: `bench(say(…), say(…), respond=…, max_steps=…)`."""
    numbers = itertools.count(1)

    def make(
        *messages,
        respond=echo,
        repeat_last=False,
        store=None,
        notes=(),
        goal="Find out.",
        **settings,
    ):
        settings = Settings(**settings)
        job = Job(id=f"job-{next(numbers)}", goal=goal, budget=settings.budget())
        store = store or MemoryStore()
        store.create(job)
        model = ScriptedModel(messages, repeat_last=repeat_last, summaries=notes)
        return Bench(model, FakeSandbox(respond), store, settings, job)

    return make


@pytest.fixture
def chat(httpserver):
    """Make models behind the test's HTTP server, or at `base_url`."""
    made = []

    def make(**options):
        made.append(make_chat(options.pop("base_url", httpserver.url_for("/v1")), **options))
        return made[-1]

    yield make
    for model in made:
        model.close()
