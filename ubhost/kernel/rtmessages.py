"""Links, addresses and routes as the bytes of rtnetlink. No socket here.

Source: rtnetlink(7), linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h.
"""

import os
import socket
import struct
from ipaddress import ip_address, ip_interface
from typing import TypedDict

from ubhost.model import Interface, Link, Network, Route
from ubhost.netlink import ATTRIBUTE, NLA_TYPE_MASK, attribute, attributes

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


def named(kind: int, name: str) -> bytes:
    """Return the attribute ``kind`` that holds a name."""
    return attribute(kind, os.fsencode(name) + b"\0")


def link_of(body: bytes, netns: str) -> Link:
    """Read a link; ``netns`` is what its namespace is called."""
    _, _, index, flags, _ = IFINFO.unpack_from(body)
    found = _wanted_attributes(body)
    properties = attributes(found.get(IFLA_PROP_LIST, b""))
    return Link(
        index,
        name=_text(found[IFLA_IFNAME]),
        netns=netns,
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


def address_request(index: int, address: Interface) -> bytes:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    header = IFADDR.pack(family, address.network.prefixlen, 0, 0, index)
    return header + attribute(IFA_LOCAL, address.packed) + attribute(IFA_ADDRESS, address.packed)


def address_of(body: bytes) -> Interface:
    _, length, _, _, _ = IFADDR.unpack_from(body)
    found = dict(attributes(body[IFADDR.size :]))
    return ip_interface(f"{ip_address(found.get(IFA_LOCAL) or found[IFA_ADDRESS])}/{length}")


def route_request(index: int, route: Route) -> bytes:
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


def route_of(body: bytes, index: int) -> Route | None:
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
