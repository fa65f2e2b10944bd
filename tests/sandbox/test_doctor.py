"""The doctor passes a sound sandbox and finds each limit that is switched off."""

from __future__ import annotations

import os
import secrets
import subprocess

import pytest

from sandbox.doctor import PROBES, diagnose
from sandbox.hardening import container_options
from sandbox.types import MIB, Limits, SandboxSpec

pytestmark = pytest.mark.engine


def weakened(**changes):
    """Harden as usual, then undo something: a key of the options or of their `HostConfig`."""

    def harden(spec, **arguments):
        options = container_options(spec, **arguments)
        for key, value in changes.items():
            place = options if key in options else options["HostConfig"]
            place[key] = value(place[key]) if callable(value) else value
        return options

    return harden


def failures(job, harden=container_options, **spec):
    found = list(diagnose(SandboxSpec(job=job, **spec), harden=harden))
    return {check.check for check in found if not check.ok}, found


def test_a_sound_sandbox_passes_and_every_limit_is_looked_at(job):
    failed, found = failures(job)
    assert failed == set()
    assert {check.check for check in found} > set(PROBES)
    assert all(check.detail for check in found)


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("user", {"User": "0:0"}),
        ("capabilities", {"CapDrop": [], "User": "0:0"}),
        ("new privileges", {"SecurityOpt": []}),
        ("system calls", {"SecurityOpt": ["no-new-privileges:true", "seccomp=unconfined"]}),
        ("root", {"ReadonlyRootfs": False, "User": "0:0"}),
        ("open files", {"Ulimits": []}),
        ("disk", {"Tmpfs": lambda old: dict.fromkeys(old, "rw,mode=1777")}),
        ("processes", {"PidsLimit": 0}),
        ("cpu", {"NanoCpus": 0}),
        ("memory", {"Memory": 0, "MemorySwap": 0}),
        ("environment", {"Env": lambda old: [*old, "LEAK=" + leaked()]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_limit_that_is_switched_off_is_found(job, check, changes):
    limits = Limits(cpus=0.5, memory_bytes=256 * MIB)
    failed, _ = failures(job, weakened(**changes), limits=limits)
    assert check in failed


def leaked():
    return os.environ.get("DOCTOR_CANARY", "")


def test_a_network_that_is_switched_on_is_found(job):
    name = f"caisson-test-{secrets.token_hex(4)}"
    subprocess.run(["docker", "network", "create", "--internal", name], check=True, timeout=30)
    try:
        failed, found = failures(job, network=name)
    finally:
        subprocess.run(["docker", "network", "rm", name], check=True, timeout=30)
    assert failed == {"network"}
    assert any(name in check.detail for check in found if check.check == "network")


def test_a_missing_image_is_a_failed_check_not_a_crash(job):
    failed, found = failures(job, image="no-such-image:7")
    assert failed == {"sandbox"}
    assert "no-such-image:7" in found[-1].detail
