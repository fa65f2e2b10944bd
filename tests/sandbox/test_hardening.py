import json
import socket
import struct
import time
import uuid
from pathlib import Path, PurePosixPath

import docker
import pytest

from sandbox.errors import SpecInvalid
from sandbox.hardening import container_options
from sandbox.types import MIB, Limits, Mount, SandboxSpec

COMMAND = ["python3", "-I", "-c", "pass"]


def options(spec=None, **changes):
    return container_options(
        spec or SandboxSpec(**changes), command=COMMAND, deadline=1_800_000_000.5, uid=61184
    )


def host_config(spec=None, **changes):
    return options(spec, **changes)["HostConfig"]


def environment_of(body):
    return dict(entry.partition("=")[::2] for entry in body["Env"] if "=" in entry)


def test_the_defaults_close_everything():
    body = options()
    host = body["HostConfig"]
    assert body["User"] == "61184:61184"
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["ReadonlyRootfs"] is True
    assert host["Privileged"] is False
    assert host["IpcMode"] == "private"
    assert host["LogConfig"]["Type"] == "none"
    assert host["Devices"] == []
    assert host["Mounts"] == []
    assert "Binds" not in host
    assert "Runtime" not in host


def test_no_seccomp_profile_but_the_engines_own_is_named():
    assert not any("seccomp" in option for option in host_config()["SecurityOpt"])


def test_limits_reach_the_engine_and_swap_adds_nothing():
    limits = Limits(memory_bytes=256 * MIB, cpus=1.5, pids=40, open_files=200)
    host = host_config(limits=limits)
    assert host["Memory"] == host["MemorySwap"] == 256 * MIB
    assert host["NanoCpus"] == 1_500_000_000
    assert host["PidsLimit"] == 40
    ulimits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert ulimits == {
        "nofile": (200, 200),
        "core": (0, 0),
        "msgqueue": (0, 0),
        "fsize": (128 * MIB, 128 * MIB),
    }


def test_what_is_written_to_memory_fits_into_it():
    host = host_config(limits=Limits(memory_bytes=64 * MIB, inodes=500))
    sizes = [
        int(dict(part.partition("=")[::2] for part in text.split(","))["size"])
        for text in host["Tmpfs"].values()
    ]
    assert set(host["Tmpfs"]) == {"/workspace", "/tmp"}
    assert sum(sizes) + host["ShmSize"] < 64 * MIB * 3 / 4
    for text in host["Tmpfs"].values():
        assert {
            "nosuid",
            "nodev",
            "nr_inodes=500",
            "mode=0700",
            "uid=61184",
            "gid=61184",
        } <= set(text.split(","))


def test_a_workspace_that_would_eat_the_memory_is_refused_with_numbers():
    limits = Limits(memory_bytes=128 * MIB, workspace_bytes=200 * MIB)
    with pytest.raises(SpecInvalid, match=r"workspace \(200 MiB\).*96 MiB: raise the memory"):
        options(limits=limits)


@pytest.mark.parametrize(
    "network",
    ["host", "container:abc", "container:", "ns:/proc/1/ns/net", "", "-x", "a b", "none\n"],
)
def test_networks_that_end_the_isolation_are_refused(network):
    with pytest.raises(SpecInvalid, match="network"):
        options(network=network)


def test_a_named_network_is_used():
    assert host_config(network="egress_1.proxy")["NetworkMode"] == "egress_1.proxy"


