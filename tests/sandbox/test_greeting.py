"""The guest's first word, which every start of a sandbox waits for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.guest import VERSION
from sandbox.protocol import Hello, read

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"relay_uid": None, "nonce": "n1", "epoch": "e1"}


def said_by(code):
    """What a Python as bare as a container's prints, with the guest's first module loaded."""
    setting = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import sandbox.guest.greeting as g; "
    command = [sys.executable, "-I", "-S", "-c", setting + code]
    return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout


@pytest.mark.parametrize("door", [None, "/nowhere/x.sock"], ids=["no door", "a door that is shut"])
def test_it_is_said_by_the_output_where_there_is_no_door(door):
    hello = read(said_by(f"g.greet({ {**CONFIG, 'door': door} })").strip())
    assert isinstance(hello, Hello)
    assert (hello.nonce, hello.epoch, hello.version) == ("n1", "e1", VERSION)
    assert hello.python == sys.version.split()[0]


def test_it_waits_for_nothing_that_takes_long_to_load():
    slow = {"json", "re", "enum", "collections", "socket", "selectors", "ctypes", "contextlib"}
    assert said_by(f"print({slow!r} & set(sys.modules))") == b"set()\n"
