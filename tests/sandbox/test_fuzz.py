"""Both ends of the protocol meet what the other may never say: no hang, no undocumented error."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox import bundle, protocol
from sandbox.errors import LinkLost, ProtocolError, SandboxError, SandboxUnavailable
from sandbox.guest import VERSION
from sandbox.guest.wire import Reader
from sandbox.link import SocketLink
from sandbox.session import Session
from sandbox.types import Execution, SandboxSpec

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["python", "hello", "a", "../x", "/etc/passwd", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def lines_of(frames):
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


# --- the guest, and a host that says anything -----------------------------------------------

KINDS = ["hello", "python", "shell", "recall", "cancel", "write", "read", "list", "?", ""]
FIELDS = {
    "id": st.sampled_from(["a", "b", "", "x" * 300]) | PLAIN,
    "nonce": st.text(max_size=5) | PLAIN,
    # Never so high that the test itself is out of date.
    "generation": st.integers(-5, 5) | st.text(max_size=3) | st.none() | st.floats(0, 5),
    "text": st.sampled_from(["1+1", "print(1)", "echo 1", "exit 3", "(", "\0", "a\0b", "\ud800"])
    | PLAIN,
    "timeout_s": st.sampled_from([0.2, 0, -1, 1e300]) | PLAIN,
    "ack": st.lists(st.sampled_from(["a", "b"]), max_size=3) | PLAIN,
    "name": st.sampled_from(["f", "d/f", "..", "/", "a\0b"]) | PLAIN,
    # Never so long that what follows, and is waited for, is taken for it.
    "payload": st.sampled_from([0, -1, 2**40, True]) | st.text(max_size=3) | st.none(),
    "data": st.sampled_from(["aGk=", "?", "aGk"]) | PLAIN,
    "offset": st.sampled_from([0, 1, -1, 2**70]) | PLAIN,
    "size": st.sampled_from([0, 10, -1, 2**40]) | PLAIN,
    "first": st.booleans() | PLAIN,
    "last": st.booleans() | PLAIN,
}
REQUEST = st.fixed_dictionaries({"kind": st.sampled_from(KINDS)}, optional=FIELDS)
NOISE = st.binary(max_size=200) | st.sampled_from(
    [b"{", b"[]\n", b"{}\n", b'{"kind":1}\n', b"\n" * 50]
)


class Guest:
    """A guest process, and everything that it has said."""

    def __init__(self, workspace):
        self.stream, theirs = socket.socketpair()
        command = [sys.executable, *bundle.guest_command()[1:]]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, cwd=workspace, start_new_session=True
        )
        theirs.close()
        spec = SandboxSpec(linger_s=0.0)
        config = bundle.guest_config(spec, str(workspace), nonce="0", is_container=False)
        self.stream.sendall(bundle.luggage(config))
        self.said = b""

    def ask_hello(self, nonce):
        """Say hello with the highest generation in use; returns whether it was answered."""
        self.stream.sendall(b"\n" + protocol.write("hello", nonce=nonce, generation=5))
        wanted = f'"nonce":"{nonce}"'.encode()
        self.stream.settimeout(10)
        while wanted not in self.said:
            data = self.stream.recv(1 << 20)
            if not data:
                return False
            self.said += data
        return True

    def close(self):
        self.stream.close()
        self.process.wait(10)


@pytest.fixture(scope="module")
def guest(tmp_path_factory):
    made = Guest(tmp_path_factory.mktemp("guest"))
    assert made.ask_hello("first")
    yield made
    made.close()
    assert made.process.returncode == 0


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(NOISE, REQUEST.map(lambda frame: lines_of([frame]))), max_size=8))
def test_a_guest_survives_whatever_a_host_says_and_says_only_what_the_protocol_knows(guest, parts):
    guest.said = b""
    guest.stream.sendall(b"".join(parts))
    nonce = f"n{time.monotonic_ns()}"
    assert guest.ask_hello(nonce)
    reader = Reader()
    reader.feed(guest.said)
    while (line := reader.line()) is not None:
        said = protocol.read(line)
        if isinstance(said, protocol.Data):
            assert reader.payload(said.payload) is not None


def test_a_line_over_the_limit_is_refused_and_the_next_one_served(guest):
    guest.said = b""
    guest.stream.settimeout(30)
    guest.stream.sendall(b"x" * 9_000_000 + b"\n")
    assert guest.ask_hello("after")
    assert b'"malformed"' in guest.said


# --- the host, and a guest that says anything -----------------------------------------------

B64 = st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())
BOUNDED = st.fixed_dictionaries({"head": B64, "tail": B64, "bytes": st.integers(0, 10**12)})
RESULT = st.fixed_dictionaries(
    {
        "kind": st.just("result"),
        "id": st.sampled_from(["ID", "other"]),
        "outcome": st.sampled_from(["ok", "error", "timeout", "oom", "killed", "exited"]),
        "exit_code": st.none() | st.integers(-300, 1100),
        "value": st.none() | BOUNDED,
        "output": BOUNDED,
        "output_file": st.none() | st.text(max_size=20),
        "spilled_bytes": st.integers(0, 100),
        "error": st.none()
        | st.fixed_dictionaries(
            {
                "type": st.text(max_size=10),
                "message": st.text(max_size=50),
                "line": st.none() | st.integers(-1, 10**6),
                "source": st.none() | st.text(max_size=20),
                "frames": st.lists(st.text(max_size=20), max_size=3),
                "facts": st.dictionaries(
                    st.text(max_size=5), st.lists(st.text(max_size=5), max_size=3), max_size=3
                ),
            }
        ),
        "duration_s": st.floats(-1, 1e10) | st.just(float("nan")),
        "cpu_s": st.floats(0, 1e10),
        "peak_memory_bytes": st.integers(-1, 2**64),
        "interpreter": st.sampled_from(["kept", "restarted", "none"]),
        "lost_names": st.lists(st.text(max_size=5), max_size=4),
        "files": st.lists(st.tuples(st.text(max_size=12), st.integers(-1, 10**15)), max_size=4),
        "background_processes": st.integers(-1, 100),
        "limits_met": st.lists(st.text(max_size=20), max_size=12),
    }
)
OTHERS = st.sampled_from(
    [
        {"kind": "running", "id": "ID"},
        {"kind": "unknown", "id": "ID"},
        {"kind": "malformed", "id": "ID", "reason": "why"},
        {"kind": "refused", "id": "ID", "reason": "why"},
        {"kind": "fault", "id": "ID", "reason": "why"},
        {"kind": "stale", "id": "", "seen": 7},
        {"kind": "data", "id": "ID", "payload": 0, "size": 0, "mtime_ns": 0},
        {"kind": "data", "id": "ID", "payload": 2**40, "size": 9, "mtime_ns": 0},
        {"kind": "written", "id": "ID", "size": 3},
        {"kind": "files", "id": "ID", "files": [["../../x", 1], ["ok", 2], ["a\nb", 3]]},
    ]
)


@st.composite
def mutated(draw):
    """A frame that is right but for one field, or not at all."""
    frame = dict(draw(RESULT | OTHERS))
    if draw(st.booleans()):
        frame[draw(st.sampled_from([*frame, "extra"]))] = draw(PLAIN)
    return frame


def converse(replies, ask):
    """Let a host ask something of a guest that says `replies`, and then hangs up."""
    ours, theirs = socket.socketpair()
    answering = threading.Thread(target=answer, args=(theirs, replies))
    answering.start()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())
    try:
        return ask(session)
    finally:
        session.close()
        answering.join(10)
        assert not answering.is_alive()


def answer(stream, replies):
    with closing(stream):
        stream.settimeout(10)
        request = b""
        while b"\n" not in request.lstrip():
            request += stream.recv(65536)
        asked = json.loads(request.lstrip().splitlines()[0]).get("id", "")
        try:
            stream.sendall(b"".join(replies).replace(b'"ID"', json.dumps(asked).encode()))
        except OSError:
            return  # the host has had enough


def test_a_good_answer_behind_a_bad_one_is_heard():
    def serve(stream):
        with closing(stream):
            nonce = json.loads(stream.recv(65536).splitlines()[-1])["nonce"]
            hello = {
                "kind": "hello",
                "nonce": nonce,
                "version": VERSION,
                "epoch": "",
                "python": "3",
            }
            stream.sendall(b"half\n" + lines_of([{**hello, "running": None, "finished": []}]))
            stream.recv(1)

    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=serve, args=(theirs,))
    serving.start()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())
    assert session.hello(5.0).python == "3"
    session.close()
    serving.join(10)


ASKS = {
    "execute": lambda session: session.execute("python", "1", 5.0, "run-1"),
    "recall": lambda session: session.recall("run-1"),
    "write": lambda session: session.write_file("f", io.BytesIO(b"x")),
    "read": lambda session: session.read_file("f", io.BytesIO()),
    "files": lambda session: session.files(),
    "hello": lambda session: session.hello(5.0),
}
FILE = b'{"kind":"data","id":"ID","payload":2,"size":2,"mtime_ns":0}\nhi'
REPLY = st.one_of(
    st.binary(max_size=100), st.just(FILE), mutated().map(lambda frame: lines_of([frame]))
)


@pytest.mark.parametrize("ask", ASKS)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(replies=st.lists(REPLY, max_size=5))
def test_a_host_survives_whatever_a_guest_says(ask, replies):
    try:
        found = converse(replies, ASKS[ask])
    except SandboxError:
        return
    if isinstance(found, Execution):
        found.model_dump_json().encode()
        assert "\0" not in found.output
        for file in found.files:
            assert ".." not in file.name.split("/")
            assert not file.name.startswith("/")


@pytest.mark.parametrize("piece", [b"x" * 65536, b'{"kind":"running","id":"other"}\n' * 2000])
def test_a_guest_that_talks_without_end_is_cut_off(piece):
    def flood(stream):
        with closing(stream):
            stream.recv(65536)
            try:
                while True:
                    stream.sendall(piece)
            except OSError:
                return

    ours, theirs = socket.socketpair()
    flooding = threading.Thread(target=flood, args=(theirs,))
    flooding.start()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())
    with pytest.raises(ProtocolError):
        session.execute("python", "1", 5.0, None)
    session.close()
    flooding.join(10)


@pytest.mark.parametrize("part", ['"k{}":0', "0"])
def test_a_frame_of_many_parts_is_refused_before_it_is_looked_at(part):
    inner = ",".join(part.format(i) for i in range(700_000))
    line = (
        f'{{"kind":"result",{inner}}}' if ":" in part else f'{{"kind":"files","files":[{inner}]}}'
    )
    began = time.process_time()
    with pytest.raises(ProtocolError, match="parts"):
        protocol.read(line.encode())
    assert time.process_time() - began < 1


def test_nothing_is_remembered_of_what_a_guest_said():
    def say(number):
        protocol.read(b'{"kind":"written","id":"%032d","size":1}' % number)

    tracemalloc.start()
    try:
        say(0)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2000):
            say(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000


def test_a_silent_guest_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr("sandbox.session.ENDING_S", 0.2)
    ours, theirs = socket.socketpair()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())
    began = time.monotonic()
    with pytest.raises(SandboxUnavailable, match="does not answer"):
        session.execute("python", "1", 0.2, None)
    assert time.monotonic() - began < 2
    session.close()
    theirs.close()


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=60)),
        min_size=1,
        max_size=8,
    ),
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=30),
)
def test_dockers_frames_are_taken_apart_however_they_are_cut(pieces, cuts):
    wire = b"".join(bytes([kind, 0, 0, 0]) + len(d).to_bytes(4, "big") + d for kind, d in pieces)
    expected = b"".join(data for kind, data in pieces if kind == 1)
    ours, theirs = socket.socketpair()
    with closing(SocketLink(ours, is_framed=True)) as link, theirs:
        position, got = 0, b""
        for cut in [*cuts, len(wire)]:
            theirs.sendall(wire[position : position + cut])
            position += cut
        while len(got) < len(expected):
            got += link.receive(time.monotonic() + 5)
    assert got == expected


def test_open_files_from_a_guest_hold_nobody_up():
    """A TCP socket that lingers makes whoever closes it last wait, for an hour if it is told so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        lingering = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 4))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lingering.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            lingering.send(b"x" * 65536)
    ours, theirs = socket.socketpair()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())
    for _ in range(2):  # one that is read, and one that is not
        socket.send_fds(theirs, [b"\n"], [lingering.fileno()])
    lingering.close()
    began = time.monotonic()
    with pytest.raises(ProtocolError, match="open files"):
        session.execute("python", "1", 5.0, None)
    session.close()
    assert time.monotonic() - began < 2
    theirs.close()
    peer.close()


