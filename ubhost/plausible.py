"""Whether a record can be true: each value in it is one that an attachment may have, and that a release can work with.

A record that decodes may still have been written by nobody of us: by a bad disk, by hand, by a program gone wrong. What
nothing could come of but an error, or worse (a program outside of CNI_PATH, a link of the host's), makes it damaged
as a whole: who wrote one wrong value may have written the others. Pure, and cheap, as every reader of the ledger asks:
there are no regular expressions, which a call without an agent would pay for at its start.

Source: the kernel's own limits: net/core/dev.c, dev_valid_name(); uapi/linux/if.h; reference/ub.md sections 1, 2 and 8.
"""

from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from ubhost.record import Delegate, OriginalLink, Record

_U32, _U64 = 1 << 32, 1 << 64
_INDEXES = 1 << 31  # of netdevs
_EIDS = 1024  # of a kernel device, URMA_MAX_EID_CNT
_LEVELS = 16  # jetty priorities, and service levels
_STEP_MBPS = 8
_SMALLEST_MTU = 68  # bytes, ETH_MIN_MTU; 0: not known
_NAME_BYTES, _ALTNAME_BYTES, _ALIAS_BYTES, _MEMBER_BYTES, _MAC_BYTES = 15, 127, 255, 63, 32
_END_OF_TIME = 253402300800.0  # the year 10000, in Unix time
_MAX_DEPTH = 100  # lists and objects in one another, as in a request
_HEX = frozenset("0123456789abcdef")
_METRICS = ("mtu", "advmss", "priority", "table", "scope")


def is_plausible(record: Record) -> bool:
    """Whether every value of ``record`` can be true; its device, container and interface are the ledger's to judge."""
    texts = (record.network, record.netns, record.boot_id, record.nonce, record.pod, record.pod_uid)
    return (
        all(map(_is_text, texts))
        and 0 <= record.since < _END_OF_TIME
        and 0 <= record.netns_inode < _U64
        and 0 <= record.netns_cookie < _U64
        and _is_shaper(record.shaper)
        and _is_device(record)
        and (record.link is None or _is_link(record.link))
        and (record.delegate is None or _is_delegate(record.delegate))
        and _is_result(record.given)
    )


def _is_device(record: Record) -> bool:
    low, high = record.limit_mbps or (0, 0)
    return (
        all(map(_is_member, {*record.members, *(row[0] for row in (*record.eids, *record.service_levels))}))
        and all(0 <= index < _EIDS and _is_eid(eid) for _, index, eid in record.eids)
        and all(0 <= priority < _LEVELS and 0 <= level < _LEVELS for _, priority, level in record.service_levels)
        and (0 <= low <= high < _U32 or (0 <= low < _U32 and high == 0))
        and low % _STEP_MBPS == high % _STEP_MBPS == 0
        and all(map(_is_text, record.nodes))  # nri-qos opens them, and only beneath /dev
    )  # fmt: skip


def _is_link(link: OriginalLink) -> bool:
    identity = link.identity
    return (
        _is_netdev(link.name)
        and (not link.pod_name or _is_netdev(link.pod_name))
        and all(0 <= index < _INDEXES for index in (link.index, link.pod_index, identity.peer if identity else 0))
        and (link.mtu == 0 or _SMALLEST_MTU <= link.mtu < _INDEXES)
        and 0 <= link.qlen < _U32
        and 0 <= link.group < _U32
        and _is_mac(link.mac)
        and _is_kernel_text(link.alias, _ALIAS_BYTES)
        and all(name and _is_kernel_text(name, _ALTNAME_BYTES) for name in link.altnames)
        and all(_is_address(address, ip_interface) for address in link.addresses)
    )


def _is_delegate(delegate: Delegate) -> bool:
    """Who is called again must be a plugin of CNI_PATH, in an environment that a program can be given."""
    return (
        _is_file_name(delegate.type)
        and isinstance(delegate.config.get("cniVersion"), str)
        and _is_json(delegate.config)
        and all(key and "=" not in key and _is_kernel_text(key + value) for key, value in delegate.environ.items())
    )


def _is_result(given: Mapping[str, list[dict[str, Any]]]) -> bool:
    """What the pod was given, as in a CNI result."""
    ips, routes = given.get("ips", []), given.get("routes", [])
    return (
        _is_json(given)
        and all(_is_address(ip.get("address"), ip_interface) and _is_host(ip.get("gateway")) for ip in ips)
        and all(_is_address(route.get("dst"), _network) and _is_host(route.get("gw")) for route in routes)
        and all(_is_metric(route.get(metric)) for route in routes for metric in _METRICS)
    )


def _network(text: str) -> object:
    return ip_network(text, strict=False)


def _is_address(text: object, parse: Callable[[str], object]) -> bool:
    """With a scope ("%eth0") it is of one host only, and no attachment's."""
    try:
        return isinstance(text, str) and "%" not in text and bool(parse(text))
    except ValueError:
        return False


def _is_host(text: object) -> bool:
    return text in (None, "") or _is_address(text, ip_address)


def _is_metric(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < _U32)


def _is_eid(text: str) -> bool:
    """Whether it is one as we write it, 8 groups of 4 digits, never compressed."""
    groups = text.split(":")
    return len(groups) == 8 and all(len(group) == 4 and _HEX.issuperset(group) for group in groups)


def _is_mac(text: str) -> bool:
    """A hardware address; "" is one that is not known, or of a link that has none."""
    pairs = text.split(":") if text else []
    return len(pairs) <= _MAC_BYTES and all(len(pair) == 2 and _HEX.issuperset(pair) for pair in pairs)


def _is_shaper(name: str) -> bool:
    """The ifb that ADD makes in the pod, and never another link: a release ends it. See ``cni_ub.plan``."""
    return not name or (len(name) == 11 and name.startswith("ubi") and _HEX.issuperset(name[3:]))


def _is_member(name: str) -> bool:
    """A kernel device is a folder of sysfs."""
    return _is_file_name(name) and len(name.encode()) <= _MEMBER_BYTES


def _is_netdev(name: str) -> bool:
    return (
        _is_kernel_text(name, _NAME_BYTES)
        and name not in ("", ".", "..")
        and not any(letter in "/: \t\n\v\f\r" for letter in name)
    )


def _is_file_name(name: str) -> bool:
    return _is_text(name) and name not in ("", ".", "..") and "/" not in name


def _is_text(text: str) -> bool:
    """Text of the environment or of a path, which a system call takes and people can be shown."""
    return "\0" not in text and is_unicode(text)


def is_unicode(text: str) -> bool:
    """Whether text can be written as UTF-8: bytes that are none come from the kernel as halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_kernel_text(text: str, most: int = 1 << 20) -> bool:
    """Bytes that came from the kernel or the environment, UTF-8 or not, as Python carries them."""
    try:
        return "\0" not in text and len(text.encode("utf-8", "surrogateescape")) <= most
    except UnicodeEncodeError:
        return False


def _is_json(value: object, depth: int = 0) -> bool:
    """Whether others can read a document; Python's own decoder takes more (NaN, half surrogates, endless nesting)."""
    if isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, list):
        inner = value
    else:
        return is_unicode(value) if isinstance(value, str) else not isinstance(value, float) or value - value == 0
    return depth <= _MAX_DEPTH and all(_is_json(part, depth + 1) for part in inner)
