"""Network links, addresses and routes over rtnetlink: one method a request, nothing decided here.

A netlink socket belongs to the namespace it was opened in, whoever uses it later. So a thread visits a namespace
only to open the socket, and no other code of ours ever runs there. Links are asked for by name or index, not by
listing, because a listing is interrupted whenever another link changes.

Source: rtnetlink(7), netlink(7), linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Self

from ubhost.errors import HostFault
from ubhost.kernel import rtmessages as wire
from ubhost.kernel.netns import visiting
from ubhost.model import Interface, Link, Route
from ubhost.netlink import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Frame,
    attribute,
    attributes,
    frames,
)

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_GETNSID = 90
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109

NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = 0x100, 0x200, 0x400, 0x800
NLM_F_DUMP_INTR = 0x10
NLM_F_ACK_TLVS = 0x200
NLMSGERR_ATTR_MSG = 1
SO_NETNS_COOKIE = 71
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 270, 10, 11, 12

_NO_STATISTICS = attribute(wire.IFLA_EXT_MASK, wire.U32.pack(wire.RTEXT_FILTER_SKIP_STATS))

PATIENCE = 5.0  # seconds for one answer of the kernel


class Refused(HostFault):
    """The kernel answered a request with an error; ``code`` is the errno."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Rtnl:
    """A netlink route socket in one namespace: ours, or that of ``netns``, an open descriptor."""

    def __init__(self, netns: int | None = None, label: str = "") -> None:
        self.label = label
        with visiting(netns) if netns is not None else nullcontext():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.settimeout(PATIENCE)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def cookie(self) -> int:
        """The number of the namespace, never used twice before the next boot; 0 before Linux 5.14."""
        try:
            return int.from_bytes(self._socket.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError:
            return 0

    def nsid(self, netns: int) -> int:
        """Return the number that this namespace has for another, an open descriptor; -1 if it has none yet."""
        (reply,) = self._ask(RTM_GETNSID, 0, bytes(4) + attribute(wire.NETNSA_FD, wire.U32.pack(netns)))
        found = dict(attributes(reply.body[4:]))
        return int(wire.S32.unpack(found[wire.NETNSA_NSID])[0])

    # Links

    def link(self, name: str) -> Link | None:
        """Return the link that has ``name`` as its name or as an alternative one; ``None`` if there is none."""
        kind = wire.IFLA_IFNAME if len(os.fsencode(name)) < 16 else wire.IFLA_ALT_IFNAME
        return self._one(wire.IFINFO.pack(0, 0, 0, 0, 0) + wire.named(kind, name) + _NO_STATISTICS)

    def link_at(self, index: int) -> Link | None:
        return self._one(wire.IFINFO.pack(0, 0, index, 0, 0) + _NO_STATISTICS)

    def links(self) -> tuple[Link, ...]:
        """Return every link. If links change all the time while they are listed, the last list is good enough."""
        found: tuple[Link, ...] = ()
        for _ in range(5):
            replies = list(self._ask(RTM_GETLINK, NLM_F_DUMP, wire.IFINFO.pack(0, 0, 0, 0, 0)))
            found = tuple(wire.link_of(reply.body, self.label) for reply in replies)
            if not any(reply.flags & NLM_F_DUMP_INTR for reply in replies):
                break
        return found

    def set_up(self, index: int, *, up: bool) -> None:
        self._change(index, flags=wire.IFF_UP if up else 0, mask=wire.IFF_UP)

    def set_promisc(self, index: int, *, on: bool) -> None:
        self._change(index, flags=wire.IFF_PROMISC if on else 0, mask=wire.IFF_PROMISC)

    def set_allmulti(self, index: int, *, on: bool) -> None:
        self._change(index, flags=wire.IFF_ALLMULTI if on else 0, mask=wire.IFF_ALLMULTI)

    def detach_xdp(self, index: int) -> None:
        """Take away the BPF programs that see a link's packets first, but for those of offloading hardware.

        Raises:
            Refused: EBUSY, a living process holds one by a BPF link; it goes with that process.
        """
        for mode in wire.XDP_MODES:
            what = attribute(wire.IFLA_XDP_FD, wire.S32.pack(-1)) + attribute(wire.IFLA_XDP_FLAGS, wire.U32.pack(mode))
            try:
                self._change(index, attribute(wire.IFLA_XDP | wire.NLA_F_NESTED, what))
            except Refused as refused:
                if refused.code != errno.EOPNOTSUPP:  # a driver that has no such thing
                    raise

    def set_group(self, index: int, group: int) -> None:
        self._change(index, attribute(wire.IFLA_GROUP, wire.U32.pack(group)))

    def rename(self, index: int, name: str) -> None:
        self._change(index, wire.named(wire.IFLA_IFNAME, name))

    def set_alias(self, index: int, alias: str) -> None:
        """Label a link; an empty label removes it."""
        self._change(index, attribute(wire.IFLA_IFALIAS, alias.encode()))

    def set_mtu(self, index: int, mtu: int) -> None:
        self._change(index, attribute(wire.IFLA_MTU, wire.U32.pack(mtu)))

    def set_qlen(self, index: int, qlen: int) -> None:
        self._change(index, attribute(wire.IFLA_TXQLEN, wire.U32.pack(qlen)))

    def set_mac(self, index: int, mac: str) -> None:
        self._change(index, attribute(wire.IFLA_ADDRESS, bytes.fromhex(mac.replace(":", ""))))

    def add_altname(self, index: int, name: str) -> None:
        self._altname(RTM_NEWLINKPROP, NLM_F_EXCL | NLM_F_CREATE | NLM_F_APPEND, index, name)

    def remove_altname(self, index: int, name: str) -> None:
        self._altname(RTM_DELLINKPROP, 0, index, name)  # NLM_F_EXCL would mean "bulk" here

    def move(self, index: int, netns: int, name: str) -> None:
        """Move a link to the namespace ``netns``, where it is called ``name``: one request, one grace period.

        It is not atomic: on EEXIST the link may have moved under its old name.
        """
        target = attribute(wire.IFLA_NET_NS_FD, wire.U32.pack(netns)) + wire.named(wire.IFLA_IFNAME, name)
        self._change(index, target)

    def add_ifb(self, name: str) -> None:
        """Make an ifb, the kind of link that received traffic is led through to be limited."""
        kind = attribute(wire.IFLA_LINKINFO | wire.NLA_F_NESTED, attribute(wire.IFLA_INFO_KIND, b"ifb\0"))
        body = wire.IFINFO.pack(0, 0, 0, wire.IFF_UP, wire.IFF_UP) + wire.named(wire.IFLA_IFNAME, name) + kind
        list(self._ask(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body))

    def delete(self, index: int) -> None:
        list(self._ask(RTM_DELLINK, NLM_F_ACK, wire.IFINFO.pack(0, 0, index, 0, 0)))

    # Addresses

    def addresses(self, index: int) -> tuple[Interface, ...]:
        """Return the global addresses of a link (not link-local ones), in the kernel's order."""
        replies = self._ask(RTM_GETADDR, NLM_F_DUMP, wire.IFADDR.pack(0, 0, 0, 0, index))
        found = (wire.address_of(reply.body) for reply in replies if wire.IFADDR.unpack_from(reply.body)[4] == index)
        return tuple(address for address in found if not address.is_link_local)

    def add_address(self, index: int, address: Interface) -> None:
        """Add an address. IPv6 ones are usable at once: no duplicate address detection."""
        body = wire.address_request(index, address)
        if address.version == 6:
            body += attribute(wire.IFA_FLAGS, wire.U32.pack(wire.IFA_F_NODAD))
        list(self._ask(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body))

    def remove_address(self, index: int, address: Interface) -> None:
        list(self._ask(RTM_DELADDR, NLM_F_ACK, wire.address_request(index, address)))

    # Routes

    def routes(self, index: int) -> tuple[Route, ...]:
        """Return the unicast routes over a link, of every table but the kernel's own ``local``."""
        found: list[Route] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            header = wire.RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
            replies = self._ask(RTM_GETROUTE, NLM_F_DUMP, header + attribute(wire.RTA_OIF, wire.U32.pack(index)))
            found += [route for reply in replies if (route := wire.route_of(reply.body, index))]
        return tuple(found)

    def add_route(self, index: int, route: Route) -> None:
        list(self._ask(RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, wire.route_request(index, route)))

    def remove_route(self, index: int, route: Route) -> None:
        list(self._ask(RTM_DELROUTE, NLM_F_ACK, wire.route_request(index, route)))

    # The wire

    def ask(self, kind: int, flags: int, body: bytes) -> list[Frame]:
        """Send a request of another kind (``ubhost.kernel.tc`` has some); return the replies.

        Raises:
            Refused: the kernel answered with an error.
        """
        return list(self._ask(kind, flags, body))

    def _one(self, body: bytes) -> Link | None:
        try:
            replies = list(self._ask(RTM_GETLINK, 0, body))
        except Refused as refused:
            if refused.code == errno.ENODEV:
                return None
            raise
        return wire.link_of(replies[0].body, self.label)

    def _change(self, index: int, body: bytes = b"", flags: int = 0, mask: int = 0) -> None:
        list(self._ask(RTM_NEWLINK, NLM_F_ACK, wire.IFINFO.pack(0, 0, index, flags, mask) + body))

    def _altname(self, kind: int, flags: int, index: int, name: str) -> None:
        names = wire.named(wire.IFLA_ALT_IFNAME, name)
        body = wire.IFINFO.pack(0, 0, index, 0, 0) + attribute(wire.IFLA_PROP_LIST | wire.NLA_F_NESTED, names)
        list(self._ask(kind, NLM_F_ACK | flags, body))

    def _ask(self, kind: int, flags: int, body: bytes) -> Iterator[Frame]:
        self._sequence += 1
        try:
            self._socket.send(Frame(kind, body, flags | NLM_F_REQUEST, self._sequence).encode())
            while True:
                for frame in frames(self._socket.recv(1 << 18)):
                    if frame.sequence != self._sequence:  # the late answer to a request that timed out
                        continue
                    if frame.kind == NLMSG_DONE:
                        return
                    if frame.kind == NLMSG_ERROR:
                        self._raise(frame)
                        return
                    yield frame
                    if not flags & (NLM_F_DUMP | NLM_F_ACK):
                        return
        except OSError as error:
            raise HostFault(f"rtnetlink in {self.label or 'host'}: {error.strerror or error}") from error

    def _raise(self, frame: Frame) -> None:
        code = frame.status
        if not code:
            return
        words = f"{errno.errorcode.get(code, code)} ({os.strerror(code)})"
        if frame.flags & NLM_F_ACK_TLVS:  # the request is capped to its header: attributes follow it
            extra = dict(attributes(frame.body[4 + HEADER.size :])).get(NLMSGERR_ATTR_MSG, b"")
            words += f": {extra.rstrip(bytes(1)).decode(errors='replace')}" if extra else ""
        raise Refused(f"rtnetlink in {self.label or 'host'}: {words}", code)
