"""Network links, addresses and routes over rtnetlink: one method a request, nothing decided here.

A netlink socket belongs to the namespace it was opened in, whoever uses it later. So a thread visits a namespace
only to open the socket, and no other code of ours ever runs there. Links are asked for by name or index, not by
listing, because a listing is interrupted whenever another link changes.

Source: rtnetlink(7), netlink(7), linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from ipaddress import ip_address, ip_interface
from types import TracebackType
from typing import Self, TypedDict

from ubhost.errors import HostFault
from ubhost.kernel.netns import visiting
from ubhost.model import Interface, Link, Network, Route
from ubhost.netlink import (
    ATTRIBUTE,
    HEADER,
    NLA_TYPE_MASK,
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

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_TXQLEN, IFLA_IFALIAS, IFLA_NET_NS_FD = 1, 3, 4, 13, 20, 28
IFLA_LINKINFO, IFLA_INFO_KIND = 18, 1
IFLA_LINK, IFLA_GROUP, IFLA_LINK_NETNSID = 5, 27, 37
IFLA_PERM_ADDRESS, IFLA_PARENT_DEV_NAME, IFLA_PARENT_DEV_BUS_NAME = 54, 56, 57
IFLA_EXT_MASK, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 29, 52, 53
IFLA_XDP, IFLA_XDP_FD, IFLA_XDP_ATTACHED, IFLA_XDP_FLAGS = 43, 1, 2, 3
XDP_MODES = 1 << 1, 1 << 2  # by the kernel itself, by the driver
RTEXT_FILTER_SKIP_STATS = 8
_LINK_ATTRIBUTES = frozenset(
    {
        IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_TXQLEN, IFLA_IFALIAS, IFLA_PROP_LIST, IFLA_LINKINFO, IFLA_LINK,
        IFLA_GROUP, IFLA_LINK_NETNSID, IFLA_PERM_ADDRESS, IFLA_PARENT_DEV_NAME, IFLA_PARENT_DEV_BUS_NAME, IFLA_XDP,
    }
)  # fmt: skip
NETNSA_NSID, NETNSA_FD = 1, 3
NLA_F_NESTED = 0x8000
IFF_UP, IFF_PROMISC, IFF_ALLMULTI = 1, 0x100, 0x200

IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
IFA_F_NODAD, IFA_F_TENTATIVE, IFA_F_PERMANENT = 0x02, 0x40, 0x80
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_METRICS, RTA_TABLE = 1, 4, 5, 6, 8, 15
RTAX_MTU, RTAX_ADVMSS = 2, 8
RT_TABLE_MAIN, RTPROT_STATIC, RTN_UNICAST, RT_SCOPE_LINK = 254, 4, 1, 253
RTNH_F_ONLINK = 4

IFINFO = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
IFADDR = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
RTMSG = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst length, src length, tos, table, protocol, scope, type, flags
U32 = struct.Struct("=I")
S32 = struct.Struct("=i")

_NO_STATISTICS = attribute(IFLA_EXT_MASK, U32.pack(RTEXT_FILTER_SKIP_STATS))

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
        (reply,) = self._ask(RTM_GETNSID, 0, bytes(4) + attribute(NETNSA_FD, U32.pack(netns)))
        found = dict(attributes(reply.body[4:]))
        return int(S32.unpack(found[NETNSA_NSID])[0])

    # Links

    def link(self, name: str) -> Link | None:
        """Return the link that has ``name`` as its name or as an alternative one; ``None`` if there is none."""
        kind = IFLA_IFNAME if len(os.fsencode(name)) < 16 else IFLA_ALT_IFNAME
        return self._one(IFINFO.pack(0, 0, 0, 0, 0) + attribute(kind, os.fsencode(name) + b"\0") + _NO_STATISTICS)

    def link_at(self, index: int) -> Link | None:
        return self._one(IFINFO.pack(0, 0, index, 0, 0) + _NO_STATISTICS)

    def links(self) -> tuple[Link, ...]:
        """Return every link. If links change all the time while they are listed, the last list is good enough."""
        found: tuple[Link, ...] = ()
        for _ in range(5):
            replies = list(self._ask(RTM_GETLINK, NLM_F_DUMP, IFINFO.pack(0, 0, 0, 0, 0)))
            found = tuple(self._link(reply.body) for reply in replies)
            if not any(reply.flags & NLM_F_DUMP_INTR for reply in replies):
                break
        return found

    def set_up(self, index: int, *, up: bool) -> None:
        self._change(index, flags=IFF_UP if up else 0, mask=IFF_UP)

    def set_promisc(self, index: int, *, on: bool) -> None:
        self._change(index, flags=IFF_PROMISC if on else 0, mask=IFF_PROMISC)

    def set_allmulti(self, index: int, *, on: bool) -> None:
        self._change(index, flags=IFF_ALLMULTI if on else 0, mask=IFF_ALLMULTI)

    def detach_xdp(self, index: int) -> None:
        """Take away the BPF programs that see a link's packets first, but for those of offloading hardware.

        Raises:
            Refused: EBUSY, a living process holds one by a BPF link; it goes with that process.
        """
        for mode in XDP_MODES:
            what = attribute(IFLA_XDP_FD, S32.pack(-1)) + attribute(IFLA_XDP_FLAGS, U32.pack(mode))
            try:
                self._change(index, attribute(IFLA_XDP | NLA_F_NESTED, what))
            except Refused as refused:
                if refused.code != errno.EOPNOTSUPP:  # a driver that has no such thing
                    raise

    def set_group(self, index: int, group: int) -> None:
        self._change(index, attribute(IFLA_GROUP, U32.pack(group)))

    def rename(self, index: int, name: str) -> None:
        self._change(index, attribute(IFLA_IFNAME, os.fsencode(name) + b"\0"))

    def set_alias(self, index: int, alias: str) -> None:
        """Label a link; an empty label removes it."""
        self._change(index, attribute(IFLA_IFALIAS, alias.encode()))

    def set_mtu(self, index: int, mtu: int) -> None:
        self._change(index, attribute(IFLA_MTU, U32.pack(mtu)))

    def set_qlen(self, index: int, qlen: int) -> None:
        self._change(index, attribute(IFLA_TXQLEN, U32.pack(qlen)))

    def set_mac(self, index: int, mac: str) -> None:
        self._change(index, attribute(IFLA_ADDRESS, bytes.fromhex(mac.replace(":", ""))))

    def add_altname(self, index: int, name: str) -> None:
        self._altname(RTM_NEWLINKPROP, NLM_F_EXCL | NLM_F_CREATE | NLM_F_APPEND, index, name)

    def remove_altname(self, index: int, name: str) -> None:
        self._altname(RTM_DELLINKPROP, 0, index, name)  # NLM_F_EXCL would mean "bulk" here

    def move(self, index: int, netns: int, name: str) -> None:
        """Move a link to the namespace ``netns``, where it is called ``name``: one request, one grace period.

        It is not atomic: on EEXIST the link may have moved under its old name.
        """
        target = attribute(IFLA_NET_NS_FD, U32.pack(netns)) + attribute(IFLA_IFNAME, os.fsencode(name) + b"\0")
        self._change(index, target)

    def add_ifb(self, name: str) -> None:
        """Make an ifb, the kind of link that received traffic is led through to be limited."""
        kind = attribute(IFLA_LINKINFO | NLA_F_NESTED, attribute(IFLA_INFO_KIND, b"ifb\0"))
        body = IFINFO.pack(0, 0, 0, IFF_UP, IFF_UP) + attribute(IFLA_IFNAME, os.fsencode(name) + b"\0") + kind
        list(self._ask(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body))

    def delete(self, index: int) -> None:
        list(self._ask(RTM_DELLINK, NLM_F_ACK, IFINFO.pack(0, 0, index, 0, 0)))

    # Addresses

    def addresses(self, index: int) -> tuple[Interface, ...]:
        """Return the global addresses of a link (not link-local ones), in the kernel's order."""
        replies = self._ask(RTM_GETADDR, NLM_F_DUMP, IFADDR.pack(0, 0, 0, 0, index))
        found = (_interface(reply.body) for reply in replies if IFADDR.unpack_from(reply.body)[4] == index)
        return tuple(address for address in found if not address.is_link_local)

    def add_address(self, index: int, address: Interface) -> None:
        """Add an address. IPv6 ones are usable at once: no duplicate address detection."""
        flags = attribute(IFA_FLAGS, U32.pack(IFA_F_NODAD)) if address.version == 6 else b""
        list(self._ask(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, _ifaddr(index, address) + flags))

    def remove_address(self, index: int, address: Interface) -> None:
        list(self._ask(RTM_DELADDR, NLM_F_ACK, _ifaddr(index, address)))

    # Routes

    def routes(self, index: int) -> tuple[Route, ...]:
        """Return the unicast routes over a link, of every table but the kernel's own ``local``."""
        found: list[Route] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            header = RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
            replies = self._ask(RTM_GETROUTE, NLM_F_DUMP, header + attribute(RTA_OIF, U32.pack(index)))
            found += [route for reply in replies if (route := _route(reply.body, index))]
        return tuple(found)

    def add_route(self, index: int, route: Route) -> None:
        list(self._ask(RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, _rtmsg(index, route)))

    def remove_route(self, index: int, route: Route) -> None:
        list(self._ask(RTM_DELROUTE, NLM_F_ACK, _rtmsg(index, route)))

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
        return self._link(replies[0].body)

    def _change(self, index: int, body: bytes = b"", flags: int = 0, mask: int = 0) -> None:
        list(self._ask(RTM_NEWLINK, NLM_F_ACK, IFINFO.pack(0, 0, index, flags, mask) + body))

    def _altname(self, kind: int, flags: int, index: int, name: str) -> None:
        names = attribute(IFLA_ALT_IFNAME, os.fsencode(name) + b"\0")
        body = IFINFO.pack(0, 0, index, 0, 0) + attribute(IFLA_PROP_LIST | NLA_F_NESTED, names)
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

    def _link(self, body: bytes) -> Link:
        _, _, index, flags, _ = IFINFO.unpack_from(body)
        found = _wanted_attributes(body)
        properties = attributes(found.get(IFLA_PROP_LIST, b""))
        return Link(
            index,
            name=_text(found[IFLA_IFNAME]),
            netns=self.label,
            is_up=bool(flags & IFF_UP),
            alias=_text(found.get(IFLA_IFALIAS, b"")),
            mtu=U32.unpack(found[IFLA_MTU])[0],
            mac=found.get(IFLA_ADDRESS, b"").hex(":"),
            altnames=tuple(_text(value) for kind, value in properties if kind == IFLA_ALT_IFNAME),
            qlen=U32.unpack(found[IFLA_TXQLEN])[0],
            group=U32.unpack(found[IFLA_GROUP])[0],
            is_promisc=bool(flags & IFF_PROMISC),
            is_allmulti=bool(flags & IFF_ALLMULTI),
            has_xdp=any(dict(attributes(found.get(IFLA_XDP, b""))).get(IFLA_XDP_ATTACHED, b"")),
            permanent_mac=found.get(IFLA_PERM_ADDRESS, b"").hex(":"),
            **_origin(found),
        )


