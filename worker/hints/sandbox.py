"""Hints about the sandbox: how a call ended, what is not allowed, commands of the shell."""

from __future__ import annotations

import re

from sandbox.types import Outcome
from worker.hints.case import Case, Rule
from worker.hints.facts import missing_command
from worker.prompts import hint_text

_NETWORK = re.compile(
    r"gaierror|Name or service not known|Temporary failure in name resolution|"
    r"Could not resolve host|Network is unreachable|NewConnectionError|URLError|"
    r"Failed to establish a new connection|unable to resolve host|bad address"
)
PROCESSES = re.compile(
    r"can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|"
    r"BlockingIOError: \[Errno 11\]|fork failed|Cannot fork"
)
INSTALLS = re.compile(r"\bpip3?: (?:command )?not found|No module named pip|dpkg/lock")
_COMMAND = re.compile(r"(?:line \d+: )?([\w.+-]+): (?:command )?not found")
_PYTHON = re.compile(r"\A\s*(?:import |from \w+ import |print\s*\(|def |for .+:|\w+ = .*\()")
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit codes of the shell


def ended(case: Case) -> str | None:
    limit, ran = case.execution.limit, f"{case.execution.duration_s:.1f} s"
    match case.execution.outcome:
        case Outcome.OOM:
            return hint_text("oom", limit=limit or "memory limit", peak=case.peak)
        case Outcome.TIMEOUT:
            key = "timeout_loop" if "while" in case.code else "timeout"
            return hint_text(key, limit=limit or "time limit", ran=ran, more=case.more_time)
        case Outcome.OUTPUT_LIMIT:
            return hint_text("output_limit", limit=limit or "output limit")
        case Outcome.EXITED:
            return hint_text("exited", code=case.execution.exit_code)
    return None


def killed(case: Case) -> str | None:
    if case.execution.outcome is not Outcome.KILLED or case.type == "Cancelled":
        return None
    return hint_text("killed")


def expression(case: Case) -> str | None:
    """Expressions have no variables, no files and a limit of their own."""
    return hint_text("no_variables") if case.type == "NameError" else None


def _memory(case: Case) -> str | None:
    is_it = case.type == "MemoryError" or "Unable to allocate" in case.message
    return hint_text("memory_error", peak=case.peak) if is_it else None


def _stdin(case: Case) -> str | None:
    asked = case.type == "EOFError" or re.search(r"EOF when reading a line|no tty", case.told)
    return hint_text("stdin") if asked else None


def _offline(case: Case) -> str | None:
    return hint_text("network") if case.network == "none" and _NETWORK.search(case.told) else None


def _system(case: Case) -> str | None:
    rows = (
        (r"Argument list too long", "arguments"),
        (r"No space left on device|Disk quota exceeded", "disk"),
        (r"Read-only file system", "read_only"),
        (r"Permission denied|Operation not permitted|PermissionError", "permission"),
    )
    if PROCESSES.search(case.told):
        return hint_text("processes")
    return next((hint_text(key) for pattern, key in rows if re.search(pattern, case.told)), None)


def _command(case: Case) -> str | None:
    done = case.execution
    if case.type or done.exit_code is None:
        return None
    found = _COMMAND.search(done.output)
    if found and done.exit_code == _NOT_FOUND:
        return missing_command(found[1])
    if INSTALLS.search(done.output[-4000:]):
        return hint_text("command_install")
    if done.exit_code == _NOT_EXECUTABLE and "Permission denied" in done.output:
        return hint_text("not_executable")
    return None


def _shell(case: Case) -> str | None:
    """What the shell itself could not read or find."""
    done = case.execution
    if case.type or not done.exit_code:
        return None
    if "syntax error" in done.output and _PYTHON.search(case.code):
        return hint_text("python_in_shell")
    if re.search(r"unexpected (?:EOF|end of file)", done.output):
        return hint_text("shell_quotes")
    if re.search(r"No such file or directory|cannot find or open", done.output[-4000:]):
        return hint_text("shell_file")
    silent = done.exit_code == 1 and not done.output.strip()
    is_search = re.search(r"\b(?:grep|rg|diff|pgrep|test|cmp|which)\b|\[", case.code)
    return hint_text("found_nothing") if silent and is_search else None


SANDBOX: tuple[Rule, ...] = (_memory, _stdin, _offline, _command, _system, _shell, killed)
