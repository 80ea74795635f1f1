"""The provider of UB hosts: the ubcore driver and UBSE. A simulated host has the same class over another transport.

The driver's tools report success on failure (reference/ub.md section 3, rule 5), so each change is read back
from the sysfs of the namespace concerned before it counts as done.
"""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.kernel.netns import inode, new_netns, own_inode
from ubhost.model import Eid, UrmaDevice
from ubhost.provider import Bandwidth, Device, EidSlot, Kind, Sharing
from ubhost.providers.allocations import Allocations
from ubhost.providers.grouping import Found, Membership, alone, called, managed
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder, Unreadable
from ubhost.sysfs.entities import read_entity_numa
from ubhost.sysfs.urma import NAME, device_names, read_brief, read_eids, read_identities
from ubhost.ubcore.client import Refused, Ubcore
from ubhost.ubse.bodies import UrmaInfo
from ubhost.ubse.client import Absent, Ubse

View = Callable[[Ubcore, int], AbstractContextManager[Path]]
"""From the descriptor of a namespace to the folder ``ubcore`` of devices that a process inside it sees."""

PRIORITIES = 16

HOW_TO_SWITCH = (
    "this host shows its devices in every network namespace (dev_sharing on); switch it with"
    " `urma_admin system set dev_sharing off` at boot, before the container runtime starts"
)


