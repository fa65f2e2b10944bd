"""Docker's API as the drivers use it: each call with its failures told apart.

One `Engine` belongs to one thread: the HTTP session under it is not made for two.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import kwargs_from_env

from sandbox.errors import (
    EngineUnavailable,
    GuestTimeout,
    ImageMissing,
    ImageUnsuitable,
    SandboxLost,
    SpecInvalid,
)
from sandbox.link import SocketLink

DEFAULT_URL = "unix:///var/run/docker.sock"
CHECK_HOST = "check DOCKER_HOST (unix:///path or tcp://host:port)"
TIMEOUT_S = 60
QUICK_S = 15
CONNECT_S = 5
NEWEST_API = "1.44"  # what this code was written for; an older engine's own is used
REMEDIES = (  # by the engine's own words, what to change
    (r"Range of CPUs", "; change `cpus`"),
    (r"network \S+ not found", "; change `network` (docker network ls lists those there are)"),
    (r"[Uu]nknown.* runtime", "; change `runtime` (docker info lists those there are)"),
    (r"[Mm]emory limit", "; change `memory`"),
)
GONE = (404, 409)  # not there any more, or somebody else is removing it


class Engine:
    """A connection to one Docker engine; raises `EngineUnavailable` if none answers."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        with self._translated():
            _knock(self.url)
            settings = {**_tls(), "base_url": self.url}
            version = _negotiated(self.url)
            self._client: Any = docker.APIClient(**settings, version=version, timeout=TIMEOUT_S)
        self._identity = ""

    @property
    def is_local(self) -> bool:
        """Whether it may see this host's files; it does not where this host is a container."""
        return self.url.startswith("unix:")

    def describe(self) -> dict[str, Any]:
        """The engine's own account of itself (`GET /info`)."""
        with self._translated():
            return dict(self._client.info())

    def identity(self) -> str:
        """The engine's own id, by which hosts know that they mean the same one; asked for once."""
        if not self._identity:
            self._identity = str(self.describe()["ID"])
        return self._identity

    def image(self, name: str) -> dict[str, Any]:
        """Inspect an image; raises `ImageMissing`. Nothing is ever pulled."""
        with self._translated():
            try:
                return dict(self._client.inspect_image(name))
            except ImageNotFound as error:
                raise ImageMissing(
                    f"image {name!r} is not on this engine; build it with scripts/images, "
                    f"or run: docker pull {name}"
                ) from error

    def create(self, options: dict[str, object], name: str) -> str:
        """Create a container; returns its id."""
        with self._translated():
            try:
                made = self._client.create_container_from_config(options, name)
            except ImageNotFound as error:
                raise ImageMissing(f"image {options['Image']!r} is not on this engine") from error
            return str(made["Id"])

    def attach(self, container: str) -> SocketLink:
        """Open the container's stdin and stdout as a link."""
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        with self._translated():
            return _link(self._client.attach_socket(container, params=wanted))

    def start(self, container: str, image: str) -> None:
        """Start a container; raises `ImageUnsuitable` if its command is not in the image."""
        with self._translated():
            try:
                self._client.start(container)
            except APIError as error:
                why = str(error.explanation)
                if "python3" in why and re.search(r"executable file not found|no such file", why):
                    raise ImageUnsuitable(
                        f"image {image!r} has no python3 on its PATH; Python 3.9 or newer is needed"
                    ) from error
                raise

    def relay(self, container: str, command: list[str], uid: int) -> SocketLink:
        """Run `command` in a running container as `uid`, its stdin and stdout as a link.

        Raises `SandboxLost` if it does not run, `GuestTimeout` if it is paused.
        """
        with self._translated(), self._within(QUICK_S):
            try:
                made = self._client.exec_create(container, command, stdin=True, user=f"{uid}:{uid}")
                return _link(self._client.exec_start(made["Id"], socket=True))
            except APIError as error:
                if error.status_code not in GONE:
                    raise
                if "is paused" in str(error.explanation):
                    raise GuestTimeout("the container is paused") from error
                raise SandboxLost("the container is gone or does not run") from error

    def inspect(self, container: str) -> dict[str, Any] | None:
        """What the engine knows of a container, None if it is gone."""
        with self._translated(), self._within(QUICK_S):
            try:
                return dict(self._client.inspect_container(container))
            except NotFound:
                return None

    def state(self, container: str) -> dict[str, Any] | None:
        """The container's state, None if it is gone."""
        known = self.inspect(container)
        return None if known is None else dict(known["State"])

    def labelled(self, label: str) -> list[dict[str, Any]]:
        """All containers, running or not, that carry `label` (a name, or name=value)."""
        with self._translated():
            return list(self._client.containers(all=True, filters={"label": label}))

    def rename(self, container: str, name: str) -> None:
        """Give a container another name; one that is gone needs none."""
        with self._translated():
            try:
                self._client.rename(container, name)
            except APIError as error:
                if error.status_code not in GONE:
                    raise

    def remove(self, container: str) -> None:
        """Kill and remove a container; one that is gone already is what was wanted."""
        with self._translated():
            try:
                self._client.remove_container(container, force=True, v=True)
            except APIError as error:
                if error.status_code not in GONE:
                    raise

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _within(self, timeout_s: float) -> Iterator[None]:
        """Wait less long than usual for what takes milliseconds, also on a busy machine."""
        usual, self._client.timeout = self._client.timeout, timeout_s
        try:
            yield
        finally:
            self._client.timeout = usual

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Tell a refusal of ours from an engine that cannot be reached."""
        try:
            yield
        except APIError as error:
            why = str(error.explanation or error).strip()
            is_ours = error.status_code == 400 or re.match(r"network \S+ not found", why)  # noqa: PLR2004
            kind = SpecInvalid if is_ours else EngineUnavailable
            raise kind(f"the Docker engine refused: {why}{_remedy(why)}") from error
        except (DockerException, requests.RequestException, OSError, NameError) as error:
            # docker-py raises NameError for ssh:// where paramiko is not installed.
            remedy = "start one with scripts/engine" if self.url == DEFAULT_URL else CHECK_HOST
            raise EngineUnavailable(
                f"no Docker engine answers at {self.url} ({_cause(error)}); {remedy}"
            ) from error


def _remedy(why: str) -> str:
    """Name the setting whose value the engine does not take, if it is one."""
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, why)), "")


def _cause(error: BaseException) -> str:
    """Find the system's own words at the bottom of a chain of wrappers."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "not an address that can be used" if isinstance(error, NameError) else str(error)


