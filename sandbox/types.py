"""The records of a sandbox: what it is made from, and what a call in it returned.

Sizes are bytes, times are seconds. Everything that is read from a guest has been through
`sandbox.session`, which checks it; the records here are plain data and safe to store or print.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024
GIB = 1024 * MIB


class Record(BaseModel):
    """A frozen value: no field can be changed, and none that is not declared can be given."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Record):
    """The hard limits of one sandbox. Each of them is enforced by the kernel or by the guest."""

    memory_bytes: int = Field(512 * MIB, ge=64 * MIB, le=2**46, description="RAM, swap included")
    cpus: float = Field(1.0, gt=0, le=1024)
    pids: int = Field(64, ge=8, le=32768, description="processes and threads, guest included")
    timeout_s: float = Field(30.0, gt=0, le=86_400, description="default limit of one call")
    max_life_s: float = Field(3600.0, gt=0, description="the container ends itself after this")
    open_files: int = Field(1024, ge=128, le=2**20)
    output_bytes: int = Field(
        32_768, ge=1024, le=MIB, description="output of a call kept for the caller"
    )
    spill_bytes: int = Field(16 * MIB, ge=0, description="output of a call kept in a file")
    output_kill_bytes: int = Field(256 * MIB, ge=65_536, description="a call ends past this")
    workspace_bytes: int | None = Field(None, ge=MIB, description="default: 3/8 of the memory")
    tmp_bytes: int | None = Field(None, ge=MIB, description="default: 1/8 of the memory")
    inodes: int = Field(20_000, ge=256, description="files and folders of the workspace")
    read_bytes: int = Field(256 * MIB, ge=0, description="one file taken out of the sandbox")

    @property
    def workspace_size_bytes(self) -> int:
        """Size of the workspace; it is a tmpfs, so what is written there counts as memory."""
        return self.workspace_bytes or max(MIB, self.memory_bytes * 3 // 8)

    @property
    def tmp_size_bytes(self) -> int:
        """Size of /tmp, a tmpfs too."""
        return self.tmp_bytes or max(MIB, self.memory_bytes // 8)


class Mount(Record):
    """A file or folder of the host, offered read-only at `target`."""

    source: Path
    target: PurePosixPath


class SandboxSpec(Record):
    """Everything a driver needs to start one sandbox."""

    image: str = "caisson-sandbox:latest"
    limits: Limits = Limits()
    network: str = Field("none", description="'none', or the name of a Docker network")
    runtime: str | None = Field(None, description="runc, runsc, kata …; None: the engine's default")
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    preload: tuple[str, ...] = Field((), description="modules imported before the first call")
    linger_s: float = Field(
        10.0, ge=0, description="how long the sandbox waits for a new host when it has lost its own"
    )
    job: str = Field("adhoc", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    owner: str = ""
    store: str = Field("", description="identity of the store that keeps the job; empty: ad hoc")
    generation: int = Field(
        1, ge=0, description="fencing token; a guest refuses a lower one; 0: it has no job yet"
    )
    spare_s: float = Field(
        0.0, ge=0, description="how long it may wait for its job, with which its life begins"
    )

    @property
    def longest_s(self) -> float:
        """After this it has ended by itself, whatever became of it."""
        return self.spare_s + self.limits.max_life_s


class Outcome(StrEnum):
    """How a call ended. What the code did is an outcome; that we could not run it is an error."""

    OK = "ok"
    ERROR = "error"  # an exception in Python, a non-zero exit code in the shell
    TIMEOUT = "timeout"  # the call's time limit
    OOM = "oom"  # the sandbox's memory limit, by the cgroup's own counter
    KILLED = "killed"  # a signal that was not ours: a crash, a cancel, os.kill
    OUTPUT_LIMIT = "output_limit"  # far more output than anybody can read
    EXITED = "exited"  # sys.exit(), os._exit(), the end of the interpreter by its own will


class Interpreter(StrEnum):
    """What became of the job's Python interpreter and its variables."""

    KEPT = "kept"
    RESTARTED = "restarted"
    NONE = "none"  # the call had no interpreter (expressions)


class ErrorInfo(Record):
    """An exception of user code. `frames` holds the user's own lines only, outermost first."""

    type: str
    message: str
    line: int | None = None
    source: str | None = Field(None, description="the text of that line")
    frames: tuple[str, ...] = ()
    facts: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        exclude=True,
        description="what a hint needs: columns, names, files … (never more than a few kB)",
    )


class FileInfo(Record):
    """A regular file of the workspace; `name` is relative to it, with forward slashes."""

    name: str
    size: int
    mime: str


class Execution(Record):
    """What one call did.

    `output` is text made fit for a reader: stdout and stderr in the order in which they were
    written, control characters gone, the middle cut when it is long (`output_truncated`);
    `output_bytes` counts what was written, and `output_file` names the file in the workspace
    that holds the full text when the middle was cut.
    """

    outcome: Outcome
    exit_code: int | None = None
    value: str | None = Field(None, description="text of the last expression")
    output: str = ""
    output_truncated: bool = False
    output_bytes: int = 0
    output_file: str | None = None
    error: ErrorInfo | None = None
    duration_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    interpreter: Interpreter = Interpreter.NONE
    lost_names: tuple[str, ...] = ()
    files: tuple[FileInfo, ...] = Field((), description="new and changed files")
    background_processes: int = 0
    limit: str | None = Field(
        None, exclude=True, description="the limit that was met, with its size, in words"
    )


class Standing(Record):
    """How a job stands, as whoever removes sandboxes must know it."""

    is_over: bool = Field(description="it has ended, and all that it made is stored")
    is_held: bool = Field(description="a worker has a live lease on it")
    generation: int = Field(0, description="of the lease that it has or had last")
    place: str = Field("", description="the sandbox it is in now")
    engine: str = Field("", description="the engine on which that one lives")
