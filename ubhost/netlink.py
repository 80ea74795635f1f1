"""Netlink messages as bytes: headers, attributes, acknowledgements. No socket here.

The same framing serves generic netlink (ubcore) and RDMA netlink, in the kernel and in the simulator. Numbers are
in the host's byte order, as the kernel's are.

Source: Linux include/uapi/linux/{netlink,genetlink}.h; netlink_ack() in net/netlink/af_netlink.c.
"""

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ubhost.errors import HostFault

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
GENERIC = struct.Struct("=BBH")  # command, version, reserved
ATTRIBUTE = struct.Struct("=HH")  # length, type
STATUS = struct.Struct("=i")

NLMSG_ERROR, NLMSG_DONE, NLMSG_MIN_TYPE = 2, 3, 0x10  # what is below is netlink's own
NLM_F_REQUEST, NLM_F_MULTI, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x2, 0x4, 0x300
NLM_F_CAPPED = 0x100  # in an acknowledgement: the request is not repeated in it
NLA_TYPE_MASK = 0x3FFF  # the two upper bits say "nested" and "network byte order"

MAX_MESSAGE = 64 << 10  # bytes; far above anything ubcore sends


class Malformed(HostFault):
    """Bytes that are not what they should be; ``code`` is the errno a kernel would answer them with."""

    def __init__(self, message: str, code: int = errno.EINVAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Frame:
    """One netlink message. ``kind`` is the family of a request, or NLMSG_*; ``port`` the sender's address."""

    kind: int
    body: bytes = b""
    flags: int = 0
    sequence: int = 0
    port: int = 0

    def encode(self) -> bytes:
        """Return the wire form, padded to 4 bytes as the next message would need it."""
        length = HEADER.size + len(self.body)
        return HEADER.pack(length, self.kind, self.flags, self.sequence, self.port) + self.body + _padding(length)

    @property
    def status(self) -> int:
        """The errno in an NLMSG_ERROR; 0 means acknowledged.

        Raises:
            Malformed: the message is too short to hold one.
        """
        if len(self.body) < STATUS.size:
            raise Malformed(f"netlink error message of {len(self.body)} bytes")
        return -int(STATUS.unpack_from(self.body)[0])


def frames(data: bytes) -> Iterator[Frame]:
    """Cut one datagram into its messages.

    Raises:
        Malformed: a header is cut off, or its length does not fit.
    """
    at = 0
    while at < len(data):
        if len(data) - at < HEADER.size:
            raise Malformed(f"{len(data) - at} bytes left where a netlink header should be")
        length, kind, flags, sequence, port = HEADER.unpack_from(data, at)
        if not HEADER.size <= length <= len(data) - at:
            raise Malformed(f"netlink message claims {length} bytes, {len(data) - at} are there")
        yield Frame(kind, data[at + HEADER.size : at + length], flags, sequence, port)
        at += _aligned(length)


def acknowledgement(request: bytes, code: int) -> bytes:
    """Return the NLMSG_ERROR that a kernel sends for ``request``: ``code`` is 0, or a positive errno.

    A refusal repeats the whole request, an acknowledgement only its header.
    """
    length, _, _, sequence, port = HEADER.unpack_from(request)
    repeated = request[:length] if code else request[: HEADER.size]
    flags = 0 if code else NLM_F_CAPPED
    return Frame(NLMSG_ERROR, STATUS.pack(-code) + repeated, flags, sequence, port).encode()


def attribute(kind: int, payload: bytes) -> bytes:
    """Return one attribute, padded to 4 bytes."""
    length = ATTRIBUTE.size + len(payload)
    return ATTRIBUTE.pack(length, kind) + payload + _padding(length)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return (type, payload) of every attribute; flag bits of the type are dropped.

    Raises:
        Malformed: a length does not fit.
    """
    at = 0
    while len(data) - at >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if not ATTRIBUTE.size <= length <= len(data) - at:
            raise Malformed(f"netlink attribute {kind & NLA_TYPE_MASK} claims {length} bytes, {len(data) - at} left")
        yield kind & NLA_TYPE_MASK, data[at + ATTRIBUTE.size : at + length]
        at += _aligned(length)


def _aligned(length: int) -> int:
    return length + 3 & ~3


def _padding(length: int) -> bytes:
    return bytes(-length % 4)
