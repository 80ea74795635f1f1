"""Two ways to carry a ubcore message: to the kernel, or to the simulator that stands in for it.

Both carry the same bytes. The kernel looks a namespace descriptor up in the caller's table; a socket to the
simulator passes the descriptor itself (SCM_RIGHTS), and its number in the message means nothing. An address in a
message is one in our memory: the kernel reads there, and so does the simulator.

Source: design section 3; netlink(7), unix(7).
"""

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ubhost.errors import HostFault, Unsupported
from ubhost.kernel.netlink import NETLINK_GENERIC, Netlink
from ubhost.netlink import MAX_MESSAGE, Frame, frames
from ubhost.ubcore.message import FAMILY_NAME

SIMULATED_FAMILY = 0x20
"""The number of family UBCORE_GENL at the simulator; a kernel deals numbers out from 0x10 upward."""


class Channel(Protocol):
    """An open way to the driver, for one conversation."""

    family: int
    port: int

    def ask(self, request: bytes, netns: int | None = None) -> list[Frame]:
        """Send one message, with the descriptor it speaks of, and return the whole answer."""


Connect = Callable[[], AbstractContextManager[Channel]]


class KernelChannel:
    """The ubcore driver of this kernel, in the network namespace of the calling thread.

    Raises:
        NotFound: the driver is not loaded.
    """

    def __init__(self, family_name: str = FAMILY_NAME) -> None:
        self._netlink = Netlink(NETLINK_GENERIC)
        try:
            self.family = self._netlink.family(family_name)
        except BaseException:
            self._netlink.__exit__(None, None, None)
            raise
        self.port = self._netlink.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._netlink.__exit__(kind, error, trace)

    def ask(self, request: bytes, netns: int | None = None) -> list[Frame]:
        return self._netlink.ask(request)


class SimulatorChannel:
    """The simulator's daemon behind ``kernel.sock`` (SOCK_SEQPACKET): one request, one answer.

    Raises:
        Unsupported: nobody listens; this host is not simulated, or its simulator is down.
    """

    family = SIMULATED_FAMILY

    def __init__(self, path: Path, *, timeout_s: float = 60) -> None:  # the kernel it acts for may be slow
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise Unsupported(f"no simulator answers at {path}: {error.strerror or error}") from error
        self.port = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: bytes, netns: int | None = None) -> list[Frame]:
        try:
            socket.send_fds(self._socket, [request], [] if netns is None else [netns])
            answer = self._socket.recv(MAX_MESSAGE)
        except OSError as error:
            raise HostFault(f"simulator at {self._path}: {error.strerror or error}") from error
        if not answer:
            raise HostFault(f"simulator at {self._path} hung up without an answer")
        return list(frames(answer))
