"""What changed between two looks at a host, why it matters, and whom it touches. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ubhost.discovery import Discovery
from ubhost.provider import Device
from ubhost.show.table import size
from ubhost.topology import Die, Topology


class What(Enum):
    PORT_DOWN = "port down"
    PORT_UP = "port up"
    DEVICE_GONE = "device gone"
    DEVICE_NEW = "new device"
    UNHEALTHY = "device unhealthy"
    HEALTHY = "device healthy"
    NODE_GONE = "node gone"
    NODE_NEW = "new node"
    MEMORY_GONE = "memory gone"
    MEMORY_NEW = "new memory"
    SHARING = "sharing changed"


@dataclass(frozen=True, slots=True)
class Change:
    """``subject`` is what changed, ``cause`` how it shows, ``devices`` the devices of pods that it touches."""

    what: What
    subject: str
    cause: str
    devices: tuple[str, ...] = ()


def changes(before: Discovery, after: Discovery) -> tuple[Change, ...]:
    """Return what a person or a program should hear of; none where the two looks say the same."""
    return (
        *_ports(before.topology, after),
        *_devices(before, after),
        *_nodes(before.topology, after.topology),
        *_memory(before, after),
        *_sharing(before, after),
    )


def _ports(before: Topology, after: Discovery) -> Iterator[Change]:
    old = {(die.controller, port.index): port for die in before.dies for port in die.ports}
    for die in after.topology.dies:
        for port in die.ports:
            was = old.get((die.controller, port.index))
            if was is None or was.is_up == port.is_up or port.is_up is None or was.is_up is None:
                continue
            far = port.peer or was.peer or "outside this domain"
            yield Change(
                What.PORT_UP if port.is_up else What.PORT_DOWN,
                f"die {die.controller} port {port.index}",
                f"link to {far}; plane {die.plane} has {len(die.links)} of {len(die.ports)} ports up"
                + ("" if die.links else ": it is cut off"),
                _on(die, after.devices),
            )


def _on(die: Die, devices: tuple[Device, ...]) -> tuple[str, ...]:
    return tuple(device.id for device in devices if set(device.members) & set(die.devices))


def _devices(before: Discovery, after: Discovery) -> Iterator[Change]:
    old, new = ({device.id: device for device in found.devices} for found in (before, after))
    for name in sorted(old.keys() - new.keys()):
        yield Change(What.DEVICE_GONE, name, f"was made of {' '.join(old[name].members) or 'nothing yet'}", (name,))
    for name in sorted(new.keys() - old.keys()):
        yield Change(What.DEVICE_NEW, name, f"made of {' '.join(new[name].members) or 'nothing yet'}", (name,))
    for name in sorted(old.keys() & new.keys()):
        if old[name].is_healthy != new[name].is_healthy:
            what = What.HEALTHY if new[name].is_healthy else What.UNHEALTHY
            yield Change(what, name, _health(new[name], after), (name,))


def _health(device: Device, found: Discovery) -> str:
    """Say what is known to be wrong; UBSE gives no reason with its verdict."""
    kernel = found.topology.devices
    missing = [member for member in device.members if member not in kernel]
    if missing:
        return f"{' '.join(missing)} not there"
    states = [
        f"{member} port {port.index} {port.state.name}"
        for member in device.members
        for port in kernel[member].ports
        if port.state is not None
    ]
    return ", ".join(states) or "UBSE says so"


def _nodes(before: Topology, after: Topology) -> Iterator[Change]:
    """Only between two looks that both had UBSE: without it, nodes are not gone but unknown."""
    if not before.nodes or not after.nodes:
        return
    old, new = ({node.slot_id: node for node in found.nodes} for found in (before, after))
    for slot in sorted(old.keys() - new.keys()):
        yield Change(What.NODE_GONE, old[slot].host_name, f"slot {slot} is no longer in the super-node")
    for slot in sorted(new.keys() - old.keys()):
        yield Change(What.NODE_NEW, new[slot].host_name, f"slot {slot} joined the super-node")


def _memory(before: Discovery, after: Discovery) -> Iterator[Change]:
    old, new = ({node.id: node for node in found.host.numa} for found in (before, after))
    for id_ in sorted(old.keys() - new.keys()):
        yield Change(What.MEMORY_GONE, f"NUMA {id_}", f"{size(old[id_].memory_total)} went")
    for id_ in sorted(new.keys() - old.keys()):
        yield Change(What.MEMORY_NEW, f"NUMA {id_}", f"{size(new[id_].memory_total)} came")
    regions = [{region.id: region for region in found.host.shared_memory} for found in (before, after)]
    for id_ in sorted(regions[0].keys() - regions[1].keys()):
        yield Change(What.MEMORY_GONE, regions[0][id_].node, f"{regions[0][id_].type} of {size(regions[0][id_].size)}")
    for id_ in sorted(regions[1].keys() - regions[0].keys()):
        yield Change(What.MEMORY_NEW, regions[1][id_].node, f"{regions[1][id_].type} of {size(regions[1][id_].size)}")


def _sharing(before: Discovery, after: Discovery) -> Iterator[Change]:
    if before.sharing != after.sharing and before.sharing is not None and after.sharing is not None:
        yield Change(
            What.SHARING,
            "devices",
            f"{before.sharing.value} before, {after.sharing.value} now, between network namespaces",
            tuple(device.id for device in after.devices),
        )
