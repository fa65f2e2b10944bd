"""Real questions over real tables, answered by a model: how many right, at what cost, and why not.

    python -m bench.dabench QUESTIONS [--level easy] [--compare smolagents] [--out FOLDER]

QUESTIONS is a file in the format of InfiAgent-DABench (https://github.com/InfiAgent/InfiAgent): an
object a line with `id`, `question`, `constraints`, `format`, `file_name`, `level` and `answers`;
its tables are in the folder `tables` beside it. Each question is a job as `caisson run` drives it,
on the endpoint that is set. What is answered is kept in FOLDER and not asked again, so a run that
was stopped goes on where it was; what broke (no engine, no endpoint) is asked again.
`--compare smolagents` asks smolagents' CodeAgent as well: same endpoint, number of steps and
libraries (`scripts/bench` installs it, and builds its image).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.contest import ROOT
from bench.setting import PEERS_IMAGE
from bench.stage import PEERS, PEERS_PYTHON
from worker.errors import CaissonError, InputInvalid
from worker.history import History
from worker.hooks import Observer
from worker.messages import Event, Job, Record, ReplyAdded, ResultAdded, Status, Wire
from worker.runner import JobRequest, run_job
from worker.settings import Settings, load_settings

OURS, THEIRS = "caisson", "smolagents"
RIGHT, BROKEN = "right", "not answered: it broke"
_CLOSE = 1e-6


class Question(Record):
    """One question; `answers` are the names and values that an answer must give."""

    id: int
    question: str
    constraints: str
    format: str
    file_name: str
    level: str
    answers: tuple[tuple[str, str], ...]
    concepts: tuple[str, ...] = ()

    @property
    def goal(self) -> str:
        return (
            f"{self.question}\n\n{self.constraints}\n\n"
            f"Give the answer in this format: {self.format}"
        )


class Attempt(Record):
    """What an agent made of a question. `why` is "right" or the class of its failure."""

    agent: str
    model: str
    question: int
    why: str
    answer: str
    steps: int
    tokens: int
    seconds: float
    detail: str = ""
    trace: tuple[str, ...] = ()


# ---- what counts


def graded(answer: str, question: Question) -> str:
    """Say "right", or in which way an answer fails."""
    if not answer.strip():
        return "no answer"
    given = {name.lower(): value for name, value in values_in(answer)}
    if any(name.lower() not in given for name, _ in question.answers):
        return "not in the format"
    wrong = [name for name, value in question.answers if not is_equal(given[name.lower()], value)]
    return "wrong value" if wrong else RIGHT


def values_in(answer: str) -> Iterator[tuple[str, str]]:
    """Yield every `@name[value]`, whose brackets may hold others."""
    for found in re.finditer(r"@(\w+)\[", answer):
        depth, start = 1, found.end()
        for end in range(start, len(answer)):
            depth += {"[": 1, "]": -1}.get(answer[end], 0)
            if depth == 0:
                yield found[1], answer[start:end]
                break


def is_equal(given: str, expected: str) -> bool:
    """Numbers are equal within 1e-6, texts whatever their case."""
    given, expected = given.strip().strip("'\""), expected.strip().strip("'\"")
    try:
        return abs(float(given) - float(expected)) < _CLOSE
    except ValueError:
        return given.casefold() == expected.casefold()


# ---- who is asked


class _Trace(Observer):
    """What was said and shown, for whoever looks at a failure."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_event(self, event: Event, history: History) -> None:
        del history
        if isinstance(event, ReplyAdded):
            self.lines.append(json.dumps(event.reply.message.to_wire(), ensure_ascii=False))
        elif isinstance(event, ResultAdded):
            self.lines.append(event.result.text)
        elif text := getattr(event, "text", ""):
            self.lines.append(f"[{event.kind}] {text}")


def ask_ours(question: Question, table: Path, settings: Settings) -> Attempt:
    """Answer a question with a job, as `caisson run` does."""
    trace, started = _Trace(), time.monotonic()
    job = run_job(JobRequest(goal=question.goal, files=(table,)), settings, observer=trace)
    return Attempt(
        agent=OURS,
        model=settings.model,
        question=question.id,
        why=_why(job, question),
        answer=job.answer or "",
        steps=job.steps,
        tokens=job.usage.tokens,
        seconds=time.monotonic() - started,
        detail=job.error.message if job.error else "",
        trace=tuple(trace.lines),
    )


def _why(job: Job, question: Question) -> str:
    if job.status is Status.DEAD:
        return BROKEN
    why = graded(job.answer or "", question)
    # An answer counts, however the job came to it; without one the end of the job is the reason.
    return f"no answer: {job.finish_reason}" if why == "no answer" else why


