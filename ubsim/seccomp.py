"""Answer some system calls of a program in its place: seccomp user notification.

``install`` puts a filter on the calling thread and on all that it starts: calls that open a generic netlink socket, or
send over any socket, are held until somebody answers. ``Listener`` is who answers.

Source: seccomp(2), seccomp_unotify(2); linux/seccomp.h, linux/bpf_common.h. Two architectures: x86-64 and arm64.
"""

import contextlib
import ctypes
import fcntl
import os
import struct
from dataclasses import dataclass
from socket import AF_NETLINK

from ubhost.kernel.netlink import NETLINK_GENERIC


@dataclass(frozen=True, slots=True)
class Machine:
    """What a filter must know of an architecture: its AUDIT_ARCH_*, and the numbers of system calls."""

    audit: int
    seccomp: int
    socket: int
    sendto: int
    sendmsg: int


MACHINES = {
    "x86_64": Machine(0xC000003E, seccomp=317, socket=41, sendto=44, sendmsg=46),
    "aarch64": Machine(0xC00000B7, seccomp=277, socket=198, sendto=206, sendmsg=211),
}

_MODE_FILTER, _NEW_LISTENER = 1, 8
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NR, _ARCH, _ARG0, _ARG2 = 0, 4, 16, 32  # offsets in struct seccomp_data

_RECV, _SEND, _ADDFD = 0xC0502100, 0xC0182101, 0x40182103
_NOTIF = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; nr, arch, instruction pointer, arguments
_RESPONSE = struct.Struct("=QqiI")  # id, value, -errno, flags
_FD = struct.Struct("=QIIII")  # id, flags, ours, theirs, its flags
_GO_ON = 1
PIDFD_GETFD = 438

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def machine() -> Machine | None:
    """Return ours, ``None`` for an architecture that we have no numbers of."""
    return MACHINES.get(os.uname().machine)


def install(here: Machine) -> int:
    """Filter the calling thread from now on; return the descriptor to listen on. Needs CAP_SYS_ADMIN."""
    code = ctypes.c_char_p(_filter(here))
    program = _Program(len(_filter(here)) // 8, code)
    listener = int(
        _libc.syscall(ctypes.c_long(here.seccomp), ctypes.c_uint(_MODE_FILTER), ctypes.c_uint(_NEW_LISTENER),
                      ctypes.byref(program))
    )  # fmt: skip
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def _filter(here: Machine) -> bytes:
    """Classic BPF; jumps count the instructions that they pass over."""
    lines = (
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 0, 9, here.audit),
        (_LOAD, 0, 0, _NR),
        (_EQUAL, 2, 0, here.socket),
        (_EQUAL, 5, 0, here.sendmsg),
        (_EQUAL, 4, 5, here.sendto),
        (_LOAD, 0, 0, _ARG0),  # the family of a socket
        (_EQUAL, 0, 3, AF_NETLINK),
        (_LOAD, 0, 0, _ARG2),  # and its protocol
        (_EQUAL, 0, 1, NETLINK_GENERIC),
        (_RETURN, 0, 0, _NOTIFY),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that is held. ``pid`` is the thread's, in our PID namespace."""

    id: int
    pid: int
    number: int
    arguments: tuple[int, ...]


class Listener:
    """Takes held calls, and answers each once. A caller that died meanwhile is no error."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def take(self) -> Call:
        found = bytearray(_NOTIF.size)
        fcntl.ioctl(self._descriptor, _RECV, found)
        id_, pid, _, number, _, _, *arguments = _NOTIF.unpack(found)
        return Call(id_, pid, number, tuple(arguments))

    def go_on(self, call: Call) -> None:
        """Let the kernel do what was asked."""
        self._respond(_RESPONSE.pack(call.id, 0, 0, _GO_ON))

    def answer(self, call: Call, value: int) -> None:
        self._respond(_RESPONSE.pack(call.id, value, 0, 0))

    def fail(self, call: Call, errno: int) -> None:
        self._respond(_RESPONSE.pack(call.id, 0, -errno, 0))

    def answer_descriptor(self, call: Call, ours: int, flags: int) -> None:
        """Answer with a descriptor: ours, under a number that is free with them."""
        with contextlib.suppress(FileNotFoundError):
            number = fcntl.ioctl(self._descriptor, _ADDFD, bytearray(_FD.pack(call.id, 0, ours, 0, flags)))
            self.answer(call, number)

    def _respond(self, response: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was killed while it waited
            fcntl.ioctl(self._descriptor, _SEND, bytearray(response))


def taken_from(process: int, number: int) -> int:
    """Return, as one of ours, descriptor ``number`` of the process that ``process``, a pidfd, is of."""
    ours = int(_libc.syscall(ctypes.c_long(PIDFD_GETFD), ctypes.c_int(process), ctypes.c_int(number), ctypes.c_uint(0)))
    if ours < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ours
