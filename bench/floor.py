"""The physical floor: a bare fork of this interpreter, and a pipe to one that runs already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from bench.serve import serve

# Evaluates each line that it is sent.
ANSWERING = """\
import sys
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
"""


def round_trip(
    send: Callable[[bytes], object], receive: Callable[[int], bytes], head: int = 0
) -> bytes:
    """Have `1 + 1` evaluated at the other end; `head` bytes come before what is answered."""
    send(b"1 + 1\n")
    answer = receive(4096)
    while not answer.endswith(b"\n"):
        answer += receive(4096)
    return answer[head:].strip()


class Floor:
    """Opening is a fork and its end; a call is a round trip."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-c", ANSWERING]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def fork(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def call(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        write, read = self._child.stdin.fileno(), self._child.stdout.fileno()
        assert round_trip(lambda data: os.write(write, data), lambda n: os.read(read, n)) == b"2"


if __name__ == "__main__":
    serve(Floor(), "caisson")
