"""The guest's first word, which every start of a sandbox waits for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox import bundle
from sandbox.bundle import LOADER
from sandbox.errors import SandboxUnavailable
from sandbox.guest import VERSION
from sandbox.protocol import Hello, read
from sandbox.types import SandboxSpec
from tests.sandbox.conftest import DOCKER

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
    greeted = f"g.greet({ {**CONFIG, 'door': '/nowhere'} }); "
    _, loaded = said_by(f"{greeted}print({slow!r} & set(sys.modules))").splitlines()
    assert loaded == b"set()"
    before, _, _ = LOADER.partition("greet(CONFIG)")
    imported = set(re.findall(r"^import (.*)$", before, re.MULTILINE))
    assert imported == {"os, sys", "gc"}


@pytest.mark.parametrize("driver", ["process", DOCKER])
@pytest.mark.parametrize("preload", [(), ("json",)], ids=["a call", "libraries"])
def test_a_guest_that_fails_behind_it_says_why(monkeypatch, job, start, driver, preload):
    broken = LOADER.replace(
        "import main\n", "import main\n    raise ImportError(\"no 'x' é\")\n", 1
    )
    assert broken != LOADER
    monkeypatch.setattr(bundle, "LOADER", broken)
    told = r"the guest has failed: ImportError: no 'x' /xe9"
    with pytest.raises(SandboxUnavailable, match=told):
        start(driver, spec=SandboxSpec(job=job, preload=preload)).python("1")
    if not preload:  # also to a host that speaks only when it has ended
        made = start(driver, spec=SandboxSpec(job=job))
        time.sleep(1)
        with pytest.raises(SandboxUnavailable, match=told):
            made.python("1")
