import subprocess
import sys
from pathlib import Path

import pytest

from bench import calls
from bench.timing import Times
from sandbox.engine import Engine

ROOT = Path(__file__).parents[2]
ROWS = (
    *(calls.CREATE_START, calls.PLAIN_START, calls.OPEN, calls.CLOSE),
    *(calls.CALL_X, calls.CALL_X1, calls.SHELL, calls.EXEC, calls.RUN),
)


@pytest.mark.engine
def test_one_command_prints_every_row_ratio_and_target_and_leaves_nothing():
    command = [sys.executable, "-m", "bench.calls", "--rounds", "1", "--calls", "3"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for row in ROWS:
        counts = [line.split()[-3:] for line in lines if line.startswith(f"{row}  ")]
        assert len(counts) == 1, row
        count, median, p95 = map(float, counts[0])
        assert count >= 1
        assert 0 < median <= p95 * 1.001
    for row, others in calls.COMPARED.items():
        for other in others:
            assert any(line.startswith(f"{other} / {row} = ") for line in lines)
    assert sum("target" in line for line in lines) == 2
    engine = Engine()
    left = [found["Names"] for found in engine.labelled("caisson.job")]
    engine.close()
    assert not [name for name in left if "bench" in str(name)]


def test_medians_and_percentiles_are_of_what_was_measured():
    times = Times()
    times._taken["x"] = [float(number) for number in range(101)]
    assert times.median("x") == 50
    assert times.p95("x") == 95
    with times.of("y"):
        pass
    assert 0 <= times.median("y") == times.p95("y") < 1


def test_a_missed_target_is_told():
    times = Times()
    times._taken = {calls.CALL_X: [0.001], calls.CALL_X1: [0.003]} | {
        calls.OPEN: [1.4],
        calls.CREATE_START: [1.0],
    }
    assert [target.is_met for target in calls.targets_of(times)] == [False, False]
    times._taken |= {calls.CALL_X1: [0.0015], calls.OPEN: [1.2]}
    assert [target.is_met for target in calls.targets_of(times)] == [True, True]


def test_an_engine_that_is_away_is_said_in_one_line(tmp_path):
    command = [sys.executable, "-m", "bench.calls", "--rounds", "1", "--calls", "1"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 5
    assert done.stderr.startswith("bench: ")
    assert "Traceback" not in done.stderr
