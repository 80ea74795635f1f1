"""A netlink socket: ask one question, hear the whole answer.

A socket belongs to the network namespace it was opened in, whoever uses it later.

Source: netlink(7); Linux include/uapi/linux/genetlink.h (CTRL_CMD_GETFAMILY).
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Self

from ubhost.errors import HostFault, NotFound
from ubhost.kernel.netns import visiting
from ubhost.netlink import (
    GENERIC,
    MAX_MESSAGE,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_MULTI,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Frame,
    Malformed,
    attribute,
    attributes,
    frames,
)

NETLINK_GENERIC = 16

GENL_ID_CTRL = 0x10
CTRL_CMD_GETFAMILY, CTRL_VERSION = 3, 2
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2


class Netlink:
    """One socket of one protocol, for one thread at a time."""

    def __init__(self, protocol: int, *, timeout_s: float = 10) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:
            raise HostFault(f"no netlink protocol {protocol} here: {error.strerror}") from error
        self._socket.settimeout(timeout_s)
        self._socket.bind((0, 0))
        self.port: int = self._socket.getsockname()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> list[Frame]:
        """Send one request and return every message of the answer, the last one included.

        The answer ends with an NLMSG_ERROR, an NLMSG_DONE, or, where no acknowledgement was asked for, the data.

        Raises:
            HostFault: the kernel could not be asked, or did not answer in time.
        """
        (sent,) = frames(request)
        heard: list[Frame] = []
        try:
            self._socket.send(request)
            while not _is_complete(sent, heard):
                datagram, (sender, _) = self._socket.recvfrom(MAX_MESSAGE)
                if sender == 0:  # only the kernel may answer
                    heard += [frame for frame in frames(datagram) if frame.sequence == sent.sequence]
        except OSError as error:
            raise HostFault(f"netlink: {error.strerror or error}") from error
        return heard

    def family(self, name: str) -> int:
        """Return the number of generic netlink family ``name``.

        Raises:
            NotFound: the kernel has no such family; its driver is not loaded.
        """
        body = GENERIC.pack(CTRL_CMD_GETFAMILY, CTRL_VERSION, 0)
        body += attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0")
        answer = self.ask(Frame(GENL_ID_CTRL, body, NLM_F_REQUEST, sequence=1, port=self.port).encode())[-1]
        if answer.kind == NLMSG_ERROR:
            raise NotFound(f"the kernel has no generic netlink family {name}: {os.strerror(answer.status)}")
        found = dict(attributes(answer.body[GENERIC.size :]))
        if len(found.get(CTRL_ATTR_FAMILY_ID, b"")) != 2:
            raise Malformed(f"the kernel described generic netlink family {name} without its number")
        return int(struct.unpack("=H", found[CTRL_ATTR_FAMILY_ID])[0])


@contextmanager
def opened(netns: int | None, protocol: int) -> Iterator[Netlink]:
    """Open a socket in a namespace (a descriptor), or in the calling thread's own; the thread goes there to open it."""
    with nullcontext() if netns is None else visiting(netns):
        there = Netlink(protocol)
    with there:
        yield there


def _is_complete(sent: Frame, heard: list[Frame]) -> bool:
    if not heard:
        return False
    last = heard[-1]
    wants_more = sent.flags & (NLM_F_ACK | NLM_F_DUMP) or last.flags & NLM_F_MULTI
    return last.kind in (NLMSG_ERROR, NLMSG_DONE) or not wants_more
