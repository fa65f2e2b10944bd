"""Other processes that use a store: `python -m tests.worker.store_process WHAT URL …`.

Each prints "ready" when it has opened the store, and goes on when it is given a line.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from worker.errors import LeaseLost
from worker.messages import Job, Remarked
from worker.store.base import WorkerSeen
from worker.store.database import open_store


def say(*words):
    print(*words, flush=True)  # noqa: T201 - what it is there for


def opened(url):
    """Open a store at the same moment as others do."""
    say("ready")
    sys.stdin.readline()
    store = open_store(url)
    say(store.identity)
    store.close()


def claim_all(url, name):
    """Take jobs until there are none; prints their ids."""
    store = open_store(url)
    say("ready")
    sys.stdin.readline()
    worker = WorkerSeen(name=name, engine=name)
    for claim in iter(lambda: store.claim_next(worker, 60.0), None):
        say(claim.job_id, claim.generation)
        time.sleep(0.001)  # to work on it, which gives the others a turn
    store.close()


def append_for_ever(url, job_id):
    """Prints how many events were stored, after each."""
    store = open_store(url)
    generation = store.claim(job_id, "w", 60.0).generation
    say("ready")
    sys.stdin.readline()
    number = 0
    while True:
        number += 1
        store.append(job_id, Remarked(text=f"{number} " * 2000), generation=generation)
        say(number)


def append_late(url, job_id):
    """Append an event when it is told to, whoever has the job then."""
    store = open_store(url)
    generation = store.claim(job_id, "late", 0.2).generation
    say("ready")
    sys.stdin.readline()
    for write in (
        lambda: store.append(job_id, Remarked(text="late"), generation=generation),
        lambda: store.renew(job_id, generation=generation, lease_s=60.0, figures={}),
        lambda: store.release(job_id, generation=generation),
    ):
        try:
            write()
            say("written")
        except LeaseLost:
            say("lost")
    store.close()


def fork(url, count):
    """Use one store in this process and in children that are forked while threads use it."""
    store = open_store(url)
    store.create(Job(id="parent", goal="g"))
    generation = store.claim("parent", "w", 60.0).generation
    busy = threading.Event()

    def work():
        while not busy.is_set():
            store.append("parent", Remarked(text="x"), generation=generation)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = [_child(store, f"child{number}") for number in range(int(count))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    busy.set()
    for thread in threads:
        thread.join()
    store.append("parent", Remarked(text="last"), generation=generation)
    events = store.events("parent")
    say(codes, events[-1].text, store.get("parent").events == len(events))
    store.close()


def _open_databases():
    open_files = (link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return [path for path in open_files if "caisson.db" in path.name]


def _child(store, name):
    pid = os.fork()
    if pid:
        return pid
    try:
        if _open_databases():  # SQLite would take the parent's locks for its own
            os._exit(3)
        store.create(Job(id=name, goal="g"))
        claim = store.claim(name, name, 60.0)
        for number in range(20):
            store.append(name, Remarked(text=str(number)), generation=claim.generation)
        store.close()
        os._exit(0 if len(store.events(name)) == 20 else 1)
    finally:
        os._exit(2)


WHAT = {f.__name__: f for f in (opened, claim_all, append_for_ever, append_late, fork)}

if __name__ == "__main__":
    WHAT[sys.argv[1]](*sys.argv[2:])
