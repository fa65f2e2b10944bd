import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import calls, report, table
from bench.contest import Contestant, Failed
from bench.parts import COLD, ENGINE, FLOOR, PARTS, PIPED, WARM, growth
from bench.run import main
from bench.stage import ROWS, Results, Stage
from bench.targets import targets_of
from bench.timing import Times
from sandbox.engine import Engine

ROOT = Path(__file__).parents[2]
CALL_ROWS = (
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
    for row in CALL_ROWS:
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


@pytest.mark.engine
@pytest.mark.servers("redis", "postgres")
@pytest.mark.timeout(400)
def test_a_quick_run_measures_every_part_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "bench.run", "--quick", "--rounds", "1"]
    process = subprocess.Popen(
        [*command, "--json", str(tmp_path / "bench.json")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    printed, told = process.communicate(timeout=380)
    assert process.returncode == 0, told
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["missing"] == {}
    measured = {(line["row"], line["who"]) for line in found["rows"]}
    assert {row for row, _ in measured} == ROWS.keys() - {"slope"}  # which takes many jobs
    assert {who for row, who in measured if row == "call"} == {FLOOR, PIPED, ENGINE, COLD, WARM}
    for line in found["rows"]:
        assert 0 < line["least"] <= line["median"] <= line["p95"] * 1.001, line
        assert line["title"] in printed
    assert len(found["targets"]) >= 10
    assert told.count("round 1 of 1") >= 3
    assert not containers_of(process.pid)


@pytest.mark.engine
def test_an_interrupted_run_says_nothing_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "bench.run", "--only", "sandboxes", "--no-peers"]
    process = subprocess.Popen(
        [*command, "--json", str(tmp_path / "bench.json")],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process.stderr:
        process.stderr.readline()  # it is at it
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.wait(60) == 130
    assert "Traceback" not in rest
    assert not (tmp_path / "bench.json").exists()
    assert not containers_of(process.pid)


def containers_of(pid):
    engine = Engine()
    found = engine.labelled(f"caisson.job=bench-{pid}")
    engine.close()
    return found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--only", "nothing"), "invalid choice: 'nothing'"),
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--rounds", "many"), "invalid int value: 'many'"),
    ],
)
def test_wrong_options_are_told_before_anything_is_done(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ((), "peers"),
        (("--only", "steps"), "peers"),
        (("--only", "jobs"), "nobody else"),
        (("--quick",), "nobody else"),
        (("--no-peers",), "nobody else"),
    ],
)
def test_peers_are_needed_only_where_they_take_part(options, needs, capsys):
    assert main(["--needs", *options]) == 0
    assert capsys.readouterr().out.strip() == needs


def test_the_help_names_every_part(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"{name}:" in printed for name in PARTS)


@pytest.fixture
def stage():
    made = Stage(1, is_quick=True, has_peers=False)
    yield made
    made.close()


CONTESTANT = """\
import os, sys
from bench.serve import serve

class Here:
    def noise(self): print("hello"); os.write(1, b"hello")
    def nap(self): return [0.5, 0.25]
    def many(self): return {"a": [1.0], "b": [2.0]}
    def fail(self): raise ValueError("no\\nsuch thing")
    def die(self): sys.exit("that was it")
    def open(self): pass
    def close(self): open("closed", "w").close()
    def end(self): open("ended", "w").close()

serve(Here(), "caisson")
"""


@pytest.fixture
def contestant(tmp_path, monkeypatch):
    (tmp_path / "somebody.py").write_text(CONTESTANT)
    monkeypatch.setattr("bench.contest.ROOT", tmp_path)
    environment = {"PYTHONPATH": f"{ROOT}"}
    made = Contestant("somebody", "somebody", environment=environment)
    yield made
    made.close()


def test_a_contestant_is_timed_or_measures_by_itself(contestant):
    taken = contestant.ask("noise", times=5)["noise"]
    assert len(taken) == 5
    assert all(0 < each < 1 for each in taken)
    assert contestant.ask("nap", times=2) == {"nap": [0.5, 0.25, 0.5, 0.25]}
    assert contestant.ask("many") == {"a": [1.0], "b": [2.0]}
    assert len(contestant.ask("nap", times=100, within_s=0.0)["nap"]) == 2
    assert contestant.version.startswith("caisson ")


