"""Generic netlink as a program on a simulated node finds it: one family, ``UBCORE_GENL``, and the node's driver.

The program gets a real netlink socket, of the protocol for user space (NETLINK_USERSOCK), so that binding, polling and
receiving are the kernel's. What it sends is taken to the node's driver, and the answers are sent to its socket.

Source: netlink(7); linux/genetlink.h; net/netlink/genetlink.c (ctrl_fill_info).
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ubhost.kernel.netlink import (
    CTRL_ATTR_FAMILY_ID,
    CTRL_ATTR_FAMILY_NAME,
    CTRL_CMD_GETFAMILY,
    CTRL_VERSION,
    GENL_ID_CTRL,
)
from ubhost.netlink import (
    GENERIC,
    MAX_MESSAGE,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_MULTI,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_MIN_TYPE,
    STATUS,
    Frame,
    Malformed,
    acknowledgement,
    attribute,
    attributes,
    frames,
)
from ubhost.ubcore.message import FAMILY_NAME, FAMILY_VERSION, Attribute
from ubhost.ubcore.transport import SIMULATED_FAMILY
from ubsim import seccomp
from ubsim.caller import Caller
from ubsim.ubcore import Refused

NETLINK_USERSOCK = 2
CTRL_CMD_NEWFAMILY = 1
CTRL_ATTR_VERSION, CTRL_ATTR_HDRSIZE, CTRL_ATTR_MAXATTR = 3, 4, 5
MSGHDR = struct.Struct("=QI4xQQ")  # name, its length, parts, their number; what follows is for descriptors
IOVEC = struct.Struct("=QQ")
MAX_PARTS = 64
NUMBER = struct.Struct("=H")
LONGEST_NAME = 16  # GENL_NAMSIZ, its end counted


class GenericNetlink:
    """Answers the held calls of one program. ``driver`` is the door of the node's driver."""

    def __init__(self, listener: seccomp.Listener, here: seccomp.Machine, driver: Path) -> None:
        self._listener = listener
        self._here = here
        self._driver = driver
        self._sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_USERSOCK)
        self._sender.bind((0, 0))
        self._given: dict[str, socket.socket] = {}  # the program's sockets, by what /proc calls them

    def fileno(self) -> int:
        return self._listener.fileno()

    def serve(self) -> None:
        """Answer one call."""
        call = self._listener.take()
        try:
            if call.number == self._here.socket:
                self._open(call)
            elif (given := self._given.get(_name(f"/proc/{call.pid}/fd/{call.arguments[0]}"))) is None:
                self._listener.go_on(call)
            else:
                self._send(call, given)
        except OSError as error:
            self._listener.fail(call, error.errno or errno.EIO)

    def _open(self, call: seccomp.Call) -> None:
        kind = call.arguments[1]
        given = socket.socket(socket.AF_NETLINK, kind, NETLINK_USERSOCK)
        self._given[_name(f"/proc/self/fd/{given.fileno()}")] = given
        self._listener.answer_descriptor(call, given.fileno(), os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0)

    def _send(self, call: seccomp.Call, given: socket.socket) -> None:
        request = self._sent(call)
        if not given.getsockname()[0]:
            given.bind((0, 0))  # as the kernel does for who sends before it has an address
        port, _ = given.getsockname()
        for answer in self._answers(request, Caller(call.pid, 0)):
            for frame in frames(answer):  # whatever address was written into the request
                self._sender.sendto(replace(frame, port=port).encode(), (port, 0))
        self._listener.answer(call, len(request))

    def _sent(self, call: seccomp.Call) -> bytes:
        """Return what the program sends, gathered from its memory."""
        caller = Caller(call.pid, 0)
        if call.number == self._here.sendto:
            return caller.read(call.arguments[1], call.arguments[2])
        _, _, parts, count = MSGHDR.unpack(caller.read(call.arguments[1], MSGHDR.size))
        if count > MAX_PARTS:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        table = caller.read(parts, count * IOVEC.size)
        return b"".join(caller.read(base, length) for base, length in IOVEC.iter_unpack(table))

    def _answers(self, datagram: bytes, caller: Caller) -> Iterator[bytes]:
        """Yield the answers to each message of a datagram, each a datagram of its own, as the kernel sends them."""
        try:
            requests = list(frames(datagram))
        except Malformed:
            return  # the kernel drops it as well
        for request in requests:
            yield from self._answer(request, caller)

    def _answer(self, request: Frame, caller: Caller) -> Iterator[bytes]:
        if not request.flags & NLM_F_REQUEST or request.kind < NLMSG_MIN_TYPE:  # nothing is asked
            if request.flags & NLM_F_ACK:
                yield acknowledgement(request.encode(), 0)
        elif request.kind == GENL_ID_CTRL:
            yield from controlled(request)
        elif request.kind == SIMULATED_FAMILY:
            yield from (frame.encode() for frame in frames(self._ask_driver(request, caller)))
        else:
            yield acknowledgement(request.encode(), errno.ENOENT)

    def _ask_driver(self, request: Frame, caller: Caller) -> bytes:
        with ExitStack() as opened, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as driver:
            ancillary: list[tuple[int, int, bytes]] = [caller.to_send()]
            number = _namespace(request)
            if number is not None:
                try:
                    netns = opened.enter_context(caller.descriptor(number))
                except Refused:  # the driver says so itself
                    pass
                else:
                    ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", netns)))
            driver.connect(str(self._driver))
            driver.sendmsg([request.encode()], ancillary)
            return driver.recv(MAX_MESSAGE)


