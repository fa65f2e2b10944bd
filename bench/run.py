"""Measure Caisson beside others, in one run, on one engine and one image.

Prints medians, 95th percentiles and ratios, says which targets are met, writes all of it as JSON
and draws it (a PNG beside the JSON). Contestants are processes of their own and take turns round
by round. The peers are in an environment of their own, build/peers, and use the image
caisson-peers, which is the sandbox image with what they want besides.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import docker
import psutil

from bench import table
from bench.contest import ROOT
from bench.engine import Raw
from bench.parts import PARTS
from bench.setting import IMAGE, PEERS_IMAGE, RUN
from bench.stage import PEERS, Stage
from bench.stepping import ENDPOINT
from bench.targets import targets_of
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.types import SandboxSpec

INTERRUPTED, UNAVAILABLE, MISSED = 130, 5, 1


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        epilog="parts: " + "; ".join(f"{name}: {part.about}" for name, part in PARTS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="a minute: few rounds, no peers")
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help="this part; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help="default: 10, or 2 with --quick")
    parser.add_argument("--no-peers", action="store_true", help="measure nobody else")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="FILE")
    parser.add_argument("--image", default=SandboxSpec().image, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--needs", action="store_true", help=argparse.SUPPRESS)  # for scripts/bench
    chosen = parser.parse_args(arguments)
    if chosen.rounds is None:
        chosen.rounds = 2 if chosen.quick else 10
    elif chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    chosen.only = chosen.only or list(PARTS)
    is_contest = bool({"sandboxes", "steps"}.intersection(chosen.only))
    chosen.has_peers = is_contest and not (chosen.quick or chosen.no_peers)
    return chosen


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen parts; returns the report."""
    stage = Stage(chosen.rounds, is_quick=chosen.quick, has_peers=chosen.has_peers)
    signal.signal(signal.SIGINT, stage.interrupt)
    run = f"bench-{os.getpid()}"
    machine = describe_machine()
    with endpoint() as address, swept(stage, run, chosen.image):
        stage.environment = {
            IMAGE: chosen.image,
            PEERS_IMAGE: PEERS,
            RUN: run,
            ENDPOINT: address,
        }
        for name in chosen.only:
            PARTS[name].run(stage)
    targets = [{**t._asdict(), "is_met": t.is_met} for t in targets_of(stage.results)]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": chosen.rounds,
        "machine": machine,
        "versions": stage.results.versions,
        "rows": stage.results.table(),
        "missing": stage.results.missing,
        "targets": targets,
    }


def describe_machine() -> dict[str, Any]:
    with closing(Engine()) as engine:
        version = engine.describe()["ServerVersion"]
    return {
        "processors": psutil.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "engine": version,
        "python": platform.python_version(),
        "load_before": round(psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1), 2),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@contextmanager
def endpoint() -> Iterator[str]:
    """The local chat endpoint; yields its address."""
    command = [sys.executable, "-m", "bench.endpoint"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


@contextmanager
def swept(stage: Stage, run: str, image: str) -> Iterator[None]:
    """Leave no process and no container behind, whatever happens."""
    with closing(Raw(SandboxSpec(image=image, job=run, store=run))) as raw:
        try:
            yield
            stage.close()
        finally:
            stage.close(patience_s=1.0)
            raw.clear()


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options_of(arguments)
    if chosen.needs:
        print("peers" if chosen.has_peers else "nobody else")
        return 0
    report = measure(chosen)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(table.compact(report), encoding="utf-8")
    print(table.markdown(report))
    print(f"\nwritten: {chosen.json}")
    if find_spec("matplotlib"):
        from bench import plot  # noqa: PLC0415 - not everybody has what it draws with

        plot.draw(report, chosen.json.with_suffix(".png"))
        print(f"drawn: {chosen.json.with_suffix('.png')}")
    return MISSED if chosen.check and not all(t["is_met"] for t in report["targets"]) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (SandboxError, docker.errors.DockerException, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
