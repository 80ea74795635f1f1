"""Which way to a peer is the best, and what a pod is told about it (``/run/ub/paths.json``). Pure.

An *end* is a pod's attachment to a UB network, or a whole node of the super-node. Two ends can use a way that both
have; ``ip`` is always there. Whether an unmodified TCP program really got ``ums`` or ``smc`` is settled by the
handshake of each connection, which falls back to TCP by itself.

Source: design section 5.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ubhost.errors import Unsupported

VERSION = 1
FOLDER = "/run/ub"  # inside the pod


class Way(Enum):
    """From the best to the last; ``shm`` joins pods of one host only."""

    URMA = "urma"
    RDMA = "rdma"
    UMS = "ums"
    SMC = "smc"
    SHM = "shm"
    IP = "ip"


_ORDER = tuple(Way)


class Sockets(Enum):
    """What unmodified TCP programs get, as a network configuration asks for it."""

    OFF = "off"
    AUTO = "auto"
    UMS = "ums"
    SMC = "smc"


@dataclass(frozen=True, slots=True)
class End:
    """One attachment. ``ways`` is what it has, ``name`` the pod as ``namespace/name``."""

    name: str
    network: str
    container: str
    ifname: str
    ways: frozenset[Way]
    addresses: tuple[str, ...] = ()
    eids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerNode:
    """Another node of the super-node, and what its pods can be expected to have."""

    name: str
    slot_id: int
    hops: int | None
    ways: frozenset[Way]


def choose_sockets(asked: Sockets, *, has_ums: bool, has_smc: bool) -> Sockets:
    """Return what is configured: never ``AUTO``, and ``OFF`` where ``auto`` finds nothing.

    Raises:
        Unsupported: a way was asked for by name that this host does not have.
    """
    there = {Sockets.UMS: has_ums, Sockets.SMC: has_smc}
    if asked is Sockets.AUTO:
        return next((way for way, is_there in there.items() if is_there), Sockets.OFF)
    if asked is not Sockets.OFF and not there[asked]:
        missing = {
            Sockets.UMS: "module ums is not loaded (openEuler; it replaces smc)",
            Sockets.SMC: "the kernel has no SMC, or SMC has no RDMA device",
        }
        raise Unsupported(f"zeroCopy.sockets {asked.value!r} is not possible here: {missing[asked]}")
    return asked


def ways_between(one: frozenset[Way], other: frozenset[Way], *, same_host: bool) -> tuple[Way, ...]:
    """Return the ways that both ends have, the best first; ``ip`` is always the last of them."""
    both = (one & other) | {Way.IP}
    if not same_host:
        both = both - {Way.SHM}
    return tuple(way for way in _ORDER if way in both)


def document(own: End, ends: Iterable[End], nodes: Iterable[PeerNode]) -> dict[str, Any]:
    """Return what the pod of ``own`` finds in ``/run/ub/paths.json``."""
    peers = [
        _peer("pod", end.name, ways_between(own.ways, end.ways, same_host=True))
        | {"addresses": list(end.addresses), "eids": list(end.eids)}
        for end in sorted(ends, key=lambda end: (end.name, end.ifname))
        if end.network == own.network and end.container != own.container
    ]
    peers += [
        _peer("node", node.name, ways_between(own.ways, node.ways, same_host=False))
        | {"slot": node.slot_id, "hops": node.hops}
        for node in nodes
    ]
    return {
        "version": VERSION,
        "network": own.network,
        "interface": own.ifname,
        "addresses": list(own.addresses),
        "eids": list(own.eids),
        "ways": [way.value for way in _ORDER if way in own.ways | {Way.IP}],
        "shared_memory": f"{FOLDER}/shm/{own.ifname}/segment" if Way.SHM in own.ways else None,
        "peers": peers,
    }


def _peer(kind: str, name: str, ways: tuple[Way, ...]) -> dict[str, Any]:
    return {"kind": kind, "name": name, "best": ways[0].value, "ways": [way.value for way in ways]}


def rows(documents: Mapping[str, Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return the table of ``ubnode show paths`` from the documents of pods, by pod and interface."""
    return [
        (
            name.rpartition(" ")[0],
            found["network"],
            found["interface"],
            peer["kind"],
            peer["name"],
            peer["best"],
            " ".join(peer["ways"]),
        )
        for name, found in sorted(documents.items())
        for peer in found["peers"]
    ]
