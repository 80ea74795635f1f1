"""How kernel devices make up the devices that pods are given. Pure.

UBSE hands out ``urma_N``: a bonding device over two physical entities. Which ones they are it says when one is
allocated. Before that we go by two rules that hold on every machine seen: ``urma_N`` is ``bonding_dev_N``, and the
last two words of a bonding EID are the ids of its entities, which stand in the third word of their own first EID.
Where they do not hold, a device has no members until it is allocated.

``bonding_dev_0`` with its entities is the host's own, and never given away.

Source: reference/ub.md sections 1.3, 2 and 5.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ubhost.errors import NotFound
from ubhost.model import PortState, UrmaDevice
from ubhost.provider import Device, EidSlot
from ubhost.ubse.bodies import UrmaInfo, UrmaPaths

HOSTS_OWN = "bonding_dev_0"
COMMON_NODE = "ummu"  # every URMA application opens it
_UP = (PortState.ACTIVE, PortState.ACTIVE_DEFER)


@dataclass(frozen=True, slots=True)
class Found:
    """Everything known of the kernel's devices; ``numa`` by UB entity number, ``by_id`` their names by entity id."""

    devices: Mapping[str, UrmaDevice]
    numa: Mapping[str, int | None]
    by_id: Mapping[int, str]

    @classmethod
    def of(cls, devices: Iterable[UrmaDevice], numa: Mapping[str, int | None]) -> "Found":
        known = {device.name: device for device in devices}
        by_id = {number: name for name, d in known.items() if (number := _entity_id(d)) is not None}
        return cls(known, numa, by_id)


@dataclass(frozen=True)
class Membership:
    """Which kernel devices make up which device, as found when ``key`` was what is listed."""

    key: object
    kernel: tuple[UrmaDevice, ...]
    devices: tuple[Device, ...]

    def device(self, name: str) -> Device:
        """Return the device called so; only its id and its members are up to date."""
        return called(name, self.devices)

    def holds_for(self, device: Device, members: Iterable[UrmaDevice]) -> bool:
        """Whether ``members``, as they are now, are those found then; without a guid nobody can tell."""
        then = {member.name: (member.guid, member.entity) for member in self.kernel}
        now = {member.name: (member.guid, member.entity) for member in members if member.guid is not None}
        return tuple(now) == device.members and all(then.get(name) == identity for name, identity in now.items())


def called(name: str, devices: Iterable[Device]) -> Device:
    """Return the device of this id, member or address.

    Raises:
        NotFound: none is called so.
    """
    device = next((device for device in devices if device.is_called(name)), None)
    if device is None:
        raise NotFound(f"there is no device called {name!r} on this host")
    return device


def managed(found: Found, infos: Iterable[UrmaInfo], allocated: Mapping[str, UrmaPaths]) -> tuple[Device, ...]:
    """Return what UBSE manages, sorted by id; ``allocated`` is what it said when it gave one out."""
    devices = (
        _device(info.name, _members(info.name, found, allocated), found, is_healthy=info.is_healthy) for info in infos
    )
    return tuple(sorted(devices, key=lambda device: _natural(device.id)))


def alone(found: Found) -> tuple[Device, ...]:
    """Return every kernel device as a device of its own, as on a machine without UBSE."""
    hosts_own = {HOSTS_OWN, *_entities(HOSTS_OWN, found)}
    names = sorted((name for name in found.devices if name not in hosts_own), key=_natural)
    return tuple(_device(name, (name,), found, is_healthy=True) for name in names)


def _members(device_id: str, found: Found, allocated: Mapping[str, UrmaPaths]) -> tuple[str, ...]:
    if paths := allocated.get(device_id):
        return (paths.bonding, *paths.entities)
    bonding = f"bonding_dev_{device_id.rpartition('_')[2]}"
    entities = _entities(bonding, found)
    return (bonding, *entities) if entities else ()


def _entities(bonding: str, found: Found) -> tuple[str, ...]:
    """Return the two devices below ``bonding``; none where its EID does not tell.

    The EID is zero while a pod has it. Then the guid tells, which keeps the same value.
    """
    device = found.devices.get(bonding)
    if device is None:
        return ()
    eid = next((eid for eid in (*device.eids[:1], device.guid) if eid is not None and not eid.is_zero), None)
    if eid is None:
        return ()
    names = tuple(found.by_id.get(eid.words[at], "") for at in (2, 3))
    return names if all(names) and names[0] != names[1] else ()


def _entity_id(device: UrmaDevice) -> int | None:
    if device.is_bonding:
        return None
    eid = next((eid for eid in (*device.eids[:1], device.guid) if eid is not None and not eid.is_zero), None)
    return None if eid is None else eid.words[2]


def _device(device_id: str, members: tuple[str, ...], found: Found, *, is_healthy: bool) -> Device:
    present = [found.devices[name] for name in members if name in found.devices]
    entities = [device.entity for device in present if device.entity is not None]
    return Device(
        id=device_id,
        members=members,
        eids=tuple(
            EidSlot(device.name, index, eid)
            for device in present
            for index, eid in enumerate(device.eids)
            if not eid.is_zero
        ),
        netdev=next((device.net_dev for device in present if device.net_dev), None),
        numa=next((numa for entity in entities if (numa := found.numa.get(entity)) is not None), None),
        is_healthy=is_healthy and len(present) == len(members) and not _is_ill(present),
        nodes=(*(f"uburma/{name}" for name in members), COMMON_NODE),
        address=entities[0] if entities else None,
    )


def _is_ill(devices: Iterable[UrmaDevice]) -> bool:
    """Whether one cannot be read, or the ports tell their state and none of them is up."""
    devices = tuple(devices)
    if any(device.fault for device in devices):
        return True
    states = [port.state for device in devices for port in device.ports if port.state is not None]
    return bool(states) and not any(state in _UP for state in states)


def _natural(name: str) -> tuple[str, int]:
    """urma_2 before urma_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
