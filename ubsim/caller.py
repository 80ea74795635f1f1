"""The process behind a connection to the simulated driver: who it is, its memory, its descriptors.

Some commands carry an address instead of a value. The driver copies from the caller's memory; the daemon, which is
another process, reads it through ``/proc``.

Source: unix(7) (SO_PEERCRED); proc(5) (``/proc/PID/mem``, ``/proc/PID/fd``).
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ubsim.ubcore import Refused

UCRED = struct.Struct("=iII")  # pid, uid, gid


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connected. A ``pid`` of 0 is a process that our PID namespace does not show."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> "Caller":
        pid, uid, _ = UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
        return cls(pid, uid)

    @classmethod
    def who_sent(cls, ancillary: Sequence[tuple[int, int, bytes]]) -> "Caller | None":
        """Return whom the kernel vouches for as the sender of one message: root may send for another process."""
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid, uid, _ = UCRED.unpack(data)
                return cls(pid, uid) if pid else None
        return None

    def to_send(self) -> tuple[int, int, bytes]:
        """The ancillary data that makes a message one of this process."""
        return socket.SOL_SOCKET, socket.SCM_CREDENTIALS, UCRED.pack(self.pid, self.uid, self.uid)

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    def netns(self) -> int:
        """Return the inode of the network namespace that the caller is in.

        Raises:
            Refused: ESRCH, it is gone.
        """
        try:
            return os.stat(f"/proc/{self.pid}/ns/net").st_ino  # noqa: PTH116
        except OSError as error:
            raise Refused(errno.ESRCH, f"process {self.pid} is gone") from error

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes of the caller's memory, as copy_from_user() would.

        Raises:
            Refused: EFAULT, they are not all there.
        """
        try:
            memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(memory, size, address)
            finally:
                os.close(memory)
        except (OSError, OverflowError) as error:
            raise Refused(errno.EFAULT, f"copy from user failed: {address:#x} of process {self.pid}") from error
        if len(found) < size:
            raise Refused(errno.EFAULT, f"copy from user failed: {size - len(found)} bytes at {address:#x}")
        return found

    @contextmanager
    def descriptor(self, number: int) -> Iterator[int]:
        """Open what the caller has open as ``number``.

        Raises:
            Refused: EBADF, it has nothing open there.
        """
        try:
            opened = os.open(f"/proc/{self.pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(errno.EBADF, f"process {self.pid} has no descriptor {number}") from error
        try:
            yield opened
        finally:
            os.close(opened)
