"""RDMA netlink: who shares devices, which are here, and moving one to another network namespace.

Source: Linux include/uapi/rdma/rdma_netlink.h; drivers/infiniband/core/nldev.c.
"""

import errno
import os
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import Protocol

from ubhost.errors import HostFault
from ubhost.kernel.netlink import opened
from ubhost.netlink import (
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Frame,
    attribute,
    attributes,
)

NETLINK_RDMA = 20
CLIENT_NLDEV = 5
CMD_GET, CMD_SET, CMD_SYS_GET, CMD_SYS_SET = 1, 2, 6, 7
ATTR_DEV_INDEX, ATTR_DEV_NAME, ATTR_NETNS_MODE, ATTR_NET_NS_FD = 1, 2, 66, 68

_U8, _U32 = struct.Struct("=B"), struct.Struct("=I")


class Channel(Protocol):
    """A netlink socket in one namespace."""

    port: int

    def ask(self, request: bytes) -> list[Frame]: ...


Open = Callable[[int | None], AbstractContextManager[Channel]]
"""Opens a channel in a namespace (a descriptor), or in the calling thread's own."""


class Refused(HostFault):
    """RDMA netlink answered with an errno, kept in ``code``."""

    def __init__(self, what: str, code: int) -> None:
        name = errno.errorcode.get(code, str(code))
        super().__init__(f"the kernel refused {what}: {name} ({os.strerror(code)})")
        self.code = code


def open_kernel(netns: int | None) -> AbstractContextManager[Channel]:
    return opened(netns, NETLINK_RDMA)


def message_type(command: int) -> int:
    return CLIENT_NLDEV << 10 | command


class RdmaNetlink:
    """The RDMA devices of this kernel; safe to share between threads."""

    def __init__(self, open_channel: Open = open_kernel) -> None:
        self._open = open_channel
        self._sequence = count(1)

    def is_shared(self) -> bool:
        """Return whether every network namespace sees every device (the kernel's default)."""
        for frame in self._ask(CMD_SYS_GET, 0, b"", "to say who shares RDMA devices"):
            if mode := dict(attributes(frame.body)).get(ATTR_NETNS_MODE):
                return bool(mode[0])
        raise HostFault("the kernel did not say who shares RDMA devices: it is older than Linux 5.3")

    def set_shared(self, shared: bool) -> None:
        """Change it for the whole machine.

        Raises:
            Refused: EBUSY while another network namespace exists.
        """
        body = attribute(ATTR_NETNS_MODE, _U8.pack(shared))
        self._ask(CMD_SYS_SET, NLM_F_ACK, body, f"netns mode {'shared' if shared else 'exclusive'}")

    def devices(self, netns: int | None = None) -> dict[str, int]:
        """Return the index of every device that is seen in ``netns``, by name."""
        found = {}
        for frame in self._ask(CMD_GET, NLM_F_DUMP, b"", "to list RDMA devices", netns):
            values = dict(attributes(frame.body))
            if len(values.get(ATTR_DEV_INDEX, b"")) == _U32.size:
                name = values.get(ATTR_DEV_NAME, b"").rstrip(b"\0").decode("ascii", "replace")
                found[name] = int(_U32.unpack(values[ATTR_DEV_INDEX])[0])
        return found

    def move(self, index: int, to: int, *, inside: int | None = None) -> None:
        """Move the device that has ``index`` in namespace ``inside`` (or ours) to namespace ``to``.

        Raises:
            Refused: EOPNOTSUPP from a driver that cannot move, EINVAL in shared mode.
        """
        body = attribute(ATTR_DEV_INDEX, _U32.pack(index)) + attribute(ATTR_NET_NS_FD, _U32.pack(to))
        self._ask(CMD_SET, NLM_F_ACK, body, f"to move RDMA device {index}", inside)

    def _ask(self, command: int, flags: int, body: bytes, what: str, netns: int | None = None) -> list[Frame]:
        with self._open(netns) as channel:
            request = Frame(
                message_type(command), body, NLM_F_REQUEST | flags, next(self._sequence), channel.port
            ).encode()
            answer = channel.ask(request)
        code = answer[-1].status if answer[-1].kind == NLMSG_ERROR else 0
        if code:
            raise Refused(what, code) from OSError(code, os.strerror(code))
        return [frame for frame in answer if frame.kind not in (NLMSG_DONE, NLMSG_ERROR)]
