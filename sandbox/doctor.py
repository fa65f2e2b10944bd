"""Proves, on the machine at hand, that each limit of a sandbox holds.

A sandbox is started with the very settings that jobs get, and each limit is attacked from inside.
What is checked is what happens, not what was asked for.

Not covered: flaws of the kernel, the runtime and the engine. Versions with known escapes are
named in the check of the engine, as far as they are known here.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from sandbox.docker import DockerSandbox
from sandbox.engine import Engine
from sandbox.errors import SandboxError, SandboxLost
from sandbox.hardening import container_options
from sandbox.opening import Harden
from sandbox.types import MIB, Interpreter, Outcome, Record, SandboxSpec

CPU_SLACK = 1.35  # a two-second sample of a quota that is dealt out in slices of 100 ms
SAFE_ENGINE = (29, 5, 1)
SAFE_RUNC = (1, 2, 8)
STATUS = "print(open('/proc/self/status').read())"


class Check(Record):
    """One line of the doctor's account."""

    check: str
    ok: bool
    detail: str


class Finding(NamedTuple):
    """What a probe has found."""

    ok: bool
    detail: str


def diagnose(
    spec: SandboxSpec, *, engine_url: str | None = None, harden: Harden = container_options
) -> Iterator[Check]:
    """Yield each check as it is done; never raises for what a check finds.

    `harden` is there for tests that weaken it.
    """
    try:
        with closing(Engine(engine_url)) as engine:
            yield Check(check="engine", ok=True, detail=_describe_engine(engine))
            image = engine.image(spec.image)
            yield Check(check="image", ok=True, detail=f"{spec.image} {image['Id'][7:19]}")
            yield from _examine(spec, engine, engine_url, harden)
    except SandboxError as error:
        yield Check(check="sandbox", ok=False, detail=str(error))


def _examine(
    spec: SandboxSpec, engine: Engine, engine_url: str | None, harden: Harden
) -> Iterator[Check]:
    with _canary() as canary:
        began = time.monotonic()
        sandbox = DockerSandbox.start(spec, engine_url=engine_url, harden=harden)
        took_ms = (time.monotonic() - began) * 1000
        yield Check(check="start", ok=True, detail=f"ready after {took_ms:.0f} ms")
        with closing(sandbox):
            for name, probe in PROBES.items():
                yield _check(name, probe, sandbox)
            yield _check("environment", lambda it: _environment(it, canary), sandbox)
    gone = engine.state(sandbox.container) is None
    yield Check(check="removal", ok=gone, detail="the container is gone" if gone else "it is there")
    yield _maximum_life(spec, engine_url, harden)


def _check(name: str, probe: Callable[[DockerSandbox], Finding], sandbox: DockerSandbox) -> Check:
    try:
        found = probe(sandbox)
    except SandboxError as error:
        found = Finding(ok=False, detail=f"could not be checked: {error}")
    return Check(check=name, ok=found.ok, detail=found.detail)


def _ask(sandbox: DockerSandbox, code: str) -> Any:  # noqa: ANN401 - whatever the probe prints
    """Run a probe that prints JSON; raises `SandboxError` when it does not."""
    done = sandbox.python(code)
    try:
        return json.loads(done.output)
    except ValueError as error:
        why = done.error.message if done.error else done.output[:200]
        raise SandboxError(f"the probe failed: {why}") from error


# --- the engine ---------------------------------------------------------------------------------


def _describe_engine(engine: Engine) -> str:
    info = engine.describe()
    engine_version = str(info.get("ServerVersion", "?"))
    runc = str((info.get("RuncCommit") or {}).get("ID", ""))
    parts = [f"Docker {engine_version}", f"cgroup v{info.get('CgroupVersion', '1')}"]
    if _numbers(engine_version) < SAFE_ENGINE:
        parts.append("engines before 29.5.1 have known faults in archive calls (never used here)")
    runc_version = _numbers(runc)
    if runc_version and runc_version < SAFE_RUNC:
        parts.append("WARNING: this runc has known escapes, update it")
    if info.get("SwapLimit") is False:
        parts.append("the kernel does not account for swap")
    return "; ".join(parts)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(part) for part in found.groups()) if found else ()


