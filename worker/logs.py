"""How a worker's processes log: a line each, for people or for programs, on stdout."""

from __future__ import annotations

import json
import logging
import sys
import time

from celery import signals

_OWN = ("worker", "sandbox")


class Lines(logging.Formatter):
    """One line a message, whatever a library writes; the time is UTC."""

    converter = staticmethod(time.gmtime)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        record.message = " ".join(filter(None, record.message.splitlines()))
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def _leave_alone(**_: object) -> None:
    """Celery sets up no logging of its own where somebody is connected to that signal."""


def log_to_stdout(*, as_json: bool) -> None:
    """Log our own doings from INFO on, and of everything else what went wrong."""
    signals.setup_logging.connect(_leave_alone)
    lines = logging.StreamHandler(sys.stdout)
    text = Lines("%(asctime)sZ %(message)s", "%Y-%m-%d %H:%M:%S")
    lines.setFormatter(JsonLines() if as_json else text)
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.WARNING)
    for name in _OWN:
        logging.getLogger(name).setLevel(logging.INFO)
    # Celery warns of root, and at each reconnection of what its next major version will do.
    logging.captureWarnings(capture=True)
    logging.getLogger("py.warnings").setLevel(logging.ERROR)
