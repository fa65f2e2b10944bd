"""The door of the command line, which hears Ctrl-C from its first line to its last.

Everything else is imported behind it: an import takes long enough to be interrupted, and then
there is nothing yet that would have to be undone.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_CANCELLED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the command line and exit with its code."""
    _leave_on_signals()
    try:
        from worker.cli_app import run_command

        code = run_command(sys.argv[1:])
        _leave_on_signals()  # the interpreter takes a moment to end, too
    except KeyboardInterrupt:  # before there was a command, or after its end
        _leave()
    sys.exit(code)


def _leave_on_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, _leave)


def _leave(number: int = 0, frame: FrameType | None = None) -> NoReturn:
    del number, frame
    try:
        os.write(2, b"caisson: cancelled\n")
    finally:  # also where nobody can be told
        os._exit(_CANCELLED)