class _Origin(TypedDict):
    kind: str
    parent: str
    peer: int
    peer_netns: int | None


def _origin(found: dict[int, bytes]) -> _Origin:
    """Read what a link is made of. ``IFLA_LINK`` of a veth is its other end; other kinds mean other things by it."""
    kind = _text(dict(attributes(found.get(IFLA_LINKINFO, b""))).get(IFLA_INFO_KIND, b""))
    names = (_text(found.get(number, b"")) for number in (IFLA_PARENT_DEV_BUS_NAME, IFLA_PARENT_DEV_NAME))
    is_veth = kind == "veth" and IFLA_LINK in found
    return {
        "kind": kind,
        "parent": "/".join(name for name in names if name),
        "peer": U32.unpack(found[IFLA_LINK])[0] if is_veth else 0,
        "peer_netns": S32.unpack(found[IFLA_LINK_NETNSID])[0] if is_veth and IFLA_LINK_NETNSID in found else None,
    }


def _wanted_attributes(body: bytes) -> dict[int, bytes]:
    """Pick the attributes of a link that we use; there are fifty others, and every call reads several links."""
    found = {}
    at = IFINFO.size
    while at < len(body):
        length, kind = ATTRIBUTE.unpack_from(body, at)
        kind &= NLA_TYPE_MASK
        if kind in _LINK_ATTRIBUTES:
            found[kind] = body[at + ATTRIBUTE.size : at + length]
        at += (length + 3 & ~3) or len(body)
    return found


