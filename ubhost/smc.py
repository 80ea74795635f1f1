"""Shared Memory Communications: TCP programs over RDMA (SMC-R) or over shared memory (SMC-D), by the kernel.

Two ends use SMC when both offer it in their TCP handshake, and plain TCP otherwise. Over RoCE v2 they must have a *user
EID* in common, which is the host's; a *PNET id* tells which netdev and which RDMA device are on one network, where
the kernel does not see it by itself. The PNET table belongs to a network namespace, its RDMA side to the first one.

Source: Linux include/uapi/linux/{smc,smc_diag}.h, net/smc/{smc_netlink,smc_pnet,smc_clc}.c; smc-tools smcr-ueid(8).
"""

import errno
import hashlib
import os
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum

from ubhost.errors import Exhausted, HostFault, NotFound
from ubhost.kernel.netlink import NETLINK_GENERIC, Netlink, opened
from ubhost.netlink import GENERIC, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_ERROR, Frame, attribute, attributes

FAMILY, PNET_FAMILY, VERSION = "SMC_GEN_NETLINK", "SMC_PNETID", 1
GET_DEV_SMCR, GET_FBACK_STATS, DUMP_UEID, ADD_UEID, REMOVE_UEID = 6, 8, 9, 10, 11
PNET_ADD, PNET_DEL = 2, 3
GEN_DEV_SMCR, GEN_FBACK_STATS = 6, 8
EID_ENTRY, EID_LENGTH, MAX_USER_EIDS = 1, 32, 4
PNET_NAME, PNET_ETH, PNET_IB, PNET_IB_PORT, PNET_LENGTH = 1, 2, 3, 4, 16
DEV_PORT, DEV_IB_NAME, PORT_STATE = 8, 10, 4
FBACK_SERVER, FBACK_CLIENT, FBACK_CODE, FBACK_COUNT = 2, 3, 4, 5

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, AF_SMC = 4, 20, 43
_DIAG_REQUEST = struct.Struct("=BxxB48x")
_DIAG_MESSAGE = struct.Struct("=BBBB48xIQ")
_U32, _U16 = struct.Struct("=I"), struct.Struct("=H")
DIAG_FALLBACK = 5  # after CONNINFO, LGRINFO, SHUTDOWN, DMBINFO


class Mode(IntEnum):
    """How the bytes of one AF_SMC socket really travel."""

    SMC_R = 0
    TCP = 1
    SMC_D = 2


@dataclass(frozen=True, slots=True)
class Connection:
    """One AF_SMC socket; ``reason`` is the kernel's code for falling back to TCP, 0 for none."""

    mode: Mode
    reason: int = 0


@dataclass(frozen=True, slots=True)
class Fallback:
    """How often connections fell back to TCP for one reason (a decline code of net/smc/smc_clc.h)."""

    code: int
    count: int


Open = Callable[[int | None, int], AbstractContextManager[Netlink]]


def user_eid(network: str) -> str:
    """Return the user EID that all hosts give to one network: capitals, digits and a dash, as the kernel wants."""
    return f"UB-{hashlib.sha256(network.encode()).hexdigest()[:24].upper()}"


def pnet_id(network: str) -> str:
    """Return the PNET id of one network, at most 16 capitals and digits."""
    return f"UB{hashlib.sha256(network.encode()).hexdigest()[:14].upper()}"


