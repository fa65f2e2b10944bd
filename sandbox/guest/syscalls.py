"""A system-call filter for user code, on top of Docker's own.

The supervisor puts it in front of itself before it starts anything, and all that it starts inherits
it: installing it in each new process would take as long as starting one.

The kernel lets any process change the resource limits, priority and processors of another one of
the same user, and the supervisor is such a one: `prlimit(1, RLIMIT_NOFILE, (0, 0))` would end the
sandbox. A classic BPF program in front of these calls refuses them where they name the supervisor
(or everybody); where there is a zygote, a second program names that. It also refuses kinds of
sockets that no network namespace holds (AF_VSOCK reaches a virtual machine's host) and io_uring,
whose operations pass all such filters by.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16
X32_BIT = 0x40000000
IO_URING_SETUP = 425  # the same number everywhere
SOCKETS = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK


class Machine:
    """What differs by processor: its audit number and its numbers of the calls below.

    `by_pid` are those whose first argument is a process: prlimit64, sched_setaffinity,
    sched_setparam, sched_setscheduler and sched_setattr.
    """

    def __init__(self, audit: int, by_pid: tuple[int, ...], others: tuple[int, int, int]) -> None:
        self.audit = audit
        self.by_pid = by_pid
        self.setpriority, self.ioprio_set, self.socket = others


MACHINES = {
    "x86_64": Machine(0xC000003E, (302, 203, 142, 144, 314), (141, 251, 41)),
    "aarch64": Machine(0xC00000B7, (261, 122, 118, 119, 274), (140, 30, 198)),
}


class Rule:
    """Refuse `call` where an argument is among `values`, or (`allows`) where it is not."""

    def __init__(
        self, call: int, argument: int, values: tuple[int, ...], *, allows: bool = False
    ) -> None:
        self.call = call
        self.argument = argument
        self.values = values
        self.allows = allows


def _rules(machine: Machine, pid: int) -> list[Rule]:
    return [
        *(Rule(call, 0, (pid,)) for call in machine.by_pid),
        # The first argument says whether the second is a process, a group or a user.
        Rule(machine.setpriority, 1, (pid,)),
        Rule(machine.setpriority, 0, (0,), allows=True),
        Rule(machine.ioprio_set, 1, (pid,)),
        Rule(machine.ioprio_set, 0, (1,), allows=True),
        Rule(machine.socket, 0, SOCKETS, allows=True),
        Rule(IO_URING_SETUP, 0, (), allows=True),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _steps(rule: Rule) -> list[bytes]:
    """Compare, refuse, and load the call's number again for the next rule. Jumps are relative."""
    count = len(rule.values)
    compared = []
    for index, value in enumerate(rule.values):
        to_refusal = count - 1 - index
        if rule.allows:
            compared.append(_step(EQUAL, value, if_true=to_refusal + 1))
        else:
            is_last = to_refusal == 0
            compared.append(_step(EQUAL, value, if_true=to_refusal, if_false=int(is_last)))
    return [
        _step(EQUAL, rule.call, if_false=count + 3),
        _step(LOAD, ARGUMENTS_AT + 8 * rule.argument),  # the low half: none of these has another
        *compared,
        _step(RETURN, REFUSE | errno.EPERM),
        _step(LOAD, NUMBER_AT),
    ]


def program(machine: Machine, pid: int) -> bytes:
    """The filter as the kernel takes it; calls of another word size are refused as unknown."""
    steps = [
        _step(LOAD, MACHINE_AT),
        _step(EQUAL, machine.audit, if_true=1),
        _step(RETURN, REFUSE | errno.ENOSYS),
        _step(LOAD, NUMBER_AT),
        _step(AT_LEAST, X32_BIT, if_false=1),
        _step(RETURN, REFUSE | errno.ENOSYS),
    ]
    for rule in _rules(machine, pid):
        steps += _steps(rule)
    return b"".join([*steps, _step(RETURN, ALLOW)])


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def protect(pid: int) -> None:
    """Put the filter in front of this process and all that it starts; raises OSError.

    Does nothing on processors whose numbers are not known here; `caisson doctor` tells.
    """
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    steps = program(machine, pid)
    filter_ = _Program(len(steps) // 8, steps)
    for option, value, extra in (
        (PR_SET_NO_NEW_PRIVS, 1, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_)),
    ):
        if libc.prctl(option, value, extra, 0, 0):
            raise OSError(ctypes.get_errno(), "the system-call filter cannot be installed")