def ask_theirs(question: Question, table: Path, settings: Settings) -> Attempt:
    """Answer a question with smolagents' CodeAgent, in a process with the peers' libraries."""
    asked = {
        "goal": f"{question.goal}\n\nThe file is {table.name} in the current folder.",
        "table": str(table),
        "model": settings.model,
        "max_steps": settings.max_steps,
        "temperature": settings.temperature,
        "max_tokens": settings.max_output_tokens,
        "timeout_s": settings.model_timeout_s,
    }
    key = settings.api_key.get_secret_value() if settings.api_key else "none"
    own = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": settings.base_url or "", PEERS_IMAGE: PEERS}
    started = time.monotonic()
    done = subprocess.run(
        [str(ROOT / PEERS_PYTHON), "-m", "bench.peers.answers_smolagents"],
        check=False,
        cwd=ROOT,
        env={**os.environ, **own},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    told: Wire = json.loads(lines[-1]) if lines else {"detail": done.stderr.strip()[-300:]}
    answer = told.get("answer", "")
    return Attempt(
        agent=THEIRS,
        model=settings.model,
        question=question.id,
        why=graded(answer, question) if lines else BROKEN,
        answer=answer,
        steps=told.get("steps", 0),
        tokens=told.get("tokens", 0),
        seconds=time.monotonic() - started,
        detail=told.get("detail", ""),
        trace=tuple(told.get("trace", ())),
    )


AGENTS = {OURS: ask_ours, THEIRS: ask_theirs}


# ---- a run, and what it prints


class Kept:
    """The attempts of earlier runs, and where new ones are added: a line each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "attempts.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        found = map(Attempt.model_validate_json, lines)
        self._attempts = {(a.agent, a.model, a.question): a for a in found}

    def get(self, agent: str, model: str, question: int) -> Attempt | None:
        return self._attempts.get((agent, model, question))

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.agent, attempt.model, attempt.question] = attempt
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(attempt.model_dump_json() + "\n")


def read_questions(path: Path, level: str | None, only: Sequence[int]) -> list[Question]:
    """The chosen questions of a file. Raises `InputInvalid` with the line that is none."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    questions = [
        _question(line, f"{path}, line {number}") for number, line in lines if line.strip()
    ]
    chosen = [q for q in questions if level in {None, q.level}]
    return [q for q in chosen if not only or q.id in only]


def _question(line: str, place: str) -> Question:
    try:
        return Question.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InputInvalid(f"{place}: {name}: {first['msg']}") from error


def run(
    questions: Sequence[Question],
    tables: Path,
    agents: Sequence[str],
    settings: Settings,
    kept: Kept,
) -> list[Attempt]:
    """Ask every agent every question that it has not answered yet."""
    attempts = []
    for number, question in enumerate(questions, 1):
        for agent in agents:
            attempt = kept.get(agent, settings.model, question.id)
            if attempt is None:
                attempt = AGENTS[agent](question, tables / question.file_name, settings)
                if attempt.why != BROKEN:
                    kept.add(attempt)
            attempts.append(attempt)
            print(f"{number:3}/{len(questions)}  {said(attempt)}", flush=True)
    return attempts


def said(attempt: Attempt) -> str:
    answer = " ".join(attempt.answer.split())[:60]
    return (
        f"{attempt.question:5} {attempt.agent:10} {attempt.why:20} {attempt.steps:2} steps "
        f"{attempt.tokens:7,} tokens {attempt.seconds:6.0f} s  {answer}"
    )


def summary(attempts: Sequence[Attempt], agent: str) -> Iterator[str]:
    """Yield what came of an agent's attempts."""
    own = [attempt for attempt in attempts if attempt.agent == agent]
    right = sum(attempt.why == RIGHT for attempt in own)
    mean: dict[str, float] = {
        name: statistics.mean(getattr(attempt, name) for attempt in own)
        for name in ("steps", "tokens", "seconds")
    }
    yield (
        f"{agent}: {right} of {len(own)} right; on average {mean['steps']:.1f} steps, "
        f"{mean['tokens']:,.0f} tokens, {mean['seconds']:.0f} s"
    )
    for why, count in Counter(a.why for a in own if a.why != RIGHT).most_common():
        numbers = ", ".join(str(a.question) for a in own if a.why == why)
        yield f"  {count} x {why}: {numbers}"


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.dabench", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("questions", type=Path, help="a file of questions, one JSON object a line")
    parser.add_argument("--tables", type=Path, help="default: tables, beside the questions")
    parser.add_argument("--level", choices=("easy", "medium", "hard"))
    parser.add_argument("--only", type=int, nargs="+", default=[], metavar="ID")
    parser.add_argument("--compare", choices=(THEIRS,), help="ask this agent as well")
    parser.add_argument("--out", type=Path, default=ROOT / "build/dabench", metavar="FOLDER")
    parser.add_argument("--max-steps", type=int, default=6, help="default: 6")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a question")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    given = options(arguments)
    chosen: dict[str, Any] = {
        "max_steps": given.max_steps,
        "job_timeout_s": given.timeout,
        "data_dir": str(given.out / "data"),
    }
    try:
        settings = load_settings(chosen).settings
        questions = read_questions(given.questions, given.level, given.only)
        tables = given.tables or given.questions.parent / "tables"
        agents = [OURS, *([given.compare] if given.compare else [])]
        attempts = run(questions, tables, agents, settings, Kept(given.out))
    except (CaissonError, OSError) as error:
        print(f"dabench: {error}", file=sys.stderr)
        return 2
    for agent in agents if attempts else ():
        print("\n".join(summary(attempts, agent)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
