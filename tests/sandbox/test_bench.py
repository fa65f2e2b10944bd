import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import report, table
from bench.contest import Contestant, Failed
from bench.figures import Figure, p95
from bench.parts import COLD, ENGINE, FLOOR, PARTS, PIPED, WARM, growth
from bench.run import main, swept
from bench.stage import ROWS, Results, Stage
from bench.targets import targets_of
from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.stock import shape_of
from sandbox.types import SandboxSpec

ROOT = Path(__file__).parents[2]


def test_a_figure_is_judged_by_its_limit_and_told_without_one():
    assert p95([float(number) for number in range(101)]) == 95
    assert p95([1.0]) == 1
    judged = [Figure("", 3.0, "", 2.0), Figure("", 3.0, "", 2.0, is_floor=True), Figure("", 3.0)]
    assert [figure.is_met for figure in judged] == [False, True, True]


def test_an_engine_that_is_away_is_said_in_one_line(tmp_path):
    command = [sys.executable, "-m", "bench.run", "--only", "files"]
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


@pytest.mark.engine
def test_a_spare_that_a_contestant_left_is_swept(stage):
    run = f"bench-{os.getpid()}"
    spec = SandboxSpec(job=run, store=run)
    with swept(stage, run, spec.image):
        DockerSandbox.start(shape_of(spec)).detach()
        assert len(containers_of(os.getpid())) == 1
    assert not containers_of(os.getpid())


def containers_of(pid):
    """All of a run: by the store, which spares have too."""
    engine = Engine()
    found = engine.labelled(f"caisson.store=bench-{pid}")
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
    lines = table.markdown(sample()).splitlines()
    cells = {each[0]: each[1:] for line in lines for each in [line.strip("| ").split(" | ")]}
    cells = {name.strip(): [value.strip() for value in values] for name, values in cells.items()}
    assert cells["Caisson, from its pool"] == ["1", "5.00", "5.00", "1.00"]
    assert cells["llm-sandbox"] == ["1", "500", "500", "100"]
    assert cells["a bare process"][1] == "0.0123"
    assert cells["open, from the pool"] == ["≤ 10.0 ms", "5.00", "met"]
    assert "Not measured: autogen-ext (no)." in lines


def test_tables_have_their_columns_below_each_other():
    rows = [line for line in table.markdown(sample()).splitlines() if line.startswith("|")]
    for _, lines in itertools.groupby(rows, lambda line: line.count("|")):
        assert len({tuple(at for at, sign in enumerate(x) if sign == "|") for x in lines}) == 1


def test_the_json_has_a_line_for_each_row_and_loses_nothing():
    text = table.compact(sample())
    assert json.loads(text) == sample()
    assert all(len(line) < 300 for line in text.splitlines())
    assert sum('"row":' in line for line in text.splitlines()) == len(sample()["rows"])


def test_a_page_takes_the_figures_of_another_run():
    page = f"# Title\n\n{report.BEGIN}old\n{report.END}\nrest\n"
    once = report.placed(page, sample())
    assert "old" not in once
    assert table.markdown(sample()) in once
    assert once.endswith(f"{report.END}\nrest\n")
    assert report.placed(once, sample()) == once


def test_a_run_that_lacks_a_row_is_not_put_on_the_page(tmp_path, capsys):
    (tmp_path / "part.json").write_text(table.compact(sample()))
    before = report.KEPT.read_bytes(), report.PAGE.read_bytes(), report.PICTURE.read_bytes()
    assert report.main([str(tmp_path / "part.json")]) == 2
    assert "not of a whole run: first `import pandas`" in capsys.readouterr().err
    assert before == (
        *(report.KEPT.read_bytes(), report.PAGE.read_bytes(), report.PICTURE.read_bytes()),
    )


def test_page_and_picture_show_the_run_that_is_kept():
    kept, page = json.loads(report.KEPT.read_text()), report.PAGE.read_text()
    assert report.placed(page, kept) == page
    assert report.KEPT.read_text() == table.compact(kept)
    assert table.digest(kept).encode() in report.PICTURE.read_bytes()
