"""Hot-plug: the kernel's notices that a device came, went or changed.

    with Uevents(roots) as uevents:
        ...                                  # uevents.fileno() is readable when there is news
        batch = uevents.read()

A notice is a hint to look again, never the truth: some are lost when many come at once (``batch.lost``), the kernel
sends none for the state of a URMA port, and on a simulated host anybody who is root can send one. So a watcher looks
at sysfs after each batch, and once in ``BACK_STOP_S`` without one.

Source: Linux lib/kobject_uevent.c; reference/ub.md section 9.
"""

import contextlib
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ubhost.errors import HostFault
from ubhost.roots import Roots

NETLINK_KOBJECT_UEVENT = 15
KERNEL_GROUP = 1  # group 2 is udev's own
MAX_SIZE = 16 << 10  # bytes; the kernel's buffer is 2 KiB
RECEIVE_BUFFER = 1 << 20  # bytes, for many devices at once
BACK_STOP_S = 10

SUBSYSTEMS = frozenset({"ubcore", "ub", "obmm", "infiniband", "net", "node", "memory"})


@dataclass(frozen=True, slots=True)
class Uevent:
    """One notice. ``action`` is add, remove, change, move, online, offline, bind or unbind."""

    action: str
    path: str  # below /sys
    subsystem: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the device, as its folder is called."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Batch:
    """What came since the last look. ``lost``: there was more, so look at everything again."""

    events: tuple[Uevent, ...] = ()
    lost: bool = False


def parse(datagram: bytes) -> Uevent | None:
    """Return the notice in ``datagram``; ``None`` if it is none, such as udev's own messages."""
    head, *lines = datagram.decode("utf-8", "replace").split("\0")
    action, at, path = head.partition("@")
    properties = dict(line.split("=", 1) for line in lines if "=" in line)
    if not at or properties.get("ACTION") != action or properties.get("DEVPATH") != path:
        return None
    if not all(text.isprintable() for text in (head, *properties.values())):
        return None
    return Uevent(action, path, properties.get("SUBSYSTEM", ""), properties)


class Uevents:
    """A source of notices about ``subsystems``: the kernel's, or the simulator's on a simulated host.

    Raises:
        HostFault: the kernel refused the socket.
    """

    def __init__(self, roots: Roots, subsystems: frozenset[str] = SUBSYSTEMS) -> None:
        self._subsystems = subsystems
        self._simulator = roots.simulator / "uevents.sock"
        self._is_simulated = roots.simulator.is_dir()
        self._is_silent = False
        self._socket = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """A descriptor for poll(). It may be another one after a ``read``, when a simulator came back."""
        return self._socket.fileno()

    def read(self) -> Batch:
        """Return what has come; never waits. A simulator that is down is looked for again."""
        events: list[Uevent] = []
        if self._is_silent and self._reopen():
            return Batch(lost=True)
        while True:
            try:
                datagram, sender = self._socket.recvfrom(MAX_SIZE)
            except BlockingIOError:
                return Batch(tuple(events))
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return Batch(tuple(events), lost=True)
                raise HostFault(f"uevents: {error.strerror or error}") from error
            if not datagram and self._is_simulated:
                self._reopen()
                return Batch(tuple(events), lost=True)
            event = parse(datagram) if self._is_from_kernel(sender) else None
            if event is not None and event.subsystem in self._subsystems:
                events.append(event)

    def _is_from_kernel(self, sender: object) -> bool:
        """Any process may send to our netlink address; the kernel's own is 0."""
        return self._is_simulated or (isinstance(sender, tuple) and sender[0] == 0)

    def _reopen(self) -> bool:
        """Return whether somebody is there."""
        self._socket.close()
        self._socket = self._open()
        return not self._is_silent

    def _open(self) -> socket.socket:
        if not self._is_simulated:
            return _open_kernel()
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            door.connect(str(self._simulator))
        except OSError:  # down: be silent until a later read finds it back
            door.close()
            self._is_silent = True
            return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._is_silent = False
        return door


def _open_kernel() -> socket.socket:
    try:
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT
        )
        with contextlib.suppress(OSError):  # more than the usual limit needs CAP_NET_ADMIN
            sock.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BUFFER)  # SO_RCVBUFFORCE
        sock.bind((0, KERNEL_GROUP))
    except OSError as error:
        raise HostFault(f"cannot hear uevents: {error.strerror or error}") from error
    return sock
