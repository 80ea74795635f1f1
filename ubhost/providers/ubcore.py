"""The provider of UB hosts: the ubcore driver and UBSE. A simulated host has the same class over another transport.

The driver's tools report success on failure (reference/ub.md section 3, rule 5), so each change is read back
from the sysfs of the namespace concerned before it counts as done.
"""

import errno
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.kernel.netns import inode
from ubhost.model import UrmaDevice
from ubhost.provider import Bandwidth, Device, EidSlot, Kind, Sharing
from ubhost.providers.allocations import Allocations
from ubhost.providers.grouping import Found, alone, managed
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder
from ubhost.sysfs.entities import read_entity_numa
from ubhost.sysfs.urma import device_names, read_brief, read_eids
from ubhost.ubcore.client import Refused, Ubcore
from ubhost.ubse.client import Absent, Ubse

View = Callable[[int], AbstractContextManager[Path]]
"""From the descriptor of a namespace to the folder ``ubcore`` of devices that a process inside it sees."""

PRIORITIES = 16

HOW_TO_SWITCH = (
    "this host shows its devices in every network namespace (dev_sharing on); switch it with"
    " `urma_admin system set dev_sharing off` at boot, before the container runtime starts"
)


class UbcoreProvider:
    """See ``ubhost.provider.Provider``. Holds nothing open, so one may be kept, or made for each call."""

    def __init__(self, kind: Kind, roots: Roots, ubcore: Ubcore, view: View) -> None:
        self.kind = kind
        self._ubcore = ubcore
        self._view = view
        self._devices = Folder(roots.sys / "class/ubcore")
        self._bus = Folder(roots.sys / "bus/ub/devices")
        self._ubse = Ubse(roots.ubse_socket)
        self._allocations = Allocations(roots.run)

    def devices(self) -> tuple[Device, ...]:
        devices = read_brief(self._devices)
        found = Found.of(devices, self._numa(devices))
        try:
            infos = self._ubse.urma_devices()
        except Absent:
            return alone(found)
        return managed(found, infos, self._allocations.read())

    def sharing(self) -> Sharing:
        """Raises Unsupported where the driver is too old to be asked (before SHOW_SYSTEM)."""
        try:
            shared = self._ubcore.show_system().dev_sharing
        except Refused as refusal:
            if refusal.code not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            raise Unsupported("this ubcore driver cannot be asked whether it shares devices") from refusal
        return Sharing.EXCLUSIVE if shared is False else Sharing.SHARED

    def expose(self, member: str, netns: int) -> None:
        self._require(member)
        if self.sharing() is Sharing.SHARED:
            raise Unsupported(f"{member}: {HOW_TO_SWITCH}")
        if member in self.exposed(netns):
            return
        self._ubcore.expose(member, netns)
        if member not in self.exposed(netns):
            raise HostFault(f"ubcore took the exposure of {member}, but it does not appear in net:[{inode(netns)}]")

    def unexpose(self, member: str, netns: int) -> None:
        if member not in self.exposed(netns):
            return
        self._ubcore.unexpose(member, netns)
        if member in self.exposed(netns):
            raise HostFault(f"ubcore took {member} back, but it still appears in net:[{inode(netns)}]")

    def move_eid(self, slot: EidSlot, netns: int) -> None:
        self._require(slot.device)
        if slot.device not in self.exposed(netns):
            raise Conflict(f"{slot.device} is not exposed in net:[{inode(netns)}]: expose it before its EIDs move")
        here = dict(enumerate(read_eids(self._devices / slot.device)))
        if slot.index not in here:
            raise NotFound(f"{slot.device} has no EID slot {slot.index}")
        if slot in self.visible(netns):
            return
        if here[slot.index] != slot.eid:
            raise NotFound(f"{slot.device} eid{slot.index} is not {slot.eid} here: the slot is empty, or moved already")
        self._ubcore.move_eid(slot.device, slot.index, netns)
        if slot not in self.visible(netns):
            raise HostFault(
                f"ubcore moved {slot.device} eid{slot.index}, but it does not appear in net:[{inode(netns)}]"
            )

    def visible(self, netns: int) -> tuple[EidSlot, ...]:
        with self._view(netns) as path:
            folder = Folder(path)
            return tuple(
                EidSlot(name, index, eid)
                for name in device_names(folder)
                for index, eid in enumerate(read_eids(folder / name))
                if not eid.is_zero
            )

    def exposed(self, netns: int) -> tuple[str, ...]:
        with self._view(netns) as path:
            return device_names(Folder(path))

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

    def set_service_level(self, member: str, service_level: int, priority: int) -> None:
        if not (0 <= priority < PRIORITIES and 0 <= service_level < PRIORITIES):
            raise InvalidRequest(
                f"{member}: priority {priority} and service level {service_level} must be below {PRIORITIES}"
            )
        self._require(member)
        self._ubcore.set_service_level(member, service_level, priority)
        told = (self._devices / member / "priority" / f"priority{priority}").number("sl")
        if told not in (None, service_level):
            raise HostFault(f"ubcore took service level {service_level} of {member}, but reports {told}")

    def _require(self, member: str) -> None:
        if member not in device_names(self._devices):
            raise NotFound(f"there is no URMA device {member!r} on this host")

    def _require_device(self, device_id: str) -> None:
        if all(device.id != device_id for device in self.devices()):
            raise NotFound(f"there is no device {device_id!r} on this host")

    def _numa(self, devices: tuple[UrmaDevice, ...]) -> Mapping[str, int | None]:
        numbers = {device.entity for device in devices if device.entity is not None}
        return {number: read_entity_numa(self._bus / number) for number in numbers}
