"""An application of somebody else's: its tasks stand before and after ours in pipelines."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

BROKER, NOTES = "PIPELINE_BROKER", "PIPELINE_NOTES"


def application(url, results=None):
    """The application as it is configured where its tasks are sent from."""
    app = Celery("pipeline", broker=url, backend=results or url, set_as_current=False)
    app.conf.broker_connection_retry_on_startup = True
    app.conf.result_backend_transport_options = {"visibility_timeout": 600}
    for task in (extract, notify, gather, complain):
        app.task(task, name=f"pipeline.{task.__name__}")
    return app


def note(line):
    """Leave a line for the test."""
    with Path(os.environ[NOTES]).open("a", encoding="utf-8") as notes:
        notes.write(line + "\n")


def extract():
    note("extract")
    return {"rows": [1, 2, 3]}


def notify(result):
    note(f"notify {result['status']} {result['answer']}")
    return result["answer"]


def gather(results):
    note("gather")
    return [result["answer"] for result in results]


def complain(task_id):
    note(f"complain {task_id}")


if BROKER in os.environ:  # its worker
    app = application(os.environ[BROKER])