# --- who the code is ----------------------------------------------------------------------------


def _user(sandbox: DockerSandbox) -> Finding:
    uid, gid, groups = _ask(
        sandbox, "import os, json; print(json.dumps([os.getuid(), os.getgid(), os.getgroups()]))"
    )
    ok = uid != 0 and gid != 0 and 0 not in groups
    return Finding(ok, f"uid {uid}, gid {gid}")


def _status(sandbox: DockerSandbox) -> dict[str, str]:
    """Of a process that is none of the guest's, which takes more from its own; unasked for here."""
    lines = sandbox.beside(STATUS).decode().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _capabilities(sandbox: DockerSandbox) -> Finding:
    status = _status(sandbox)
    held = {name: status.get(name, "?") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")}
    ok = all(re.fullmatch("0+", value) for value in held.values())
    return Finding(ok, "none" if ok else ", ".join(f"{k} {v}" for k, v in held.items()))


def _new_privileges(sandbox: DockerSandbox) -> Finding:
    value = _status(sandbox).get("NoNewPrivs", "?")
    return Finding(value == "1", "none can be gained" if value == "1" else f"NoNewPrivs is {value}")


def _seccomp(sandbox: DockerSandbox) -> Finding:
    value = _status(sandbox).get("Seccomp", "?")
    return Finding(value == "2", "filtered" if value == "2" else f"no filter (mode {value})")


def _supervisor(sandbox: DockerSandbox) -> Finding:
    code = """
import json, os, resource
opened = []
for name in ("mem", "fd/0", "fd/1", "environ", "maps"):
    try:
        open("/proc/1/" + name, "rb").close()
        opened.append(name)
    except OSError:
        pass
for number in (2, 9, 15, 19):
    try:
        os.kill(1, number)
    except OSError:
        pass
try:
    limits = resource.prlimit(1, resource.RLIMIT_CORE, (0, 0))
    opened.append("limits")
except OSError:
    pass
print(json.dumps(opened))
"""
    opened = _ask(sandbox, code)
    alive = sandbox.python("1").outcome is Outcome.OK
    if opened or not alive:
        return Finding(ok=False, detail=f"open to user code: {', '.join(opened) or 'its life'}")
    return Finding(ok=True, detail="closed to user code, and signals do not hurt it")


# --- what the code reaches ----------------------------------------------------------------------


def _network(sandbox: DockerSandbox) -> Finding:
    code = """
import json, os, socket
try:
    socket.socket(socket.AF_VSOCK).close()
    reached = ["the virtual machine's host (AF_VSOCK)"]
except OSError:
    reached = []
links = sorted(set(os.listdir("/sys/class/net")) - {"lo", "bonding_masters"})
for address in (("169.254.169.254", 80), ("10.0.0.1", 53), ("1.1.1.1", 53)):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(address)  # sends nothing: it only asks for a route
        reached.append(address[0])
    except OSError:
        pass
print(json.dumps([links, reached]))
"""
    links, reached = _ask(sandbox, code)
    if links or reached:
        what = [*(f"interface {name}" for name in links), *(f"route to {name}" for name in reached)]
        return Finding(ok=False, detail=f"network {sandbox.spec.network!r}: {', '.join(what)}")
    return Finding(ok=True, detail="none but the loopback")


def _root(sandbox: DockerSandbox) -> Finding:
    code = """
import json, os
written = []
for folder in ("/", "/etc", "/usr", "/var/tmp", "/root", "/home", "/mnt", "/opt", "/srv", "/run"):
    try:
        path = os.path.join(folder, "caisson-probe")
        open(path, "w").close()
        os.unlink(path)
        written.append(folder)
    except OSError:
        pass
options = {line.split()[1]: line.split()[3] for line in open("/proc/mounts")}
print(json.dumps([written, "ro" in options["/"].split(",")]))
"""
    written, read_only = _ask(sandbox, code)
    if written or not read_only:
        where = ", ".join(written) or "the root is not mounted read-only"
        return Finding(ok=False, detail=f"can be written: {where}")
    return Finding(ok=True, detail="read-only")


def _devices(sandbox: DockerSandbox) -> Finding:
    code = """
import json, os, stat
found = []
for folder, _, names in os.walk("/dev"):
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if stat.S_ISBLK(mode) or name in ("mem", "kmem", "kmsg", "fuse", "kvm"):
            found.append(name)
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
    if os.path.exists(path):
        found.append(path)
print(json.dumps(found))
"""
    found = _ask(sandbox, code)
    return Finding(not found, ", ".join(found) or "no disk, no kernel memory, no engine socket")


def _environment(sandbox: DockerSandbox, canary: str) -> Finding:
    code = """
import glob, json
seen = []
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        seen.append(open(path, "rb").read().decode("utf-8", "replace"))
    except OSError:
        pass
print(json.dumps("\\n".join(seen)))
"""
    seen = str(_ask(sandbox, code))
    if canary in seen:
        return Finding(ok=False, detail="a variable of this process is visible inside")
    return Finding(ok=True, detail="nothing of this process's is visible inside")


@contextmanager
def _canary() -> Iterator[str]:
    """Put a secret into this process's environment, to be looked for inside."""
    name, value = "DOCTOR_CANARY", secrets.token_hex(8)
    os.environ[name] = value
    try:
        yield value
    finally:
        del os.environ[name]


# --- what the code consumes ---------------------------------------------------------------------


def _memory(sandbox: DockerSandbox) -> Finding:
    limit = sandbox.spec.limits.memory_bytes
    done = sandbox.python(f"a = bytearray({limit * 2})\nlen(a)", timeout_s=60)
    peak = f"{done.peak_memory_bytes / MIB:.0f} of {limit / MIB:.0f} MiB"
    if done.outcome is not Outcome.OOM or done.peak_memory_bytes > limit:
        return Finding(ok=False, detail=f"not enforced: {done.outcome}, {peak}")
    return Finding(ok=True, detail=f"ended at {peak}, and named as the cause")


def _processes(sandbox: DockerSandbox) -> Finding:
    limit = sandbox.spec.limits.pids
    code = f"""
import os, json, signal
children = []
try:
    for _ in range({limit + 50}):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except OSError:
    pass
for pid in children:
    os.kill(pid, signal.SIGKILL)
for pid in children:
    os.waitpid(pid, 0)
print(json.dumps(len(children)))
"""
    started = int(_ask(sandbox, code))
    return Finding(started < limit, f"{started} could be started, the limit is {limit}")


QUOTA = """
def quota():
    try:
        with open("/sys/fs/cgroup/cpu.max") as f:
            part, whole = f.read().split()
            return -1 if part == "max" else int(part) / int(whole)
    except OSError:
        pass
    try:
        root = "/sys/fs/cgroup/cpu/cpu.cfs_"
        return int(open(root + "quota_us").read()) / int(open(root + "period_us").read())
    except OSError:
        return None
"""


def _cpu(sandbox: DockerSandbox) -> Finding:
    limit = sandbox.spec.limits.cpus
    workers = min(int(limit) + 2, sandbox.spec.limits.pids // 4)
    code = f"""
import json, os, time
end = time.monotonic() + 2
children = []
for _ in range({workers}):
    pid = os.fork()
    if pid == 0:
        while time.monotonic() < end:
            pass
        os._exit(0)
    children.append(pid)
used = 0.0
for pid in children:
    _, _, usage = os.wait4(pid, 0)
    used += usage.ru_utime + usage.ru_stime
print(json.dumps([used / 2, quota()]))
"""
    used, quota = _ask(sandbox, QUOTA + code)
    available = len(os.sched_getaffinity(0))
    # On a busy machine a sandbox without a quota may get no more than with one: look at both.
    ok = used <= limit * CPU_SLACK and (quota is None or 0 < quota <= limit * 1.01)
    note = (
        f"; this machine has {available}, so more could not be seen" if limit >= available else ""
    )
    return Finding(ok, f"{workers} busy processes used {used:.2f} of {limit:g} CPUs{note}")


def _disk(sandbox: DockerSandbox) -> Finding:
    limits = sandbox.spec.limits
    sizes = {"/workspace": limits.workspace_size_bytes, "/tmp": limits.tmp_size_bytes}
    written = {folder: _fill(sandbox, folder, size) for folder, size in sizes.items()}
    ok = all(written[folder] <= size for folder, size in sizes.items())
    took = ", ".join(f"{folder} {size / MIB:.0f} MiB" for folder, size in written.items())
    return Finding(ok, f"took {took} and no more" if ok else f"took {took}")


def _fill(sandbox: DockerSandbox, folder: str, size_bytes: int) -> int:
    code = f"""
import json, os
written, path = 0, "{folder}/caisson-probe"
try:
    with open(path, "wb", buffering=0) as f:
        while written < {size_bytes + 8 * MIB}:
            written += f.write(b"x" * 1048576)
except OSError:
    pass
os.unlink(path)
print(json.dumps(written))
"""
    return int(_ask(sandbox, code))


def _files(sandbox: DockerSandbox) -> Finding:
    limit = sandbox.spec.limits.inodes
    code = f"""
import json, os, shutil
os.mkdir("/workspace/probe")
made = 0
try:
    for made in range({limit + 100}):
        os.close(os.open(f"/workspace/probe/{{made}}", os.O_CREAT))
except OSError:
    pass
shutil.rmtree("/workspace/probe")
print(json.dumps(made))
"""
    made = int(_ask(sandbox, code))
    return Finding(made <= limit, f"{made} could be made, the limit is {limit}")


def _ulimits(sandbox: DockerSandbox) -> Finding:
    code = """
import json, resource as r
print(json.dumps([r.getrlimit(r.RLIMIT_NOFILE)[1], r.getrlimit(r.RLIMIT_CORE)[1]]))
"""
    open_files, core = _ask(sandbox, code)
    ok = open_files == sandbox.spec.limits.open_files and core == 0
    return Finding(ok, f"{open_files} open files, core dumps of {core} bytes")


def _time(sandbox: DockerSandbox) -> Finding:
    began = time.monotonic()
    done = sandbox.shell("trap '' INT TERM; setsid sleep 60 & while :; do :; done", timeout_s=1)
    took_s = time.monotonic() - began
    ok = done.outcome is Outcome.TIMEOUT and took_s < 4 and done.background_processes == 0  # noqa: PLR2004
    return Finding(ok, f"a call with a limit of 1 s, and all it began, ended after {took_s:.1f} s")


def _output(sandbox: DockerSandbox) -> Finding:
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    done = sandbox.python(code, timeout_s=60)
    ok = done.outcome is Outcome.OUTPUT_LIMIT
    return Finding(ok, f"ended after {done.output_bytes / MIB:.0f} MiB, {len(done.output)} kept")


def _recovery(sandbox: DockerSandbox) -> Finding:
    done = sandbox.python("1 + 1")
    ok = done.value == "2" and done.interpreter is Interpreter.KEPT
    return Finding(ok, "after all that, a call works" if ok else f"a call ends with {done.outcome}")


def _maximum_life(spec: SandboxSpec, engine_url: str | None, harden: Harden) -> Check:
    short = spec.model_copy(update={"limits": spec.limits.model_copy(update={"max_life_s": 1.0})})
    began = time.monotonic()
    with closing(DockerSandbox.start(short, engine_url=engine_url, harden=harden)) as sandbox:
        try:
            sandbox.python("import time; time.sleep(10)", timeout_s=10)
        except SandboxLost:
            took_s = time.monotonic() - began
            return Check(check="life", ok=True, detail=f"a life of 1 s ended after {took_s:.1f} s")
    return Check(check="life", ok=False, detail="the sandbox outlived its maximum life")


PROBES: dict[str, Callable[[DockerSandbox], Finding]] = {
    "user": _user,
    "capabilities": _capabilities,
    "new privileges": _new_privileges,
    "system calls": _seccomp,
    "supervisor": _supervisor,
    "network": _network,
    "root": _root,
    "devices": _devices,
    "open files": _ulimits,
    "disk": _disk,
    "number of files": _files,
    "processes": _processes,
    "cpu": _cpu,
    "time": _time,
    "output": _output,
    "memory": _memory,
    "recovery": _recovery,
}