def _tls() -> dict[str, Any]:
    """The client certificates that DOCKER_CERT_PATH and DOCKER_TLS_VERIFY name."""
    found = kwargs_from_env()
    return {key: value for key, value in found.items() if key == "tls"}


def _knock(url: str) -> None:
    """Fail at once where nobody listens: docker-py would leave the socket of its try open."""
    scheme, _, path = url.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(CONNECT_S)
            door.connect(path)


@cache
def _negotiated(url: str) -> str:
    """Ask an engine once for the API version that both sides speak."""
    # Not version="auto": a client that fails in its constructor leaves its socket open.
    client = docker.APIClient(base_url=url, version=NEWEST_API, timeout=CONNECT_S, **_tls())
    with closing(client):
        theirs = str(client.version(api_version=False)["ApiVersion"])
    return min(NEWEST_API, theirs, key=_as_numbers)


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _link(stream: Any) -> SocketLink:  # noqa: ANN401 - docker-py gives a type for each transport
    """Take the socket out of what docker-py returns, and all that keeps it open."""
    raw = getattr(stream, "_sock", stream)
    if not hasattr(raw, "recv"):
        raise EngineUnavailable(f"the engine's connection cannot be used ({type(raw).__name__})")
    response = getattr(stream, "_response", None)
    holders = [holder for holder in (response, stream) if holder is not None and holder is not raw]
    return SocketLink(raw, is_framed=True, holders=holders)
