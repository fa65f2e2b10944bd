"""What a sandbox and a call in it cost, beside what Docker itself takes, in one run.

    python -m bench.calls [--rounds N] [--calls N] [--image IMAGE] [--check]

Prints medians, 95th percentiles and ratios. Cold starts of ours and of Docker's alternate, so
that a busy moment of the machine meets both. With --check the exit code is 1 if a target is
missed: a trivial call in 2 ms, a cold start within 1.3 times Docker's own create and start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import docker

from bench.engine import Raw
from bench.timing import Target, Times
from sandbox.docker import DockerSandbox
from sandbox.errors import SandboxError
from sandbox.types import Outcome, SandboxSpec

CALL_TARGET_S = 0.002
START_TARGET = 1.3

CODE = "x = 1; x + 1"

CREATE_START = "docker create + start, same options"
PLAIN_START = "docker create + start, Docker's defaults"
OPEN = "sandbox: cold start, ready for a call"
CLOSE = "sandbox: close"
CALL_X = "sandbox: call `x`"
CALL_X1 = "sandbox: call `x + 1`"
SHELL = "sandbox: shell `true`"
EXEC = "docker exec of python3"
RUN = "docker run of python3"

# What each row is compared with: how many times as long the other takes.
COMPARED = {
    OPEN: (CREATE_START, PLAIN_START, RUN),
    CALL_X: (EXEC, RUN),
    CALL_X1: (EXEC, RUN),
    SHELL: (EXEC, RUN),
}


def measure_starts(times: Times, raw: Raw, spec: SandboxSpec, rounds: int) -> None:
    for _ in range(rounds):
        with times.of(CREATE_START):
            container = raw.start(raw.hardened())
        raw.remove(container)
        with times.of(OPEN):
            sandbox = DockerSandbox.start(spec)
        with times.of(CLOSE):
            sandbox.close()
        with times.of(PLAIN_START):
            container = raw.start(raw.plain())
        raw.remove(container)


def measure_calls(times: Times, spec: SandboxSpec, calls: int) -> None:
    sandbox = DockerSandbox.start(spec)
    try:
        assert sandbox.python("x = 41").outcome is Outcome.OK
        for _ in range(calls):
            with times.of(CALL_X):
                first = sandbox.python("x")
            with times.of(CALL_X1):
                second = sandbox.python("x + 1")
            assert (first.value, second.value) == ("41", "42")
        for _ in range(max(3, calls // 10)):
            with times.of(SHELL):
                done = sandbox.shell("true")
            assert done.exit_code == 0
    finally:
        sandbox.close()


def measure_docker(times: Times, raw: Raw, spec: SandboxSpec, rounds: int) -> None:
    container = raw.start(raw.hardened())
    for _ in range(rounds):
        with times.of(EXEC):
            raw.run(container, ["python3", "-c", CODE])
    raw.remove(container)
    options = ["--rm", "--network", "none", "--label", f"caisson.job={spec.job}"]
    for _ in range(rounds):
        with times.of(RUN):
            subprocess.run(
                ["docker", "run", *options, spec.image, "python3", "-c", CODE],
                check=True,
                capture_output=True,
            )


def targets_of(times: Times) -> list[Target]:
    slowest_call_s = max(times.median(CALL_X), times.median(CALL_X1))
    return [
        Target("a trivial call, median, ms", CALL_TARGET_S * 1000, slowest_call_s * 1000),
        Target(
            "a cold start, times Docker's own",
            START_TARGET,
            times.median(OPEN) / times.median(CREATE_START),
        ),
    ]


def report(times: Times, targets: list[Target]) -> None:
    print(f"{'':44}{'n':>5}{'median ms':>12}{'p95 ms':>10}")
    for name in times.names():
        median, p95 = times.median(name) * 1000, times.p95(name) * 1000
        print(f"{name:44}{times.count(name):5}{median:12.2f}{p95:10.2f}")
    print()
    for name, others in COMPARED.items():
        for other in others:
            print(f"{other} / {name} = {times.median(other) / times.median(name):.2f}")
    print()
    for target in targets:
        verdict = "holds" if target.is_met else "MISSED"
        print(f"{target.name}: {target.value:.2f}, target {target.limit:g}: {verdict}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.calls")
    parser.add_argument(
        "--rounds", type=int, default=10, help="starts, execs and runs of each kind"
    )
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind")
    parser.add_argument("--image", default=SandboxSpec().image)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    chosen = parser.parse_args(arguments)
    spec = SandboxSpec(image=chosen.image, job=f"bench-{os.getpid()}")
    times, raw = Times(), Raw(spec)
    try:
        measure_starts(times, raw, spec, chosen.rounds)
        measure_calls(times, spec, chosen.calls)
        measure_docker(times, raw, spec, chosen.rounds)
    finally:
        raw.clear()
        raw.close()
    targets = targets_of(times)
    report(times, targets)
    return int(chosen.check and not all(target.is_met for target in targets))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SandboxError, docker.errors.DockerException) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(5)
