"""From a spec to the body of Docker's "create container" call: a pure function, secure by default.

What it does about a hostile program inside, and where each limit is enforced:

* no network (its own namespace with nothing but a loopback), unless a network is named;
* an unprivileged uid, no capabilities, `no-new-privileges`, Docker's own seccomp profile (which
  is why `SecurityOpt` has no `seccomp` entry: hand-made lists break numpy, and the default is
  what the engine's authors keep current);
* a read-only root, and two tmpfs with a size and a number of files, both well inside the memory
  limit, because a tmpfs is memory: were they larger, a full disk would be an out-of-memory kill;
* memory without swap, CPU time, processes, open files, file size, no core dumps;
* no log on the host: Docker would keep what the program prints in an unbounded file;
* nothing of the worker's environment, and none of the image's settings that would run or load
  something else (entry point, health check, volumes, `LD_PRELOAD`, `PYTHONPATH` …).

Not covered here: flaws of the kernel, the runtime and the engine (choose another `runtime` for
that); images, which are as trusted as the person who named them; what a named network reaches;
host resources that no cgroup counts (kernel entropy, disk bandwidth of read-only mounts). Values
in `environment` can be read by anybody who may talk to the engine, so they are no place for
secrets. A kernel without swap accounting makes the engine ignore `MemorySwap` with a mere warning
in its answer; `caisson doctor` says so.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox.errors import SpecInvalid
from sandbox.types import MIB, Limits, Mount, SandboxSpec

# A user of its own for each sandbox: some of the kernel's quotas (watches, pipe buffers) are kept
# by user, and neighbours would share them. The range is the one that systemd keeps for users made
# on the fly, and below 65,536, which is all that an engine with user namespaces maps.
SANDBOX_UIDS = range(61184, 65520)
WORKSPACE = "/workspace"
MOUNT_ROOT = "/mnt"
DOOR = "/run/caisson"
HOSTNAME = "sandbox"

_MAX_ENVIRONMENT_BYTES = 128 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

# Variables with which an image could make every later program load or run something else, or
# send traffic elsewhere. A name without "=" is how the engine is told to leave a variable out.
_LEFT_OUT = (
    *("BASH_ENV", "ENV", "PROMPT_COMMAND"),
    *("LD_AUDIT", "LD_DEBUG", "LD_PRELOAD"),
    *("PYTHONHOME", "PYTHONINSPECT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONBREAKPOINT"),
    *("PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONDEBUG", "PYTHONTRACEMALLOC"),
    *("LC_ALL", "LC_CTYPE", "LANGUAGE"),  # these would win over our LANG
    *("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"),
)

# PATH is not among these on purpose: an image that keeps its Python elsewhere says so there, and
# the engine supplies the usual one where an image has none.
_ENVIRONMENT = {
    "HOME": "/tmp",
    "USER": "sandbox",
    "LOGNAME": "sandbox",  # the image has no name for the user's number
    "TMPDIR": "/tmp",
    "MPLCONFIGDIR": "/tmp/.config/matplotlib",
    "XDG_CACHE_HOME": "/tmp/.cache",
    "XDG_CONFIG_HOME": "/tmp/.config",
    "XDG_DATA_HOME": "/tmp/.local/share",
    "XDG_RUNTIME_DIR": "/tmp",
    "LANG": "C.UTF-8",
    "MPLBACKEND": "Agg",
    # A script that is killed has printed what it printed; block buffers would be lost.
    "PYTHONUNBUFFERED": "1",
    # Else every import of a module in the workspace shows up as a new file.
    "PYTHONDONTWRITEBYTECODE": "1",
    # Nobody is there to page, edit, or answer a question.
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
}

# Each of these sizes a pool by the host's cores, not by the limit, and then meets the pids limit.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
)


def container_options(
    spec: SandboxSpec,
    *,
    command: Sequence[str],
    deadline: float,
    uid: int,
    image_volumes: Iterable[str] = (),
) -> dict[str, object]:
    """Return the body of `POST /containers/create` for `spec`.

    Args:
        spec: What is wanted.
        command: What PID 1 runs; the image's entry point is not consulted.
        deadline: When the container must be gone, in seconds since the epoch (for its label).
        uid: The user, and the group, of everything inside.
        image_volumes: The `VOLUME` paths of the image. The engine would make each of them a
            writable folder without a limit on the host's disk, and cannot be told not to, so
            each is covered by an empty read-only tmpfs.

    Raises:
        SpecInvalid: Part of the spec cannot be, or would undo the isolation.
    """
    return {
        "Image": spec.image,
        # The engine's documented way to say "none, whatever the image has".
        "Entrypoint": [""],
        "Cmd": list(command),
        "Healthcheck": {"Test": ["NONE"]},
        "Hostname": HOSTNAME,
        "User": f"{_unprivileged(uid)}:{uid}",
        "WorkingDir": WORKSPACE,
        "Env": _environment(spec),
        "Labels": _labels(spec, deadline),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        # Closed with its first client: how the guest learns that its host is gone. It stays alive.
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "HostConfig": _host_config(spec, uid, image_volumes),
    }


def with_door(options: dict[str, object], door: Path) -> dict[str, object]:
    """Add the socket of this host at which the guest knocks; see `sandbox.door`."""
    host: Any = options["HostConfig"]
    return {**options, "HostConfig": {**host, "Mounts": [*host["Mounts"], _shown(door, DOOR)]}}


def _host_config(spec: SandboxSpec, uid: int, image_volumes: Iterable[str]) -> dict[str, object]:
    config: dict[str, object] = {
        **_isolation(spec),
        **_resources(spec.limits),
        "Tmpfs": _tmpfs(spec.limits, uid),
        "ShmSize": _shm_bytes(spec.limits),
        "Mounts": [*map(_bind, spec.mounts), *map(_covered, _uncovered(spec, image_volumes))],
    }
    if spec.runtime is not None:
        config["Runtime"] = spec.runtime
    return config


def _isolation(spec: SandboxSpec) -> dict[str, object]:
    return {
        "NetworkMode": _network(spec.network),
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "SecurityOpt": ["no-new-privileges:true"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "IpcMode": "private",
        # Shared memory ends with its last user and there are no message queues: either would
        # outlive the process that made it, and go on counting against the memory limit.
        "Sysctls": {"kernel.shm_rmid_forced": "1", "kernel.msgmni": "0"},
        "CgroupnsMode": "private",
        "Devices": [],
        "PublishAllPorts": False,
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        # The guest is PID 1 and reaps; what is left must be there to be looked at.
        "Init": False,
        "AutoRemove": False,
    }


def _resources(limits: Limits) -> dict[str, object]:
    # MemorySwappiness is left out: engines on cgroup v2 refuse it, and without swap it says
    # nothing. RLIMIT_NPROC too: it counts a uid over all containers; PidsLimit counts this one.
    return {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "NanoCpus": _nano_cpus(limits.cpus),
        "PidsLimit": limits.pids,
        "Ulimits": [
            _ulimit("nofile", limits.open_files),
            _ulimit("core", 0),
            _ulimit("msgqueue", 0),
            # Above what either tmpfs holds: a writer is told "no space left", which is true.
            _ulimit("fsize", limits.workspace_size_bytes + limits.tmp_size_bytes),
        ],
        # Not raised: what user code starts is (by the guest), and it may lower its own to 0, which
        # must not be below that of the first process.
        "OomScoreAdj": 0,
    }


def _tmpfs(limits: Limits, uid: int) -> dict[str, str]:
    workspace, tmp = limits.workspace_size_bytes, limits.tmp_size_bytes
    total, allowed = workspace + tmp + _shm_bytes(limits), limits.memory_bytes * 3 // 4
    if total > allowed:
        raise SpecInvalid(
            f"workspace ({workspace // MIB} MiB), /tmp ({tmp // MIB} MiB) and shared memory "
            f"({_shm_bytes(limits) // MIB} MiB) are held in memory and may take 3/4 of it, "
            f"{allowed // MIB} MiB: raise the memory limit or make them smaller"
        )
    return {
        WORKSPACE: _tmpfs_options(workspace, limits.inodes, uid),
        "/tmp": _tmpfs_options(tmp, limits.inodes, uid),
    }


def _tmpfs_options(size_bytes: int, inodes: int, uid: int) -> str:
    # `exec`, where Docker's default is noexec: scripts and compiled programs that the job wrote,
    # and extension modules, would not run; noexec stops nobody who has an interpreter at hand.
    # nosuid and nodev matter, and stay.
    return (
        f"rw,exec,nosuid,nodev,size={size_bytes},nr_inodes={inodes},mode=0700,uid={uid},gid={uid}"
    )


def _shm_bytes(limits: Limits) -> int:
    """Size of /dev/shm: semaphores and small arrays of worker processes, not a second disk."""
    return min(64 * MIB, limits.memory_bytes // 16)


def _bind(mount: Mount) -> dict[str, object]:
    if not mount.source.is_absolute() or not _is_under_mount_root(mount):
        raise SpecInvalid(f"{mount.source}: can only be mounted below {MOUNT_ROOT}")
    return _shown(mount.source, str(mount.target))


def _shown(source: Path, target: str) -> dict[str, object]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": True,
        # Without NonRecursive, file systems mounted below the source come along, and engines
        # before 25 leave those writable.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


def _is_under_mount_root(mount: Mount) -> bool:
    parts = mount.target.parts
    return parts[:2] == ("/", MOUNT_ROOT[1:]) and len(parts) > 2 and ".." not in parts  # noqa: PLR2004


def _uncovered(spec: SandboxSpec, image_volumes: Iterable[str]) -> list[str]:
    """Name the volumes on which nothing else is mounted; the engine refuses a path given twice."""
    taken = {WORKSPACE, "/tmp", *(str(mount.target) for mount in spec.mounts)}
    return sorted({posixpath.normpath(path) for path in image_volumes} - taken)


def _covered(path: str) -> dict[str, object]:
    return {
        "Type": "tmpfs",
        "Target": path,
        "ReadOnly": True,
        "TmpfsOptions": {"SizeBytes": 4096, "Mode": 0o555},
    }


def process_environment(spec: SandboxSpec, home: Path) -> dict[str, str]:
    """Return the environment of a guest outside a container, built from nothing as well."""
    variables = (item.partition("=") for item in _environment(spec) if "=" in item)
    below_home = {name: value.replace("/tmp", str(home)) for name, _, value in variables}
    return {"PATH": os.defpath, **below_home}


def _environment(spec: SandboxSpec) -> list[str]:
    threads = str(math.ceil(spec.limits.cpus))
    wanted = {
        **_ENVIRONMENT,
        **dict.fromkeys(_THREAD_VARIABLES, threads),
        **_checked(spec.environment),
    }
    left_out = [name for name in _LEFT_OUT if name not in wanted]
    return [f"{name}={value}" for name, value in wanted.items()] + left_out


def _checked(environment: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            raise SpecInvalid(f"{name!r} is no name for an environment variable")
        if "\0" in value:
            raise SpecInvalid(f"the environment variable {name} contains a NUL character")
    size = sum(
        len(name) + len(value.encode(errors="replace")) for name, value in environment.items()
    )
    if size > _MAX_ENVIRONMENT_BYTES:
        raise SpecInvalid(
            f"environment variables of {size} bytes are too large; "
            f"{_MAX_ENVIRONMENT_BYTES} is the limit: pass data as a file"
        )
    return environment


def _labels(spec: SandboxSpec, deadline: float) -> dict[str, str]:
    return {
        "caisson.job": spec.job,
        "caisson.generation": str(spec.generation),
        "caisson.owner": spec.owner,
        "caisson.store": spec.store,
        "caisson.deadline": str(math.ceil(deadline)),
        # The same for whoever goes by the engine's clock, which may not be this host's.
        "caisson.max_life_s": str(math.ceil(spec.longest_s)),
        **({"caisson.spare": "yes"} if spec.spare_s else {}),
    }


def _network(name: str) -> str:
    # "container:ID" and "ns:PATH" fail the pattern: both join somebody else's network.
    if name == "host" or not _NETWORK.fullmatch(name):
        raise SpecInvalid(
            f"network {name!r}: use 'none' or the name of a Docker network; "
            "the host's or another container's would end the isolation"
        )
    return name


def _unprivileged(uid: int) -> int:
    if not 1 <= uid < 2**31:
        raise SpecInvalid(f"user id {uid}: it must be an unprivileged one")
    return uid


def _nano_cpus(cpus: float) -> int:
    nano = round(cpus * 1e9)
    if nano < 10_000_000:  # noqa: PLR2004
        raise SpecInvalid(f"{cpus:g} CPUs: the engine takes no less than 0.01")
    return nano


def _ulimit(name: str, value: int) -> dict[str, object]:
    return {"Name": name, "Soft": value, "Hard": value}