def _text(value: bytes) -> str:
    return os.fsdecode(value.rstrip(b"\0"))


def _ifaddr(index: int, address: Interface) -> bytes:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    header = IFADDR.pack(family, address.network.prefixlen, 0, 0, index)
    return header + attribute(IFA_LOCAL, address.packed) + attribute(IFA_ADDRESS, address.packed)


def _interface(body: bytes) -> Interface:
    _, length, _, _, _ = IFADDR.unpack_from(body)
    found = dict(attributes(body[IFADDR.size :]))
    return ip_interface(f"{ip_address(found.get(IFA_LOCAL) or found[IFA_ADDRESS])}/{length}")


def _rtmsg(index: int, route: Route) -> bytes:
    family = socket.AF_INET if route.destination.version == 4 else socket.AF_INET6
    scope = route.scope
    if scope is None:
        scope = RT_SCOPE_LINK if family == socket.AF_INET and not route.gateway else 0
    table = route.table if route.table is not None else RT_TABLE_MAIN
    header = (family, route.destination.prefixlen, 0, 0, min(table, 255), RTPROT_STATIC, scope, RTN_UNICAST, 0)
    body = RTMSG.pack(*header) + attribute(RTA_OIF, U32.pack(index)) + attribute(RTA_TABLE, U32.pack(table))
    if route.destination.prefixlen:
        body += attribute(RTA_DST, route.destination.network_address.packed)
    if route.gateway:
        body += attribute(RTA_GATEWAY, ip_address(route.gateway).packed)
    if route.priority is not None:
        body += attribute(RTA_PRIORITY, U32.pack(route.priority))
    metrics = ((RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss))
    if nested := b"".join(attribute(kind, U32.pack(value)) for kind, value in metrics if value):
        body += attribute(RTA_METRICS | NLA_F_NESTED, nested)
    return body


def _route(body: bytes, index: int) -> Route | None:
    family, length, _, _, table, _, scope, kind, _ = RTMSG.unpack_from(body)
    found = dict(attributes(body[RTMSG.size :]))
    table = U32.unpack(found[RTA_TABLE])[0] if RTA_TABLE in found else table
    if kind != RTN_UNICAST or table == 255 or RTA_OIF not in found or U32.unpack(found[RTA_OIF])[0] != index:
        return None
    empty = bytes(4 if family == socket.AF_INET else 16)
    network: Network = ip_interface(f"{ip_address(found.get(RTA_DST, empty))}/{length}").network
    metrics = {key: U32.unpack(value)[0] for key, value in attributes(found.get(RTA_METRICS, b"")) if len(value) == 4}
    return Route(
        network,
        gateway=str(ip_address(found[RTA_GATEWAY])) if RTA_GATEWAY in found else None,
        mtu=metrics.get(RTAX_MTU),
        advmss=metrics.get(RTAX_ADVMSS),
        priority=U32.unpack(found[RTA_PRIORITY])[0] if RTA_PRIORITY in found else None,
        table=table,
        scope=scope,
    )