class UbcoreProvider:
    """See ``ubhost.provider.Provider``. Holds nothing open, so one may be made for each call; kept, it is quicker."""

    def __init__(self, kind: Kind, roots: Roots, ubcore: Ubcore, view: View) -> None:
        self.kind = kind
        self._ubcore = ubcore
        self._view = view
        self._devices = Folder(roots.sys / "class/ubcore")
        self._bus = Folder(roots.sys / "bus/ub/devices")
        self._nodes = Folder(roots.sys / "devices/system/node")
        self._ubse = Ubse(roots.ubse_socket)
        self._allocations = Allocations(roots.run)
        self._known: Membership | None = None

    def devices(self) -> tuple[Device, ...]:
        infos = self._infos()
        devices = read_brief(self._devices)
        return self._grouped(Found.of(devices, self._numa(devices)), infos)

    def device(self, name: str) -> Device:
        infos = self._infos()
        device, members, is_current = self._look(name, infos)
        if not is_current:  # another was plugged in its place
            self._known = None
            device, members, _ = self._look(name, infos)
        found = Found.of(members, self._numa(members))
        return called(device.id, self._grouped(found, infos and tuple(i for i in infos if i.name == device.id)))

    def _look(self, name: str, infos: tuple[UrmaInfo, ...] | None) -> tuple[Device, tuple[UrmaDevice, ...], bool]:
        """Return the device, its members as they are now, and whether these are still the members."""
        known = self._membership(infos)
        device = known.device(name)
        members = read_brief(self._devices, device.members)
        return device, members, known.holds_for(device, members)

    def _membership(self, infos: tuple[UrmaInfo, ...] | None) -> Membership:
        """What is made of what: remembered while the kernel and UBSE list the same names."""
        allocated = {} if infos is None else self._allocations.read()
        key = (device_names(self._devices), None if infos is None else tuple(info.name for info in infos), allocated)
        known = self._known
        if known is None or known.key != key:
            kernel = read_identities(self._devices)
            found = Found.of(kernel, {})
            known = Membership(key, kernel, alone(found) if infos is None else managed(found, infos, allocated))
            self._known = known
        return known

    def _infos(self) -> tuple[UrmaInfo, ...] | None:
        """What UBSE manages; ``None`` on a host without it."""
        try:
            return self._ubse.urma_devices()
        except Absent:
            return None

    def _grouped(self, found: Found, infos: tuple[UrmaInfo, ...] | None) -> tuple[Device, ...]:
        return alone(found) if infos is None else managed(found, infos, self._allocations.read())

    def sharing(self) -> Sharing:
        return self._sharing(self._ubcore)

    def _sharing(self, ubcore: Ubcore) -> Sharing:
        try:
            shared = ubcore.show_system().dev_sharing
        except Refused as refusal:
            if refusal.code not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            shared = None  # a driver from before SHOW_SYSTEM
        if shared is None:
            shared = self._shows_devices_to_strangers(ubcore)
        return Sharing.SHARED if shared else Sharing.EXCLUSIVE

    def _shows_devices_to_strangers(self, ubcore: Ubcore) -> bool:
        """A driver that shares shows its devices in a namespace that was never given any."""
        netns = new_netns()
        try:
            return bool(self._exposed(ubcore, netns))
        finally:
            os.close(netns)

    def expose(self, member: str, netns: int) -> None:
        self.expose_all((member,), netns)

    def expose_all(self, members: tuple[str, ...], netns: int) -> None:
        for member in members:
            self._require(member)
        with self._ubcore.connected() as ubcore:
            if self._sharing(ubcore) is Sharing.SHARED:
                raise Unsupported(f"{' '.join(members)}: {HOW_TO_SWITCH}")
            there = self._exposed(ubcore, netns)
            missing = [member for member in members if member not in there]
            for member in missing:
                ubcore.expose(member, netns)
            there = self._exposed(ubcore, netns) if missing else there
            for member in missing:
                if member not in there:
                    raise HostFault(f"ubcore took the exposure of {member}, but it does not appear in {_name(netns)}")

    def unexpose(self, member: str, netns: int) -> None:
        self.unexpose_all((member,), netns)

    def unexpose_all(self, members: tuple[str, ...], netns: int) -> None:
        with self._ubcore.connected() as ubcore:
            there = self._exposed(ubcore, netns)
            present = [member for member in members if member in there]
            for member in present:
                ubcore.unexpose(member, netns)
            there = self._exposed(ubcore, netns) if present else ()
            for member in present:
                if member in there:
                    raise HostFault(f"ubcore took {member} back, but it still appears in {_name(netns)}")

    def move_eid(self, slot: EidSlot, netns: int) -> None:
        self.move_eids((slot,), netns)

    def move_eids(self, slots: tuple[EidSlot, ...], netns: int) -> None:
        members = sorted({slot.device for slot in slots})
        for member in members:
            self._require(member)
        with self._ubcore.connected() as ubcore:
            there = self._seen(ubcore, netns, members)
            for member in members:
                if member not in there:
                    raise Conflict(f"{member} is not exposed in {_name(netns)}: expose it before its EIDs move")
            moving = [slot for slot in slots if there[slot.device].get(slot.index) != slot.eid]
            self._require_slots(moving, is_home=inode(netns) == own_inode())
            for slot in moving:
                ubcore.move_eid(slot.device, slot.index, netns)
            there = self._seen(ubcore, netns, members) if moving else there
            for slot in moving:
                if there.get(slot.device, {}).get(slot.index) != slot.eid:
                    raise HostFault(
                        f"ubcore moved {slot.device} eid{slot.index}, but it does not appear in {_name(netns)}"
                    )

    def visible(self, netns: int) -> tuple[EidSlot, ...]:
        with self._ubcore.connected() as ubcore:
            seen = self._seen(ubcore, netns, None)
        return tuple(EidSlot(name, index, eid) for name, table in seen.items() for index, eid in table.items())

    def exposed(self, netns: int) -> tuple[str, ...]:
        with self._ubcore.connected() as ubcore:
            return self._exposed(ubcore, netns)

    def allocate(self, device_id: str) -> None:
        try:
            paths = self._ubse.allocate(device_id)
        except Absent:
            self._require_device(device_id)
        except Conflict as error:
            raise Busy(f"{device_id} is allocated already: {error}") from error
        else:
            self._allocations.remember(device_id, paths)

    def free(self, device_id: str) -> None:
        """Give the device back; what is not allocated, or gone, is free."""
        with suppress(Absent, NotFound):
            self._ubse.free(device_id)
        self._allocations.forget(device_id)

    def bandwidth(self, device_id: str) -> Bandwidth:
        try:
            low, high = self._ubse.bandwidth(device_id)
        except (Absent, NotFound):  # UBSE answers alike for no device and for no limit
            self._require_device(device_id)
            return Bandwidth()
        return Bandwidth(low, high)

    def set_bandwidth(self, device_id: str, bandwidth: Bandwidth) -> None:
        try:
            if bandwidth == Bandwidth():
                self._ubse.reset_bandwidth(device_id)
            else:
                self._ubse.set_bandwidth(device_id, bandwidth.min_mbps, bandwidth.max_mbps)
        except Absent as error:
            raise Unsupported(f"{device_id}: only UBSE can limit a URMA device: {error}") from error
        if self.bandwidth(device_id) != bandwidth:
            raise HostFault(f"UBSE took the limit of {device_id}, but reports {self.bandwidth(device_id)}")

    def service_level(self, member: str, priority: int) -> int | None:
        return (self._devices / member / "priority" / f"priority{priority}").number("sl")

    def set_service_level(self, member: str, service_level: int, priority: int) -> None:
        if not (0 <= priority < PRIORITIES and 0 <= service_level < PRIORITIES):
            raise InvalidRequest(
                f"{member}: priority {priority} and service level {service_level} must be below {PRIORITIES}"
            )
        self._require(member)
        self._ubcore.set_service_level(member, service_level, priority)
        told = self.service_level(member, priority)
        if told not in (None, service_level):
            raise HostFault(f"ubcore took service level {service_level} of {member}, but reports {told}")

    def _exposed(self, ubcore: Ubcore, netns: int) -> tuple[str, ...]:
        with self._view(ubcore, netns) as path:
            return device_names(Folder(path))

    def _seen(self, ubcore: Ubcore, netns: int, members: Iterable[str] | None) -> Mapping[str, Mapping[int, Eid]]:
        """Return the EIDs that are not zero inside ``netns``, by device and slot, of ``members`` or of all."""
        with self._view(ubcore, netns) as path:
            folder = Folder(path)
            names = device_names(folder)
            wanted = names if members is None else [member for member in members if member in names]
            return {name: _table(folder / name) for name in wanted}

    def _require_slots(self, slots: Iterable[EidSlot], *, is_home: bool) -> None:
        """Refuse slots that do not hold, in our own namespace, the EID that is to move.

        One on its way home is in another namespace, so here its slot reads as an empty one.
        """
        here: dict[str, Mapping[int, Eid]] = {}
        for slot in slots:
            if slot.device not in here:
                here[slot.device] = _table(self._devices / slot.device)
            if slot.eid.is_zero or here[slot.device].get(slot.index) != (None if is_home else slot.eid):
                raise NotFound(
                    f"{slot.device} eid{slot.index} is not {slot.eid} here: the slot is empty, or somebody else's"
                )

    def _require(self, member: str) -> None:
        if not NAME.fullmatch(member) or not (self._devices / member).exists:
            raise NotFound(f"there is no URMA device {member!r} on this host")

    def _require_device(self, device_id: str) -> None:
        if all(device.id != device_id for device in self.devices()):
            raise NotFound(f"there is no device {device_id!r} on this host")

    def _numa(self, devices: tuple[UrmaDevice, ...]) -> Mapping[str, int | None]:
        numbers = {device.entity for device in devices if device.entity is not None}
        return {number: self._numa_of(number) for number in numbers}

    def _numa_of(self, entity: str) -> int | None:
        """Kubelet refuses a pod for a NUMA node that the machine does not have, so such a one is none."""
        try:
            numa = read_entity_numa(self._bus / entity)
        except Unreadable:  # the entity is told of with its fault; the device can be used all the same
            return None
        is_there = numa is not None and ((self._nodes / f"node{numa}").exists or not self._nodes.exists)
        return numa if is_there else None


def _table(device: Folder) -> Mapping[int, Eid]:
    return {index: eid for index, eid in enumerate(read_eids(device)) if not eid.is_zero}


def _name(netns: int) -> str:
    return f"net:[{inode(netns)}]"
