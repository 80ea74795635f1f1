"""Where things are in a super-node: dies, ports, links, planes, NUMA, other nodes and how far they are. Pure.

A *die* is an IO die: a UB controller with ports, and the entities behind it. Dies of the same place in every node
are joined to one another and make a *plane*, so a node has one die on each plane. Planes are numbered by the order of
controllers, from 0.

Sysfs knows the own node and the far ends of its cables (by guid); which nodes there are and which reach which, UBSE
knows.

Source: reference/ub.md sections 4 and 5.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ubhost.model import EntityPort, NumaNode, Position, Speed, UbEntity, UbHost, UrmaDevice
from ubhost.ubse.bodies import CpuLink, NodeInfo


@dataclass(frozen=True, slots=True)
class Port:
    """A cable socket of a die. ``peer`` is the guid at the other end, if that tells it."""

    index: int
    is_up: bool | None = None
    is_boundary: bool = False  # leads out of this domain, such as to a switch
    peer: str | None = None
    peer_port: int | None = None
    cna: int | None = None


@dataclass(frozen=True, slots=True)
class Die:
    """``controller`` is its entity number; ``devices`` the kernel's URMA devices behind it."""

    controller: str
    plane: int
    numa: int | None = None
    ports: tuple[Port, ...] = ()
    devices: tuple[str, ...] = ()
    speed: Speed | None = None  # of a port, as its devices tell it

    @property
    def links(self) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.is_up)

    @property
    def bandwidth_mbps(self) -> int | None:
        """Nominal: the speed of a port times the ports that are up."""
        return None if self.speed is None else self.speed.mbps * len(self.links)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the super-node. ``hops`` is 0 for the own one, ``None`` where no way is known."""

    slot_id: int
    host_name: str
    hops: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """``links`` joins slots, the lower first."""

    position: Position = field(default_factory=Position)
    dies: tuple[Die, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    nodes: tuple[Node, ...] = ()
    links: frozenset[tuple[int, int]] = frozenset()
    devices: Mapping[str, UrmaDevice] = field(default_factory=dict)

    def die_of(self, device: str) -> Die | None:
        """Return the die behind which a kernel device sits; ``None`` for bonding devices, which span two."""
        return next((die for die in self.dies if device in die.devices), None)

    def planes_of(self, members: Iterable[str]) -> tuple[int, ...]:
        """Return the planes that the members of a device reach."""
        dies = (self.die_of(member) for member in members)
        return tuple(sorted({die.plane for die in dies if die is not None}))

    def distance(self, numa: int, other: int) -> int | None:
        """Return the kernel's distance between two NUMA nodes, 10 for one and the same."""
        return next((node.distances.get(other) for node in self.numa if node.id == numa), None)


def topology(host: UbHost, nodes: Iterable[NodeInfo] = (), links: Iterable[CpuLink] = ()) -> Topology:
    """Put together what sysfs and UBSE tell. ``nodes`` and ``links`` are UBSE's, and may be missing."""
    position = _position(host)
    joined = frozenset(
        (min(k.slot_id, k.peer_slot_id), max(k.slot_id, k.peer_slot_id)) for k in links if k.slot_id != k.peer_slot_id
    )
    hops = _hops(position.slot_id, joined)
    return Topology(
        position=position,
        dies=_dies(host),
        numa=host.numa,
        nodes=tuple(
            Node(node.slot_id, node.host_name, hops.get(node.slot_id))
            for node in sorted(nodes, key=lambda n: n.slot_id)
        ),
        links=joined,
        devices={device.name: device for device in host.devices},
    )


def _position(host: UbHost) -> Position:
    """Take the host's own word, else the first two words of its own bonding EID: super-node and slot."""
    if host.position != Position():
        return host.position
    own = next((device for device in host.devices if device.name == "bonding_dev_0"), None)
    eid = next((eid for eid in (own.eids if own else ()) if not eid.is_zero), None)
    return Position(eid.words[0], eid.words[1]) if eid else Position()


def _dies(host: UbHost) -> tuple[Die, ...]:
    controllers = [entity for entity in host.entities if entity.ports]
    return tuple(_die(plane, controller, host) for plane, controller in enumerate(controllers))


def _die(plane: int, controller: UbEntity, host: UbHost) -> Die:
    behind = {
        entity.number
        for entity in host.entities
        if controller.number in (entity.number, entity.ubc, entity.primary_entity)
    }
    devices = [device for device in host.devices if device.entity in behind]
    speeds = (port.active_speed for device in devices for port in device.ports if port.active_speed is not None)
    return Die(
        controller=controller.number,
        plane=plane,
        numa=controller.numa,
        ports=tuple(_port(port) for port in controller.ports),
        devices=tuple(device.name for device in devices),
        speed=next(speeds, None),
    )


def _port(port: EntityPort) -> Port:
    return Port(
        index=port.index,
        is_up=port.linkup,
        is_boundary=bool(port.boundary),
        peer=port.neighbor_guid,
        peer_port=port.neighbor_port_idx,
        cna=port.cna,
    )


def _hops(start: int | None, links: frozenset[tuple[int, int]]) -> dict[int, int]:
    """Breadth first from ``start``."""
    if start is None:
        return {}
    hops = {start: 0}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for pair in links:
            if here in pair:
                there = pair[0] if pair[1] == here else pair[1]
                if there not in hops:
                    hops[there] = hops[here] + 1
                    waiting.append(there)
    return hops