def test_a_file_whose_reading_was_interrupted_is_not_taken_for_what_the_guest_says():
    forged = lines_of([{"kind": "stale", "id": "", "seen": 99}]) * 10
    header = {"kind": "data", "payload": len(forged), "size": len(forged), "mtime_ns": 0}
    ours, theirs = socket.socketpair()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())

    class Interrupted(Exception):
        pass

    def interrupted(deadline, receive=session.link.receive):
        data = receive(deadline)
        session._reader.feed(data[:-5])
        rest.append(data[-5:])
        raise Interrupted

    rest = []
    theirs.sendall(json.dumps({**header, "id": "other"}).encode() + b"\n" + forged)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.link, "receive", interrupted)
        with pytest.raises(Interrupted):
            session.read_file("f", io.BytesIO())
    theirs.close()
    with closing(session), contextlib.suppress(SandboxUnavailable):
        session._reader.feed(rest[0])
        assert session._next(time.monotonic() + 5).id == "other"
        assert session._reader.line() is None


def test_after_a_request_that_was_cut_off_nothing_more_is_said():
    ours, theirs = socket.socketpair()
    session = Session(SocketLink(ours, is_framed=False), SandboxSpec())
    send = session.link.send

    def interrupted(data, deadline):
        send(data[: len(data) // 2], deadline)
        raise KeyboardInterrupt

    with closing(theirs), closing(session), pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.link, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.write_file("f", io.BytesIO(b"x" * 1000))
        patch.undo()
        for ask in (session.files, session.cancel, session.hello):
            with pytest.raises(LinkLost, match="cut off"):
                ask()


def test_commas_in_names_and_texts_are_no_parts():
    files = [["," * 250 + str(number), 1] for number in range(600)]
    said = protocol.read(json.dumps({"kind": "files", "id": "a", "files": files}).encode())
    assert len(said.files) == 600
    with pytest.raises(ProtocolError, match="parts"):
        protocol.read(b'{"kind":"files","id":"\\",","files":[' + b"0," * 700_000 + b"0]}")
