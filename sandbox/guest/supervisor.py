"""The first process of a sandbox: serves one host at a time and outlives whatever code does.

One thread, one loop; nothing in it waits for a peer or for user code, and what comes before and
after a call has bounds of its own. At most one call runs; its time limit, memory, output and end
are judged here and not by the process that user code owns.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time

from . import VERSION, files, processes, shell, wire
from .calls import MIB, Call, Exit, Stage, outcome_of, read_exit, why_it_ended
from .interpreter import KernelProcess, prepare
from .links import Links, watch_writing
from .memory import Counters
from .outputs import Outputs
from .results import Results
from .spawn import spawn
from .wire import Channel, Frame, Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .zygote import Zygote

SAMPLE_S = 0.05
IDLE_S = 1.0
KILL_AGAIN_S = 2.0
ONE_EACH = 2  # threads of this process and of the kernel, together
LONELY_S = 5.0  # without a host, before there is a job that somebody might go on with
MAX_ID = 200
MAX_NAME = 4096


class Conflict(Exception):
    """The request is well formed and will not be done; the text says why."""


class Supervisor:
    """See the module; `config` is the first thing the host sends."""

    def __init__(self, config: dict[str, Any], first_link: Channel, listener: int | None) -> None:
        self._config = config
        self._workspace: str = config["workspace"]
        self._generation: int = config["generation"]
        life_s = config["max_life_s"]
        if not self._generation:  # its life begins with its job
            life_s = config["spare_s"] or life_s
        self._ends_at: float = time.monotonic() + life_s
        self._counters = Counters(own_cgroup=config["own_cgroup"])
        self._selector = selectors.DefaultSelector()
        self._results = Results()
        self._snapshot = files.snapshot(self._workspace)
        self._number = 0
        self._is_prepared = False
        self._call: Call | None = None
        self._kernel: KernelProcess | None = None
        self._zygote: Zygote | None = None
        self._preloading: str | None = None  # the request that waits for the zygote
        self._lost: list[str] | None = None
        self._outputs = Outputs(
            self._selector, self._workspace, config["output_bytes"], config["spill_bytes"]
        )
        self._handlers: dict[str, Callable[[Frame], None]] = {
            "python": self._on_execute,
            "shell": self._on_execute,
            "recall": self._on_recall,
            "cancel": self._on_cancel,
            "write": self._on_write,
            "read": self._on_read,
            "list": self._on_list,
            "preload": self._on_preload,
        }
        self._wake_on_children()
        self._links = Links(self._selector, self._on_frame)
        if listener is not None:
            self._links.listen(listener, config["relay_uid"])
        self._links.add(first_link)
        self._links.make_current(first_link, self._stale())

    # --- the loop -------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until the maximum life is over, or no host has come back."""
        self._replace_kernel()
        while not self._is_over():
            for key, events in self._selector.select(self._patience()):
                if self._is_watched(key):
                    key.data(events)
            self._links.tend()
            self._watch_call()

    def _is_watched(self, key: selectors.SelectorKey) -> bool:
        """Whether no earlier event of the same round has closed this descriptor."""
        now = self._selector.get_map().get(key.fd)
        return now is not None and now.data is key.data

    def _is_over(self) -> bool:
        now = time.monotonic()
        alone_since = self._links.alone_since
        linger_s = float(self._config["linger_s"]) if self._generation else LONELY_S
        if alone_since is not None and now - alone_since > linger_s:
            return True
        return now > self._ends_at

    def _patience(self) -> float:
        if self._call is None:
            return IDLE_S
        return max(0.0, min(SAMPLE_S, self._call.deadline - time.monotonic()))

    def _wake_on_children(self) -> None:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._selector.register(read_fd, selectors.EVENT_READ, lambda _events: self._reap(read_fd))

    # --- requests -------------------------------------------------------------------------

    def _on_frame(self, link: Channel, frame: Frame) -> None:
        try:
            self._dispatch(link, frame)
        except Malformed as error:
            self._decline(link, "malformed", frame, error)
        except files.Refused as error:
            self._decline(link, "refused", frame, error)
        except Conflict as error:
            self._decline(link, "conflict", frame, error)
        except OSError as error:  # no memory, process or descriptor to be had, even after cleaning
            self._decline(link, "fault", frame, f"there is no room left: {error}")

    def _decline(self, link: Channel, kind: str, frame: Frame, why: Exception | str) -> None:
        execution_id = frame.get("id")
        known = execution_id if isinstance(execution_id, str) else ""
        self._links.say(link, {"kind": kind, "id": known[:MAX_ID], "reason": str(why)})

    def _dispatch(self, link: Channel, frame: Frame) -> None:
        generation = int(wire.number(frame, "generation", 0, 2**62))
        if generation < self._generation:
            self._links.say(link, self._stale())
        elif frame["kind"] == "hello":
            self._on_hello(link, wire.text(frame, "nonce", MAX_ID), generation)
        elif link is not self._links.current:
            raise Malformed("say hello first")
        elif frame["kind"] not in self._handlers:
            raise Malformed("unknown kind: " + frame["kind"][:MAX_ID])
        else:
            self._handlers[frame["kind"]](frame)

    def _stale(self) -> Frame:
        return {"kind": "stale", "id": "", "seen": self._generation}

    def _on_hello(self, link: Channel, nonce: str, generation: int) -> None:
        if self._generation == 0 and generation > 0:  # its life begins with its job
            self._ends_at = time.monotonic() + self._config["max_life_s"]
        self._generation = generation
        self._links.make_current(link, self._stale())
        answer = {
            "kind": "hello",
            "nonce": nonce,
            "version": VERSION,
            "epoch": self._config["epoch"],
            "python": sys.version.split()[0],
            "running": self._call.id if self._call else None,
            "finished": self._results.finished,
        }
        self._links.say(link, answer)
        if self._call is None and self._preloading is None:
            self._replace_kernel()

    def _on_preload(self, frame: Frame) -> None:
        """Load libraries for this and all later kernels, before there is anything to lose."""
        names = wire.texts(frame, "names")
        asked = wire.text(frame, "id", MAX_ID)
        if self._number:
            raise Conflict("a call was begun already")
        if self._preloading is not None:
            raise Conflict("libraries are being loaded already")
        if self._kernel is not None:
            self._kernel.kill()
        self._lose_kernel()
        self._lost = None
        self._have_zygote().load(names)
        self._preloading = asked

    def _on_zygote(self, zygote: Zygote) -> None:
        """The libraries are loaded, or it has ended over them, or later."""
        if zygote is not self._zygote:
            return
        asked, self._preloading = self._preloading, None
        failed = None if asked is None else zygote.hear()
        if failed is None:
            self._lose_zygote()
        if asked is None:
            return
        if failed is None:
            limit = "{:g} MiB".format(self._config["memory_bytes"] / MIB)
            reason = "a process ended while libraries were loaded, probably for want of memory: "
            self._answer({"kind": "fault", "id": asked, "reason": reason + "the limit is " + limit})
            return
        self._answer({"kind": "preloaded", "id": asked, "failed": failed})
        if self._generation:  # else it has no job yet, and without a kernel it takes less memory
            self._replace_kernel()

    def _on_execute(self, frame: Frame) -> None:
        execution_id = wire.text(frame, "id", MAX_ID)
        text = wire.text(frame, "text", wire.MAX_FRAME)
        if "\0" in text:
            raise Malformed("text holds a NUL character")
        timeout_s = wire.number(frame, "timeout_s", 0, 10**6)
        self._results.acknowledge(wire.texts(frame, "ack"))
        known = self._known(execution_id)
        if known is not None:
            self._answer(known)
        elif self._call is not None:
            raise Conflict(f"busy: {self._call.id} is running")
        elif self._results.is_full:
            raise Conflict("too many results are not acknowledged")
        else:
            self._begin(frame["kind"], execution_id, text, timeout_s)

    def _known(self, execution_id: str) -> Frame | None:
        """What to say of an id that has been here before."""
        if self._call is not None and self._call.id == execution_id:
            return {"kind": "running", "id": execution_id}
        if self._results.is_acknowledged(execution_id):
            raise Conflict("already acknowledged: " + execution_id)
        return self._results.get(execution_id)

    def _on_recall(self, frame: Frame) -> None:
        execution_id = wire.text(frame, "id", MAX_ID)
        self._answer(self._known(execution_id) or {"kind": "unknown", "id": execution_id})

    def _on_cancel(self, _frame: Frame) -> None:
        if self._call is not None:
            self._call.interrupt("killed")

    def _on_write(self, frame: Frame) -> None:
        data = frame.get("data")
        if not isinstance(data, bytes):
            raise Malformed("a write comes with a payload")
        is_first = frame.get("first") is True
        size = files.write(
            self._workspace, wire.text(frame, "name", MAX_NAME), data, first=is_first
        )
        if frame.get("last") is True:  # the host's own files are no news to it
            self._snapshot = files.snapshot(self._workspace)
        self._answer({"kind": "written", "id": wire.text(frame, "id", MAX_ID), "size": size})

    def _on_read(self, frame: Frame) -> None:
        offset = int(wire.number(frame, "offset", 0, 2**62))
        size = int(wire.number(frame, "size", 0, wire.MAX_PAYLOAD))
        chunk = files.read(self._workspace, wire.text(frame, "name", MAX_NAME), offset, size)
        answer = {
            "kind": "data",
            "id": wire.text(frame, "id", MAX_ID),
            "payload": len(chunk.data),
            "size": chunk.size,
            "mtime_ns": chunk.mtime_ns,
        }
        self._answer(answer, chunk.data)

    def _on_list(self, frame: Frame) -> None:
        listing = files.listing(self._workspace)
        self._answer({"kind": "files", "id": wire.text(frame, "id", MAX_ID), "files": listing})

    def _answer(self, frame: Frame, payload: bytes = b"") -> None:
        self._links.say(self._links.current, frame, payload)

    # --- a call from its beginning to its end ---------------------------------------------

    def _begin(self, kind: str, execution_id: str, text: str, timeout_s: float) -> None:
        self._number += 1
        launch = self._launch_python if kind == "python" else self._launch_shell
        try:
            self._call = launch(execution_id, text, timeout_s)
        except OSError:  # earlier calls have left too much behind: make room, try once more
            self._lose_kernel()
            self._kill_users()
            processes.wait_for_children(self._processes_of(self._zygote))
            self._call = launch(execution_id, text, timeout_s)

    def _launch_python(self, execution_id: str, text: str, timeout_s: float) -> Call:
        kernel = self._kernel or self._start_kernel()
        kernel.capture.drain()
        kernel.capture.begin(self._number)
        call = Call("python", execution_id, self._number, timeout_s, self._counters)
        call.attach(kernel.pid, kernel.capture, self._others())
        kernel.ask(text, self._number)
        self._watch_kernel(kernel)
        return call

    def _launch_shell(self, execution_id: str, text: str, timeout_s: float) -> Call:
        call = Call("shell", execution_id, self._number, timeout_s, self._counters)
        self._prepare()
        spared = self._others()
        capture = self._outputs.open(self._number)
        try:
            pid = spawn(lambda: shell.run(text), capture.write_fd, self._workspace)
        except OSError:
            self._outputs.close(capture)
            raise
        finally:
            capture.close_writer()
        call.attach(pid, capture, spared)
        return call

    def _watch_call(self) -> None:
        call = self._call
        if call is None:
            return
        call.sample()
        if call.capture.kept.total > self._config["output_kill_bytes"]:
            limit = "output limit of {:g} MiB".format(self._config["output_kill_bytes"] / MIB)
            call.interrupt("output_limit", limit)
        if time.monotonic() < call.deadline:
            return
        if call.stage is Stage.RUNNING:
            call.interrupt("timeout", f"time limit of {call.timeout_s:g} s")
        elif call.stage is Stage.INTERRUPTED:
            self._kill(call)
        else:  # it should be gone; whatever keeps it is not to be told apart from others
            call.deadline = time.monotonic() + KILL_AGAIN_S
            processes.kill_everything()

    def _kill(self, call: Call) -> None:
        call.stage, call.deadline = Stage.KILLED, time.monotonic() + KILL_AGAIN_S
        if call.kind == "python" or not processes.kill_others(call.spared):
            self._kill_users()

    def _reap(self, woken_fd: int) -> None:
        """Collect what has ended: the kernel, the shell, and orphans of either."""
        os.read(woken_fd, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_exit(pid, read_exit(status, usage))

    def _on_exit(self, pid: int, end: Exit) -> None:
        call = self._call
        if self._zygote is not None and pid == self._zygote.pid:
            self._on_zygote(self._zygote)
        elif self._kernel is not None and pid == self._kernel.pid:
            self._on_kernel_exit(self._kernel, end)
        elif call is not None and call.kind == "shell" and pid == call.pid:
            self._finish(call, {"exit": end, "cpu_s": end.cpu_s})

    def _on_kernel_exit(self, kernel: KernelProcess, end: Exit) -> None:
        self._on_kernel(kernel)  # it may have answered and then died
        kernel.capture.drain()
        self._lose_kernel()
        call = self._call
        if call is None or call.kind == "python":
            self._kill_users()  # what it started has lost its owner
        if call is not None and call.kind == "python":
            self._finish(call, {"exit": end, "cpu_s": max(0.0, end.cpu_s - kernel.cpu_s)})

    def _finish(self, call: Call, came: dict[str, Any]) -> None:
        """Settle a call's outcome, clean up after it, store its result and tell the host."""
        call.capture.drain()
        outcome, exit_code = outcome_of(call, came)
        if call.reason is not None and not processes.kill_others(call.spared):
            self._lose_kernel()
            self._kill_users()
        limits_met = self._limits_met(call, outcome)
        after = files.snapshot(self._workspace)
        frame = {
            "kind": "result",
            "id": call.id,
            "outcome": outcome,
            "exit_code": exit_code,
            "value": came.get("value"),
            "output": call.capture.kept.frame(),
            "output_file": call.capture.file,
            "spilled_bytes": call.capture.spilled,
            "error": why_it_ended(call, came, outcome, limits_met),
            "duration_s": time.monotonic() - call.started,
            "cpu_s": came["cpu_s"],
            "peak_memory_bytes": call.peak(),
            "interpreter": "kept" if self._lost is None else "restarted",
            "lost_names": self._lost or [],
            "files": files.changed(self._snapshot, after),
            "background_processes": self._count_background(),
            "limits_met": limits_met,
        }
        self._call, self._snapshot, self._lost = None, after, None
        if call.kind == "shell":
            self._outputs.retire(call.capture)
        self._results.keep(call.id, frame)
        self._answer(frame)
        self._replace_kernel()

    def _limits_met(self, call: Call, outcome: str) -> list[str]:
        met = list(call.limits_met)
        if outcome == "oom":
            met.append("memory limit of {:g} MiB".format(self._config["memory_bytes"] / MIB))
        if call.was_refused_a_process():
            met.append("process limit of {}".format(self._config["pids"]))
        return met

    def _count_background(self) -> int:
        own = {each.pid for each in (self._kernel, self._zygote) if each is not None}
        return sum(1 for process in self._others() if process.pid not in own)

    def _others(self) -> list[processes.Process]:
        """All other processes; nobody is looked at when there can be none but our own."""
        threads = ONE_EACH + (self._zygote.threads if self._zygote else 0)
        if self._kernel is not None and self._counters.tasks() == threads:
            return list(self._processes_of(self._kernel, self._zygote))
        return processes.table()

    def _processes_of(self, *own: KernelProcess | Zygote | None) -> set[processes.Process]:
        return {each.process for each in own if each is not None and each.process is not None}

    def _kill_users(self) -> None:
        """Kill all but the zygote; it as well where the others cannot be had otherwise."""
        spared = self._processes_of(self._zygote)
        if not spared or not processes.kill_others(spared):
            processes.kill_everything()

    # --- its own processes ----------------------------------------------------------------

    def _prepare(self) -> None:
        """Do once what all user code needs, confinement included; if it raises, none begins."""
        if not self._is_prepared:
            prepare()
            self._is_prepared = True

    def _start_kernel(self) -> KernelProcess:
        self._prepare()
        capture = self._outputs.open(self._number)
        try:
            kernel = KernelProcess(self._fork_kernel, self._config["output_bytes"], capture)
        except OSError:
            self._outputs.close(capture)
            raise
        finally:
            capture.close_writer()
        self._selector.register(
            kernel.channel.read_fd, selectors.EVENT_READ, lambda _events: self._on_kernel(kernel)
        )
        self._kernel = kernel
        return kernel

    def _fork_kernel(self, fds: list[int]) -> int:
        """Fork a kernel with the libraries where they are loaded; one without them elsewhere."""
        if self._zygote is not None and self._preloading is None:
            pid = self._zygote.fork(fds)
            if pid is not None:
                return pid
            self._lose_zygote()  # user code has stopped or ended it
        output_fd, *pipes = fds
        return spawn(lambda: self._be_kernel(*pipes), output_fd, self._workspace, tuple(pipes))

    def _be_kernel(self, request_fd: int, answer_fd: int) -> None:
        from . import kernel  # noqa: PLC0415 - not needed to say hello, and slow to compile

        processes.set_name("caisson-kernel")
        kernel.serve(request_fd, answer_fd, self._workspace, self._config["output_bytes"])

    def _have_zygote(self) -> Zygote:
        """The process for libraries; made for the first of them."""
        from .zygote import Zygote  # noqa: PLC0415 - not needed to say hello

        if self._zygote is None:
            self._prepare()
            zygote = self._zygote = Zygote(self._be_kernel, self._workspace)
            self._selector.register(
                zygote, selectors.EVENT_READ, lambda _events: self._on_zygote(zygote)
            )
        return self._zygote

    def _lose_zygote(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            self._unregister(zygote.fileno())
            zygote.end()

    def _replace_kernel(self) -> None:
        """Have a new interpreter ready for the next call, if the last one is gone."""
        if self._kernel is None:
            try:
                self._start_kernel()
            except OSError:
                return  # the next call makes room and tries again

    def _watch_kernel(self, kernel: KernelProcess) -> None:
        watch_writing(self._selector, kernel.channel, lambda _events: self._on_kernel(kernel))

    def _on_kernel(self, kernel: KernelProcess) -> None:
        if kernel is not self._kernel:
            return
        alive = kernel.read() and kernel.channel.flush()
        try:
            self._take_reply(kernel)
        except Malformed:
            alive = False
        if not alive:
            # It speaks out of turn or no more; `_reap` sees its end.
            self._forget_channel(kernel)
            kernel.kill()
        elif kernel is self._kernel:
            self._watch_kernel(kernel)

    def _take_reply(self, kernel: KernelProcess) -> None:
        call = self._call
        if call is not None and call.kind == "python":
            reply = kernel.take_reply(call.number)
            if reply is not None:
                self._finish(call, reply)

    def _lose_kernel(self) -> None:
        """Note what is gone with the kernel; its output may still be held by others."""
        kernel, self._kernel = self._kernel, None
        if kernel is None:
            return
        self._lost = kernel.names
        self._forget_channel(kernel)
        kernel.channel.close()
        self._outputs.retire(kernel.capture)

    def _forget_channel(self, kernel: KernelProcess) -> None:
        self._unregister(kernel.channel.read_fd)
        self._unregister(kernel.channel.write_fd)

    def _unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
