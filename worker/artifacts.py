"""Take what a job made out of its sandbox.

Nothing that comes out is trusted: names are made harmless, sizes and numbers are capped, and a file
that cannot be had is named and left behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sandbox.base import Sandbox
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.types import FileInfo
from worker.history import History
from worker.hooks import Run
from worker.messages import Artifact, ArtifactsAdded, Record

_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"\\|?*\u2028\u2029\u202a-\u202e\ud800-\udfff]')
_LONGEST = 120


class Caps(Record):
    """How much is taken out of one sandbox."""

    files: int = 100
    total_bytes: int = 256 * 1024 * 1024


def made_files(history: History) -> dict[str, FileInfo]:
    """The files that calls of the job reported as new or changed, as they were last reported."""
    found: dict[str, FileInfo] = {}
    spilled: set[str] = set()
    for _, result in history.results():
        found.update({file.name: file for file in result.files})
        if result.execution and result.execution.output_file:
            spilled.add(result.execution.output_file)
    return {name: file for name, file in found.items() if name not in spilled}


def collect(run: Run, sandbox: Sandbox, folder: Path, caps: Caps) -> None:
    """Copy the files that the job made into `folder` and add them to its history."""
    files = list(made_files(run.history).values())
    if len(files) > caps.files:
        run.remark(f"{len(files) - caps.files} files more than {caps.files} were left behind")
    left, kept = caps.total_bytes, []
    for file, name in zip(files[: caps.files], safe_names(files), strict=False):
        try:
            artifact = _take(sandbox, file, folder, name, left)
        except SandboxUnavailable as error:
            run.remark(f"the other files were lost with the sandbox: {error}")
            break
        except (SandboxError, OSError) as error:
            run.remark(f"{file.name} was left behind: {error}")
            continue
        left -= artifact.size
        kept.append(artifact)
    if kept:
        run.append(ArtifactsAdded(artifacts=tuple(kept)))


def _take(sandbox: Sandbox, file: FileInfo, folder: Path, name: str, most_bytes: int) -> Artifact:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    most_bytes = min(most_bytes, sandbox.spec.limits.read_bytes)
    try:
        with partial.open("wb") as sink:
            size = sandbox.read_file(file.name, sink, max_bytes=most_bytes)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return Artifact(name=name, size=size, mime=file.mime, path=str(target.resolve()))


def safe_names(files: list[FileInfo]) -> Iterator[str]:
    """Relative paths for the files: none leaves the folder, none is there twice or hidden."""
    taken: set[str] = set()
    for file in files:
        parts = [_safe(part) for part in file.name.split("/") if part not in {"", ".", ".."}]
        name = "/".join(parts[-8:]) or "file"
        stem, dot, suffix = name.rpartition(".")
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}{dot}{suffix}" if dot else f"{suffix}-{number}"
        taken.add(name.lower())
        yield name


def _safe(part: str) -> str:
    part = _UNSAFE.sub("_", part).lstrip(".- ").rstrip(". ")
    stem, dot, suffix = part.rpartition(".")
    if len(part.encode()) > _LONGEST:
        keep = part if not dot else stem
        part = keep.encode()[:_LONGEST].decode("utf-8", "ignore") + (dot + suffix[:16])
    return part or "file"