def _name(path: str) -> str:
    """Return what tells an open file from every other, however often it was duplicated."""
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _namespace(request: Frame) -> int | None:
    """Return the descriptor that a request names, a number in the program's table."""
    try:
        found = dict(attributes(request.body[GENERIC.size :])).get(Attribute.NS_FD, b"")
    except Malformed:
        return None
    return int(struct.unpack("=I", found)[0]) if len(found) == 4 else None


def controlled(request: Frame) -> Iterator[bytes]:
    """Yield what the controller of generic netlink answers: it knows one family.

    ``NETLINK_GENERIC`` has more families on a real host; a program that looks for another finds none.
    """
    if code := _refused(request):
        yield acknowledgement(request.encode(), code)
        return
    is_dump = _is_dump(request)
    body = GENERIC.pack(CTRL_CMD_NEWFAMILY, CTRL_VERSION, 0)
    body += attribute(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME.encode() + b"\0")
    body += attribute(CTRL_ATTR_FAMILY_ID, NUMBER.pack(SIMULATED_FAMILY))
    for kind, value in (
        (CTRL_ATTR_VERSION, FAMILY_VERSION),
        (CTRL_ATTR_HDRSIZE, 0),
        (CTRL_ATTR_MAXATTR, max(Attribute)),
    ):
        body += attribute(kind, struct.pack("=I", value))
    yield Frame(GENL_ID_CTRL, body, NLM_F_MULTI if is_dump else 0, request.sequence, request.port).encode()
    if is_dump:
        yield Frame(NLMSG_DONE, STATUS.pack(0), NLM_F_MULTI, request.sequence, request.port).encode()
    elif request.flags & NLM_F_ACK:
        yield acknowledgement(request.encode(), 0)


def _is_dump(request: Frame) -> bool:
    return request.flags & NLM_F_DUMP == NLM_F_DUMP


def _refused(request: Frame) -> int:
    """Return the errno that the controller refuses with, 0 if it answers. Order and numbers are the kernel's."""
    if len(request.body) < GENERIC.size:
        return errno.EINVAL
    if request.body[0] != CTRL_CMD_GETFAMILY:
        return errno.EOPNOTSUPP
    if _is_dump(request):
        return 0
    try:
        asked = dict(attributes(request.body[GENERIC.size :]))
    except Malformed:
        return errno.EINVAL
    number, name = asked.get(CTRL_ATTR_FAMILY_ID), asked.get(CTRL_ATTR_FAMILY_NAME)
    if number is not None and len(number) < NUMBER.size:
        return errno.ERANGE
    if name is None:
        return errno.EINVAL if number is None else 0 if number == NUMBER.pack(SIMULATED_FAMILY) else errno.ENOENT
    text, end, _ = name[:LONGEST_NAME].partition(b"\0")
    return errno.EINVAL if not end else 0 if text == FAMILY_NAME.encode() else errno.ENOENT
