"""What every store must do. A store's own test file subclasses `StoreContract`."""

from __future__ import annotations

import threading

import pytest

from worker.errors import JobExists, JobUnknown, LeaseLost
from worker.messages import Job, Remarked
from worker.store.base import Store


class StoreContract:
    """Needs a fixture `store` that gives an empty store."""

    @pytest.fixture
    def job(self, store):
        job = Job(id="one", goal="g")
        store.create(job)
        return job

    def test_it_fulfils_the_protocol(self, store):
        assert isinstance(store, Store)

    def test_a_new_job_is_kept_as_it_was_given(self, store, job):
        assert store.load("one") == (job, ())

    def test_a_second_job_of_the_same_id_is_refused(self, store, job):
        with pytest.raises(JobExists):
            store.create(job)

    @pytest.mark.parametrize("ask", ["load", "claim"])
    def test_an_unknown_job_is_an_error(self, store, ask):
        with pytest.raises(JobUnknown):
            getattr(store, ask)("nothing")

    def test_an_unknown_job_takes_no_events(self, store):
        with pytest.raises(JobUnknown):
            store.append("nothing", Remarked(text="x"), generation=1)

    def test_events_are_kept_in_their_order(self, store, job):
        generation = store.claim("one")
        events = tuple(Remarked(text=str(i), at=float(i)) for i in range(50))
        for event in events:
            store.append("one", event, generation=generation)
        assert store.load("one")[1] == events

    def test_every_claim_has_a_higher_generation(self, store, job):
        claims = [store.claim("one") for _ in range(3)]
        assert claims == sorted(set(claims))
        assert claims[0] >= 1

    def test_an_older_generation_writes_nothing(self, store, job):
        old = store.claim("one")
        new = store.claim("one")
        with pytest.raises(LeaseLost):
            store.append("one", Remarked(text="old"), generation=old)
        store.append("one", Remarked(text="new"), generation=new)
        assert [event.text for event in store.load("one")[1]] == ["new"]

    def test_claims_from_many_threads_are_all_different(self, store, job):
        claims = []
        threads = [
            threading.Thread(target=lambda: claims.append(store.claim("one"))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(claims)) == 8