def test_a_contestant_that_fails_says_why_in_a_line(contestant):
    with pytest.raises(Failed, match=r"^fail: ValueError: no such thing$"):
        contestant.ask("fail")
    with pytest.raises(Failed, match=r"^that was it$"):
        contestant.ask("die")


def test_a_contestant_closes_what_is_open_when_it_is_left(contestant, tmp_path):
    contestant.ask("open")
    contestant.close()
    assert (tmp_path / "closed").exists()
    assert (tmp_path / "ended").exists()


def test_a_contestant_that_cannot_come_is_shown_with_the_reason(stage, capsys):
    assert stage.enter("nobody", "bench.nobody") == []
    assert "No module named bench.nobody" in stage.results.missing["nobody"]
    assert "nobody is out: " in capsys.readouterr().err


def test_one_that_fails_is_out_and_the_run_goes_on(stage):
    (field,) = stage.enter(FLOOR, "bench.floor")
    assert stage.ask(field, "call", times=3)["call"]
    assert stage.ask(field, "fly") == {}
    assert "fly: AttributeError" in stage.results.missing[FLOOR]
    assert stage.ask(field, "call") == {}


def results(**rows):
    """Medians by row and contestant, in the unit of the row."""
    made = Results()
    for row, values in rows.items():
        for who, value in values.items():
            made.add(row, who, [value / ROWS[row].scale])
    return made


def test_targets_are_judged_by_medians_and_what_was_not_measured_is_left_out():
    found = results(
        open={WARM: 9.0, COLD: 300.0, ENGINE: 200.0, "llm-sandbox": 550.0, "smolagents": 3000.0},
        call={WARM: 1.5, "smolagents": 75.0},
    )
    judged = {target.name: (round(target.value, 3), target.is_met) for target in targets_of(found)}
    assert judged == {
        "open, from the pool": (9.0, True),
        "open, from the pool, against the fastest peer that starts one": (61.111, True),
        "open, cold, against create and start": (1.5, False),
        "trivial call": (1.5, False),
        "trivial call, against smolagents": (50.0, False),
    }


def test_growth_is_what_each_job_adds_once_caches_are_full():
    memory = [1000.0 + (500 * done if done < 20 else 10_000 + 3 * done) for done in range(100)]
    assert growth([float(done) for done in range(100)], memory) == pytest.approx(3.0)


def sample():
    found = results(
        open={WARM: 5.0, "llm-sandbox": 500.0},
        alone={"Caisson, memory": 0.25},
        call={FLOOR: 0.0123},
    )
    machine = {"processors": 2, "processor": "some", "memory_gib": 8, "kernel": "6.1"}
    machine |= {"engine": "20.10", "python": "3.11", "load_before": 0.1}
    targets = [{**target._asdict(), "is_met": target.is_met} for target in targets_of(found)]
    return {
        "date": "2026-01-01 00:00 UTC",
        "rounds": 1,
        "machine": machine,
        "versions": {"a": "x 1"},
        "rows": found.table(),
        "missing": {"autogen-ext": "no"},
        "targets": targets,
    }


def test_a_report_compares_with_ours_and_says_what_is_missing():
    lines = table.text(sample()).splitlines()
    (pooled,) = (line.split() for line in lines if line.startswith("  Caisson, from its pool"))
    (peer,) = (line.split() for line in lines if line.startswith("  llm-sandbox"))
    assert (pooled[-1], peer[-1]) == ("1.00", "100")
    assert any("0.0123" in line for line in lines)
    assert "  autogen-ext: no" in lines
    assert any(line.startswith("  open, from the pool ") and line.endswith("met") for line in lines)


def test_a_page_takes_the_figures_of_another_run():
    page = f"# Title\n\n{report.BEGIN}old\n{report.END}\nrest\n"
    once = report.placed(page, sample())
    assert "old" not in once
    assert "| llm-sandbox | 1 | 500 | 500 | 100 |" in once
    assert once.endswith(f"{report.END}\nrest\n")
    assert report.placed(once, sample()) == once


def test_the_page_shows_the_run_that_is_kept():
    page = report.PAGE.read_text()
    assert report.placed(page, json.loads(report.KEPT.read_text())) == page
    assert report.PICTURE.stat().st_size > 10_000