class Smc:
    """The SMC of this kernel; safe to share between threads."""

    def __init__(self, open_netlink: Open = opened) -> None:
        self._open = open_netlink

    def is_available(self) -> bool:
        """Whether the kernel has SMC and an RDMA device that SMC can use."""
        try:
            return bool(self.devices())
        except (NotFound, HostFault):
            return False

    def devices(self) -> tuple[str, ...]:
        """Return the RDMA devices that SMC-R uses.

        Raises:
            NotFound: the kernel has no SMC, or its module is not loaded.
        """
        names = []
        for body in self._dump(GET_DEV_SMCR):
            device = dict(attributes(dict(attributes(body)).get(GEN_DEV_SMCR, b"")))
            if DEV_IB_NAME in device:
                names.append(_text(device[DEV_IB_NAME]))
        return tuple(sorted(names))

    def user_eids(self) -> tuple[str, ...]:
        """Return the user EIDs of this host."""
        found = (value for body in self._dump(DUMP_UEID) for kind, value in attributes(body) if kind == EID_ENTRY)
        return tuple(_text(value).rstrip() for value in found)

    def add_user_eid(self, eid: str) -> None:
        """Add ``eid``; nothing happens if it is there.

        Raises:
            Exhausted: there are four, which is all the kernel takes.
        """
        if eid in self.user_eids():
            return
        code = self._change(FAMILY, ADD_UEID, _entry(eid))
        if code == errno.ENOSPC or (code and len(self.user_eids()) >= MAX_USER_EIDS):
            raise Exhausted(f"user EID {eid}: SMC takes {MAX_USER_EIDS} and no more")
        _raise(code, f"to add user EID {eid}")

    def remove_user_eid(self, eid: str) -> None:
        if eid in self.user_eids():
            _raise(self._change(FAMILY, REMOVE_UEID, _entry(eid)), f"to remove user EID {eid}")

    def join(self, pnet: str, *, netdev: str, netns: int, device: str, port: int = 1) -> None:
        """Say that ``netdev`` inside ``netns`` and RDMA ``device`` are on one network. It may have been said."""
        name = attribute(PNET_NAME, pnet.encode() + b"\0")
        rdma = attribute(PNET_IB, device.encode() + b"\0") + attribute(PNET_IB_PORT, bytes([port]))
        code = self._change(PNET_FAMILY, PNET_ADD, name + rdma)
        _raise(0 if code == errno.EEXIST else code, f"PNET id {pnet} for RDMA device {device}")
        code = self._change(PNET_FAMILY, PNET_ADD, name + attribute(PNET_ETH, netdev.encode() + b"\0"), netns)
        _raise(0 if code == errno.EEXIST else code, f"PNET id {pnet} for netdev {netdev}")

    def leave(self, pnet: str) -> None:
        """Forget the host's side of a PNET id; a pod's side goes with its namespace."""
        code = self._change(PNET_FAMILY, PNET_DEL, attribute(PNET_NAME, pnet.encode() + b"\0"))
        _raise(0 if code in (errno.ENOENT, errno.ENODEV) else code, f"to remove PNET id {pnet}")

    def fallbacks(self) -> tuple[Fallback, ...]:
        """Return why connections of this host fell back to TCP, and how often."""
        found = []
        for body in self._dump(GET_FBACK_STATS):
            values = dict(attributes(dict(attributes(body)).get(GEN_FBACK_STATS, b"")))
            if FBACK_CODE in values and FBACK_COUNT in values:
                code, count = _U32.unpack(values[FBACK_CODE])[0], _U16.unpack(values[FBACK_COUNT])[0]
                found.append(Fallback(int(code), int(count)))
        return tuple(found)

    def connections(self, netns: int | None = None) -> tuple[Connection, ...]:
        """Return every AF_SMC socket of a namespace and how it travels (SMC diag).

        Raises:
            NotFound: the kernel has no SMC diag.
        """
        request = Frame(
            SOCK_DIAG_BY_FAMILY, _DIAG_REQUEST.pack(AF_SMC, 1 << DIAG_FALLBACK - 1), NLM_F_REQUEST | NLM_F_DUMP, 1
        )
        with self._open(netns, NETLINK_SOCK_DIAG) as netlink:
            answer = netlink.ask(request.encode())
        if answer[-1].kind == NLMSG_ERROR and answer[-1].status:
            raise NotFound(f"no SMC diag in this kernel: {os.strerror(answer[-1].status)}")
        return tuple(_connection(frame.body) for frame in answer if frame.kind == SOCK_DIAG_BY_FAMILY)

    def _dump(self, command: int) -> list[bytes]:
        with self._open(None, NETLINK_GENERIC) as netlink:
            family = netlink.family(FAMILY)
            answer = netlink.ask(_request(family, command, b"", NLM_F_DUMP, netlink.port))
        if answer[-1].kind == NLMSG_ERROR:
            _raise(answer[-1].status, "to list SMC")
        return [frame.body[GENERIC.size :] for frame in answer if frame.kind == family]

    def _change(self, family_name: str, command: int, body: bytes, netns: int | None = None) -> int:
        """Return the errno of the answer."""
        with self._open(netns, NETLINK_GENERIC) as netlink:
            family = netlink.family(family_name)
            return netlink.ask(_request(family, command, body, NLM_F_ACK, netlink.port))[-1].status


def _request(family: int, command: int, body: bytes, flags: int, port: int) -> bytes:
    payload = GENERIC.pack(command, VERSION, 0) + body
    return Frame(family, payload, NLM_F_REQUEST | flags, sequence=2, port=port).encode()


def _entry(eid: str) -> bytes:
    return attribute(EID_ENTRY, eid.ljust(EID_LENGTH).encode() + b"\0")


def _connection(body: bytes) -> Connection:
    if len(body) < _DIAG_MESSAGE.size:
        raise HostFault(f"SMC diag answered with {len(body)} bytes")
    mode = _DIAG_MESSAGE.unpack_from(body)[2]
    extra = dict(attributes(body[_DIAG_MESSAGE.size :]))
    reason = _U32.unpack_from(extra[DIAG_FALLBACK])[0] if len(extra.get(DIAG_FALLBACK, b"")) >= _U32.size else 0
    return Connection(Mode(mode) if mode in (0, 1, 2) else Mode.TCP, int(reason))


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("ascii", "replace")


def _raise(code: int, what: str) -> None:
    if code:
        raise HostFault(f"the kernel refused {what}: {errno.errorcode.get(code, code)}") from OSError(
            code, os.strerror(code)
        )