def test_nothing_of_the_workers_environment_is_passed_on(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PAGER", "from-the-worker")
    body = options()
    assert "sk-secret" not in json.dumps(body)
    assert "from-the-worker" not in json.dumps(body)


def test_thread_pools_are_sized_by_the_cpu_limit():
    environment = environment_of(options(limits=Limits(cpus=2.5)))
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"
    assert environment["HOME"] == "/tmp"


def test_the_specs_own_variables_win():
    body = options(environment={"HOME": "/workspace", "A": "b=c", "PYTHONPATH": "/workspace/lib"})
    environment = environment_of(body)
    assert environment["HOME"] == "/workspace"
    assert environment["A"] == "b=c"
    assert environment["PYTHONPATH"] == "/workspace/lib"
    assert "PYTHONPATH" not in body["Env"]


def test_dangerous_variables_of_the_image_are_left_out():
    assert {"LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV"} <= set(options()["Env"])


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B", "A\n", "Ä", "A\0"])
def test_a_variable_with_an_odd_name_is_refused(name):
    with pytest.raises(SpecInvalid, match="no name for an environment variable"):
        options(environment={name: "x"})


def test_variables_that_no_process_could_be_started_with_are_refused():
    with pytest.raises(SpecInvalid, match="NUL"):
        options(environment={"A": "x\0y"})
    with pytest.raises(SpecInvalid, match="pass data as a file"):
        options(environment={"A": "x" * 200_000})


def test_the_image_decides_nothing():
    body = options()
    assert body["Cmd"] == COMMAND
    assert body["Entrypoint"] == [""]
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert body["WorkingDir"] == "/workspace"


def test_the_first_process_reads_a_pipe_that_ends_with_its_host():
    body = options()
    assert (body["OpenStdin"], body["StdinOnce"], body["Tty"]) == (True, True, False)


def test_labels_say_whose_it_is_and_until_when():
    assert options(job="j-1", generation=7, owner="host:123")["Labels"] == {
        "caisson.job": "j-1",
        "caisson.generation": "7",
        "caisson.owner": "host:123",
        "caisson.store": "",
        "caisson.deadline": "1800000001",
        "caisson.max_life_s": "3600",
    }


def test_a_mount_is_read_only_and_brings_nothing_mounted_below_it():
    mount = Mount(source=Path("/data/set"), target=PurePosixPath("/mnt/set"))
    assert host_config(mounts=(mount,))["Mounts"] == [
        {
            "Type": "bind",
            "Source": "/data/set",
            "Target": "/mnt/set",
            "ReadOnly": True,
            "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
        }
    ]


@pytest.mark.parametrize("target", ["/", "/mnt", "/tmp/x", "/proc", "/mnt/../etc", "mnt/x"])
def test_a_mount_elsewhere_is_refused(target):
    mount = Mount(source=Path("/data"), target=PurePosixPath(target))
    with pytest.raises(SpecInvalid, match="below /mnt"):
        options(mounts=(mount,))


def test_volumes_of_the_image_are_covered_once():
    body = container_options(
        SandboxSpec(mounts=(Mount(source=Path("/d"), target=PurePosixPath("/mnt/d")),)),
        command=COMMAND,
        deadline=0,
        uid=61184,
        image_volumes=["/var/lib/db/", "/var/lib/db", "/workspace", "/tmp", "/mnt/d"],
    )
    covers = [mount for mount in body["HostConfig"]["Mounts"] if mount["Type"] == "tmpfs"]
    assert [(cover["Target"], cover["ReadOnly"]) for cover in covers] == [("/var/lib/db", True)]


@pytest.mark.parametrize("uid", [0, -1, 2**31])
def test_a_privileged_user_is_refused(uid):
    with pytest.raises(SpecInvalid, match="unprivileged"):
        container_options(SandboxSpec(), command=COMMAND, deadline=0, uid=uid)


def test_less_cpu_than_the_engine_takes_is_refused():
    with pytest.raises(SpecInvalid, match=r"0\.01"):
        options(limits=Limits(cpus=0.001))


def test_a_runtime_is_passed_on():
    assert host_config(runtime="runsc")["Runtime"] == "runsc"


# ---- against a real engine ----------------------------------------------------------------

PROBE = r"""
import errno, json, os, resource, socket

def attempt(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "done"

def fill(path):
    block = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(block)

def crowd(folder):
    for number in range(10_000):
        open(f"{folder}/{number}", "w").close()

def connect():
    socket.create_connection(("1.1.1.1", 53), timeout=3).close()

status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status")
              if ":\t" in line)
os.makedirs("/tmp/crowd")
print(json.dumps({
    "ids": [os.getuid(), os.geteuid(), os.getgid()], "groups": os.getgroups(),
    "pid": os.getpid(), "cwd": os.getcwd(), "environment": dict(os.environ),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"], "seccomp": status["Seccomp"],
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "root": attempt(lambda: open("/probe", "w")),
    "var": attempt(lambda: open("/var/tmp/probe", "w")),
    "volume": attempt(lambda: open("/mnt/volume/probe", "w")),
    "mount": attempt(lambda: open("/mnt/data/probe", "w")),
    "mounted": open("/mnt/data/hello.txt").read(),
    "setuid": attempt(lambda: os.setuid(0)),
    "device": attempt(lambda: os.mknod("/tmp/device", 0o060600, os.makedev(8, 0))),
    "connect": attempt(connect),
    "inodes": attempt(lambda: crowd("/tmp/crowd")),
    "disk": attempt(lambda: fill("/workspace/full")),
    "stdin": os.read(0, 6).decode(),
}), flush=True)
os.read(0, 1)
"""


@pytest.fixture
def engine():
    client = docker.APIClient(timeout=60)
    yield client
    client.close()


@pytest.fixture
def start(engine, job, tmp_path):
    names = []

    def start(command, **arguments):
        names.append(f"caisson-test-{uuid.uuid4().hex[:12]}")
        (tmp_path / "hello.txt").write_text("hello")
        tmp_path.chmod(0o755)
        mount = Mount(source=tmp_path.resolve(), target=PurePosixPath("/mnt/data"))
        limits = Limits(memory_bytes=128 * MIB, inodes=1000, pids=20)
        body = container_options(
            SandboxSpec(job=job, limits=limits, mounts=(mount,)),
            command=command,
            deadline=time.time() + 60,
            uid=61184,
            **arguments,
        )
        engine.create_container_from_config(body, names[-1])
        stream = engine.attach_socket(
            names[-1], params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        engine.start(names[-1])
        return names[-1], stream

    yield start
    for name in names:
        engine.remove_container(name, v=True, force=True)


def read_frame(stream):
    """One message of the attached stream: the engine puts 8 bytes before each piece."""
    size = struct.unpack(">xxxxI", read_exactly(stream, 8))[0]
    return read_exactly(stream, size)


def read_exactly(stream, size):
    data = b""
    while len(data) < size:
        piece = stream._sock.recv(size - len(data))
        assert piece, f"the stream ended after {data!r}"
        data += piece
    return data


def read_line(stream):
    data = b""
    while not data.endswith(b"\n"):
        data += read_frame(stream)
    return data


@pytest.fixture
def probed(engine, start):
    name, stream = start(["python3", "-c", PROBE], image_volumes=["/mnt/volume"])
    stream._sock.settimeout(30)
    stream._sock.sendall(b"hello\n")
    report = json.loads(read_line(stream))
    yield report, engine.inspect_container(name)
    stream._sock.shutdown(socket.SHUT_RDWR)
    stream._response.close()


@pytest.mark.engine
def test_the_engine_enforces_what_the_options_say(probed):
    seen, container = probed
    assert seen["ids"] == [61184] * 3
    assert set(seen["groups"]) <= {61184}
    assert seen["pid"] == 1
    assert seen["cwd"] == "/workspace"
    assert seen["interfaces"] == ["lo"]
    assert set(seen["capabilities"]) == {"0" * 16}
    assert seen["no_new_privileges"] == "1"
    assert seen["seccomp"] == "2"
    assert seen["nofile"] == [1024, 1024]
    assert seen["core"] == [0, 0]
    assert seen["stdin"] == "hello\n"
    assert seen["mounted"] == "hello"
    refused = {name: seen[name] for name in ("root", "var", "volume", "mount", "setuid", "device")}
    assert refused == {
        "root": "EROFS",
        "var": "EROFS",
        "volume": "EROFS",
        "mount": "EROFS",
        "setuid": "EPERM",
        "device": "EPERM",
    }
    assert seen["connect"] == "ENETUNREACH"
    assert seen["inodes"] == "ENOSPC"
    assert seen["disk"] in {"ENOSPC", "EFBIG"}
    assert container["HostConfig"]["OomKillDisable"] in {None, False}
    assert [mount["RW"] for mount in container["Mounts"]] == [False, False]


@pytest.mark.engine
def test_the_environment_inside_is_ours_and_the_images_path(probed):
    seen, _ = probed
    assert seen["environment"]["HOME"] == "/tmp"
    assert "/usr/bin" in seen["environment"]["PATH"]
    assert not {"LD_PRELOAD", "PYTHONPATH"} & set(seen["environment"])
    assert not {"OPENAI_API_KEY", "CAISSON_DATA_DIR"} & set(seen["environment"])
