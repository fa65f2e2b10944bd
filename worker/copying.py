"""Copy the artefacts of a job into a folder of somebody's choice: never beside it, never over."""

from __future__ import annotations

import filecmp
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from worker.errors import BlobMissing, InputInvalid
from worker.messages import Artifact
from worker.store.blobs import Blobs, check_size


def copy_out(
    artifacts: Sequence[Artifact], folder: Path, blobs: Blobs, *, overwrite: bool = False
) -> tuple[Artifact, ...]:
    """Copy all or, when one of them cannot be, say so before any is; returns the copies.

    A file that is there with the same content is left as it is. Raises `InputInvalid` for what is
    in the way, `BlobMissing` for a file that is not on this host.
    """
    root = folder.absolute()
    pairs = [(_source(one, blobs), _target(one, root)) for one in artifacts]
    wanted = [(source, target) for source, target in pairs if not _is_there(source, target)]
    if not overwrite:
        _refuse_present([target for _, target in wanted])
    try:
        root.mkdir(parents=True, exist_ok=True)
        for source, target in wanted:
            _copy(source, target)
    except OSError as error:
        raise InputInvalid(f"cannot copy to {folder}: {error.strerror or error}") from error
    return tuple(
        one.model_copy(update={"path": str(target)})
        for one, (_, target) in zip(artifacts, pairs, strict=True)
    )


def _source(artifact: Artifact, blobs: Blobs) -> Path:
    """Its content as it was kept, or the file where there is no such thing or it is damaged."""
    with suppress(BlobMissing):
        return blobs.path(artifact.sha256, artifact.size)
    path = Path(artifact.path)
    if not path.is_file():
        raise BlobMissing(f"{path} is not on this host; it lies where the job's worker ran")
    check_size(path, artifact.size)
    return path


def _target(artifact: Artifact, root: Path) -> Path:
    """Where a file goes. A link in the folder must not lead it out of there."""
    target = root / artifact.name
    real = root.resolve()
    if not target.parent.resolve().is_relative_to(real) or target.name in {"", ".", ".."}:
        raise InputInvalid(f"{artifact.name} would leave {root}; nothing was copied")
    return target


def _is_there(source: Path, target: Path) -> bool:
    return (
        target.is_file() and not target.is_symlink() and filecmp.cmp(source, target, shallow=False)
    )


def _refuse_present(targets: Sequence[Path]) -> None:
    there = [target for target in targets if target.exists() or target.is_symlink()]
    if there:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise InputInvalid(
            f"{there[0]}{more} is there with another content; nothing was copied "
            "(--overwrite replaces it)"
        )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{secrets.token_hex(4)}.partial")
    try:
        shutil.copyfile(source, partial)  # not the mode: a blob may not be written
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
