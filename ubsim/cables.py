"""Links that only a simulator makes: veth pairs, bridges, rate limits; and the death of namespaces.

An extension of ``ubhost.kernel.rtnl`` by the requests that no plugin needs.

Source: rtnetlink(7); linux/if_link.h, linux/veth.h, linux/net_namespace.h, linux/pkt_sched.h.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext

from ubhost.kernel.netns import inode, visiting
from ubhost.kernel.rtmessages import IFINFO, IFLA_IFNAME, IFLA_MTU, NLA_F_NESTED, U32
from ubhost.kernel.rtnl import NLM_F_CREATE, NLM_F_EXCL, RTM_DELLINK, RTM_NEWLINK, Refused, Rtnl
from ubhost.model import Link
from ubhost.netlink import NLM_F_ACK, Frame, attribute, attributes, frames

IFLA_MASTER, IFLA_LINKINFO, IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 10, 18, 1, 2, 1
IFLA_GROUP = 27
RTM_NEWNSID, RTM_DELNSID, RTM_GETNSID, RTNLGRP_NSID = 88, 89, 90, 28
RTNLGRP_LINK = 1
NETNSA_NSID, NETNSA_FD = 1, 3
RTM_NEWQDISC, RTM_DELQDISC = 36, 37
TCMSG = struct.Struct("=BxxxiIII")  # family, ifindex, handle, parent, info
TCA_KIND, TCA_OPTIONS, TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 2, 1, 4, 6
TC_H_ROOT, LINKLAYER_ETHERNET, PSCHED_TICKS_PER_US = 0xFFFFFFFF, 1, 15.625
RATESPEC = struct.Struct("=BBHhHI")  # cell_log, linklayer, overhead, cell_align, mpu, rate
S32 = struct.Struct("=i")


class Cables(Rtnl):
    """A route socket that can also lay cables."""

    def add_veth(self, name: str, peer: str, mtu: int, group: int = 0) -> None:
        """Make a pair of netdevs joined back to back, both down; ``peer`` belongs to ``group`` from its first moment.

        Raises:
            Refused: EEXIST if either name is taken.
        """
        ends = attribute(IFLA_IFNAME, os.fsencode(peer) + b"\0") + attribute(IFLA_MTU, U32.pack(mtu))
        ends += attribute(IFLA_GROUP, U32.pack(group))
        other = attribute(VETH_INFO_PEER, IFINFO.pack(0, 0, 0, 0, 0) + ends)
        self._add(name, "veth", attribute(IFLA_INFO_DATA | NLA_F_NESTED, other), attribute(IFLA_MTU, U32.pack(mtu)))

    def add_bridge(self, name: str, group: int = 0) -> None:
        self._add(name, "bridge", more=attribute(IFLA_GROUP, U32.pack(group)))

    def set_master(self, index: int, bridge: int) -> None:
        self._change(index, attribute(IFLA_MASTER, U32.pack(bridge)))

    def delete_group(self, group: int) -> None:
        """Delete every link of a group, and the peers of veths, in one go: one by one takes 20 ms each."""
        body = IFINFO.pack(0, 0, 0, 0, 0) + attribute(IFLA_GROUP, U32.pack(group))
        try:
            list(self._ask(RTM_DELLINK, NLM_F_ACK, body))
        except Refused as refused:
            if refused.code != errno.ENODEV:  # none is left
                raise

    def limit_rate(self, index: int, mbps: int) -> None:
        """Let at most ``mbps`` megabits a second out of a link, by a token bucket; 0 lifts the limit."""
        if not mbps:
            try:
                list(self._ask(RTM_DELQDISC, NLM_F_ACK, TCMSG.pack(0, index, 0, TC_H_ROOT, 0)))
            except Refused as refused:
                if refused.code not in (errno.ENOENT, errno.EINVAL):  # there was no limit
                    raise
            return
        rate = mbps * 125_000  # bytes a second
        burst = max(rate // 250, 16 << 10)  # 4 ms, and always more than a packet
        ticks = int(burst * 1e6 / rate * PSCHED_TICKS_PER_US)
        spec = RATESPEC.pack(0, LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
        parms = spec + bytes(RATESPEC.size) + struct.pack("=III", burst * 4, ticks, 0)
        options = attribute(TCA_TBF_PARMS, parms) + attribute(TCA_TBF_BURST, U32.pack(burst))
        if rate > 0xFFFFFFFF:
            options += attribute(TCA_TBF_RATE64, struct.pack("=Q", rate))
        body = TCMSG.pack(0, index, 0, TC_H_ROOT, 0) + attribute(TCA_KIND, b"tbf\0")
        body += attribute(TCA_OPTIONS | NLA_F_NESTED, options)
        list(self._ask(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | 0x100, body))  # NLM_F_REPLACE

    def require(self, name: str) -> Link:
        """Return the link called ``name``.

        Raises:
            Refused: ENODEV.
        """
        link = self.link(name)
        if link is None:
            raise Refused(f"no link {name} in {self.label or 'host'}", errno.ENODEV)
        return link

    def number_of(self, netns: int) -> int:
        """Return the number that our namespace has for the namespace ``netns``, giving it one if need be.

        A number does not keep a namespace alive, and its end is announced by the number.
        """
        ask = bytes(4) + attribute(NETNSA_FD, U32.pack(netns))
        try:
            list(self._ask(RTM_NEWNSID, NLM_F_ACK, ask + attribute(NETNSA_NSID, S32.pack(-1))))
        except Refused as refused:
            if refused.code != errno.EEXIST:
                raise
        (reply,) = self._ask(RTM_GETNSID, 0, ask)
        return _nsid(reply)

    def _add(self, name: str, kind: str, data: bytes = b"", more: bytes = b"") -> None:
        info = attribute(IFLA_INFO_KIND, kind.encode() + b"\0") + data
        body = IFINFO.pack(0, 0, 0, 0, 0) + attribute(IFLA_IFNAME, os.fsencode(name) + b"\0") + more
        body += attribute(IFLA_LINKINFO | NLA_F_NESTED, info)
        list(self._ask(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body))


def _nsid(frame: Frame) -> int:
    return int(S32.unpack(dict(attributes(frame.body[4:]))[NETNSA_NSID])[0])


class Obituaries:
    """Tells which of the namespaces that we were shown have died, without keeping one alive.

    The kernel announces the end of a namespace to every namespace that has a number for it, before the inode can be
    used again; so whoever asks ``deaths`` first and looks at an inode then is never mistaken.
    """

    def __init__(self, netns: int | None = None) -> None:
        """Listen in the namespace ``netns``, ours if ``None``."""
        self._cables = Cables(netns, "the simulated host")
        self._socket = _listener(netns, RTNLGRP_NSID)
        self._watched: dict[int, int] = {}

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        self._cables.close()

    def watch(self, netns: int) -> None:
        """From now on tell of the death of the namespace with descriptor ``netns``."""
        if inode(netns) not in self._watched.values():
            self._watched[self._cables.number_of(netns)] = inode(netns)

    def deaths(self) -> list[int]:
        """Return the inodes of the namespaces that died since the last call."""
        numbers = [_nsid(frame) for frame in _pending(self._socket) if frame.kind == RTM_DELNSID]
        return [self._watched.pop(number) for number in numbers if number in self._watched]


class LinkEvents:
    """Tells the names of links that appeared, changed or went in one namespace."""

    def __init__(self, netns: int | None = None) -> None:
        self._socket = _listener(netns, RTNLGRP_LINK)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def names(self) -> frozenset[str]:
        """Return them once each; waits for nothing."""
        kinds = (RTM_NEWLINK, RTM_DELLINK)
        bodies = [frame.body for frame in _pending(self._socket) if frame.kind in kinds]
        found = (dict(attributes(body[IFINFO.size :])).get(IFLA_IFNAME, b"") for body in bodies)
        return frozenset(os.fsdecode(name.rstrip(b"\0")) for name in found)


def _listener(netns: int | None, group: int) -> socket.socket:
    with visiting(netns) if netns is not None else nullcontext():
        listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    listener.bind((0, 1 << group - 1))
    return listener


def _pending(listener: socket.socket) -> Iterator[Frame]:
    while True:
        try:
            datagram = listener.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # some were lost, the next ones will do
                raise
            continue
        yield from frames(datagram)
