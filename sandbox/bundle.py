"""How the guest travels: its source as one text, and the command that receives it.

The container's command is `BOOTSTRAP`; it reads a length and that many bytes of Python from its
stdin and runs them. So any image with Python >= 3.9 will do, and host and guest never differ.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import zlib
from functools import cache
from importlib import resources

from sandbox.errors import SandboxError
from sandbox.types import SandboxSpec

RELAY_UID = 65533
INSTALLED = "/usr/lib/caisson"  # where an image may have a compiled copy
RELAY_ADDRESS = "caisson-guest"

BOOTSTRAP = """\
import os
def r(n):
 b=b""
 while len(b)<n:
  c=os.read(0,n-len(b))
  if not c:os._exit(3)
  b+=c
 return b
exec(compile(r(int(r(9))),"<guest>","exec"))"""

# Runs inside, before anything else, also under a Python that is too old: keep its syntax plain.
# Every import here and in the guest is paid for by each cold start: importlib.abc and asyncio
# alone took 65 ms of CPU time.
LOADER = """\
import os, sys
if sys.version_info < (3, 9):
    said = '{"kind":"unsuitable","id":"","reason":"Python %s"}' % sys.version.split()[0]
    os.write(1, said.encode("ascii") + b"\\n")
    os._exit(4)
import gc
gc.disable()
def unpack():
    import base64, json, zlib
    from importlib.machinery import ModuleSpec
    sources = json.loads(zlib.decompress(base64.b64decode(PACKED)))
    class Source:
        def find_spec(self, name, path=None, target=None):
            if name in sources:
                return ModuleSpec(name, self, is_package=name == "caisson_guest")
        def create_module(self, spec):
            return None
        def exec_module(self, module):
            name = module.__name__
            exec(compile(sources[name], "<" + name + ">", "exec"), module.__dict__)
        def get_source(self, name):
            return sources[name]
    sys.meta_path.insert(0, Source())
def is_installed():
    try:
        with open(INSTALLED + "/digest") as digest:
            return digest.read() == DIGEST
    except OSError:
        return False
if is_installed():
    sys.path.insert(0, INSTALLED)
else:
    unpack()
from caisson_guest.greeting import confess, greet
opened = greet(CONFIG)
try:
    from caisson_guest.main import main
    gc.enable()
    main(CONFIG, opened)
except BaseException as error:
    confess(opened[1], error)
    raise
"""


def guest_command() -> list[str]:
    """The command of a container: isolated from its environment and from its folder.

    Without the site packages, which user code gets later (`guest.interpreter.prepare`): they are
    not needed to say hello.
    """
    return ["python3", "-I", "-S", "-c", BOOTSTRAP]


def relay_command() -> list[str]:
    """The command of a later link, run in the container as `RELAY_UID`."""
    return ["python3", "-I", "-S", "-c", _sources()["caisson_guest.relay"], RELAY_ADDRESS]


def luggage(config: dict[str, object]) -> bytes:
    """What the host sends first: a nine-digit length and the guest with its configuration."""
    text = "\n".join([_constants(), f"CONFIG = {config!r}", LOADER]).encode()
    return b"%08d\n" % len(text) + text


@cache
def _constants() -> str:
    """The guest, packed, and the digest by which an image's own copy is known to be the same."""
    sources = _sources()
    packed = base64.b64encode(zlib.compress(json.dumps(sources).encode())).decode()
    named = sorted((_file_name(name), text) for name, text in sources.items())
    text = b"".join(f"{name}\0{source}\0".encode() for name, source in named)
    digest = hashlib.sha256(text).hexdigest()
    return f"PACKED = {packed!r}\nDIGEST = {digest!r}\nINSTALLED = {INSTALLED!r}"


def _file_name(module: str) -> str:
    _, _, stem = module.partition(".")
    return f"{stem or '__init__'}.py"


def guest_config(
    spec: SandboxSpec, workspace: str, *, nonce: str, is_container: bool, door: str | None = None
) -> dict[str, object]:
    """What the guest has to know of its sandbox: plain values only.

    It begins with a hello with this nonce, to the host of the spec's generation.
    """
    limits = spec.limits
    return {
        "workspace": workspace,
        "own_cgroup": is_container,
        "relay_uid": RELAY_UID if is_container else None,
        "relay_address": RELAY_ADDRESS,
        "door": door,
        "nonce": nonce,
        "epoch": secrets.token_hex(8),
        "generation": spec.generation,
        "max_life_s": limits.max_life_s,
        "spare_s": spec.spare_s,
        "linger_s": spec.linger_s,
        "memory_bytes": limits.memory_bytes,
        "pids": limits.pids,
        "output_bytes": limits.output_bytes,
        "spill_bytes": limits.spill_bytes,
        "output_kill_bytes": limits.output_kill_bytes,
    }


@cache
def _sources() -> dict[str, str]:
    found = {}
    for file in resources.files("sandbox.guest").iterdir():
        stem, dot, suffix = file.name.rpartition(".")
        if (dot, suffix) == (".", "py"):
            name = "caisson_guest" if stem == "__init__" else f"caisson_guest.{stem}"
            found[name] = file.read_text(encoding="utf-8")
    if "caisson_guest.main" not in found:
        raise SandboxError("the guest's source is not in this installation; reinstall caisson")
    return found
