"""A fresh shell for each call, in the workspace."""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MAX_ARGUMENT = 100_000  # the kernel refuses one argument of more than 128 KiB


@functools.lru_cache
def program() -> str:
    """The shell of this image; looked for once, by the supervisor."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, "bash")
        if os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def run(command: str) -> NoReturn:
    """Become a shell that runs `command`; the child's part of `processes.spawn`."""
    shell = program()
    name = shell.rpartition("/")[2].encode()
    encoded = command.encode("utf-8", "replace")
    if len(encoded) <= MAX_ARGUMENT:
        os.execv(shell, [name, b"-c", encoded])
    script = os.memfd_create("script", 0)  # inherited, and gone with the last process that has it
    view = memoryview(encoded)
    while view:
        view = view[os.write(script, view) :]
    os.execv(shell, [name, b"/proc/self/fd/%d" % script])
