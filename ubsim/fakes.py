"""A UB host in memory, for tests of the plugins: it refuses what the driver and UBSE refuse.

``FakeProvider`` is an ``ubhost.provider.Provider`` over the same state machines that the daemons of a simulated
node run (``ubsim.ubcore``, ``ubsim.ubse``), so no daemon, root or socket is needed:

    provider = FakeProvider(fake_devices(2))
    provider.fail("expose", errno.EPERM, skip=1)          # the second expose fails
    provider.fail("move_eid", errno.EIO, when=When.AFTER)  # does its work and reports a failure
    provider.delay("allocate", 0.2)

Namespaces are recognised by the inode of the descriptor, so that any open file may stand for one.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, UbError, Unsupported
from ubhost.model import Eid
from ubhost.provider import Bandwidth, Device, EidSlot, Kind, Sharing
from ubhost.providers.ubcore import HOW_TO_SWITCH
from ubhost.ubse.status import Status
from ubsim.fake_devices import fake_devices as fake_devices
from ubsim.faults import Fault, Faults, When
from ubsim.ubcore import Refused, Ubcore
from ubsim.ubse import Rejected, Ubse, Urma


@dataclass(frozen=True, slots=True)
class Call:
    """One operation that was asked for; ``outcome`` is "ok" or the name of the reason."""

    operation: str
    device: str
    detail: str
    outcome: str


class FakeProvider:
    """See the module. Safe for threads: one operation at a time, as the driver's lock has it."""

    kind = Kind.SIM

    def __init__(
        self,
        devices: Iterable[Device] | None = None,
        *,
        sharing: Sharing = Sharing.EXCLUSIVE,
        init_netns: int | None = None,
    ) -> None:
        self.faults = Faults()
        self.calls: list[Call] = []
        self._lock = threading.RLock()
        self._devices: dict[str, Device] = {}
        init = Path("/proc/self/ns/net").stat().st_ino if init_netns is None else init_netns
        self._ubcore = Ubcore(init, is_shared=sharing is Sharing.SHARED)
        self._ubse = Ubse()
        for device in fake_devices() if devices is None else devices:
            self.plug(device)

    # What a test does to the host

    def fail(
        self, operation: str, number: int, *, device: str = "", skip: int = 0, count: int = 1, when: When = When.BEFORE
    ) -> None:
        """Let ``count`` calls of ``operation``, after ``skip`` good ones, fail with errno ``number``.

        ``operation`` is the name of a provider method; ``device`` a member or a device id, "" for any.
        """
        self.faults.order(Fault(operation, number, self._concerned(device), skip, count, when=when))

    def delay(self, operation: str, seconds: float, *, device: str = "", skip: int = 0, count: int = 1) -> None:
        self.faults.order(Fault(operation, 0, self._concerned(device), skip, count, delay_s=seconds))

    def _concerned(self, device: str) -> frozenset[str]:
        """``urma_1`` stands for itself and for the kernel devices it is made of."""
        if not device:
            return frozenset()
        return frozenset({device, *(self._devices[device].members if device in self._devices else ())})

    def plug(self, device: Device) -> None:
        with self._lock:
            for member in device.members:
                eids = {slot.index: slot.eid for slot in device.eids if slot.device == member}
                table = tuple(eids.get(at, Eid(0)) for at in range(max(eids, default=-1) + 1))
                self._ubcore = self._ubcore.plug(member, table)
            bonding, *members = device.members
            pair = (members[0], members[-1]) if members else (bonding, bonding)
            eid = next((slot.eid for slot in device.eids), Eid(0))
            self._ubse = self._ubse.changed(Urma(device.id, bonding, pair, eid, is_healthy=device.is_healthy))
            self._devices[device.id] = device

    def unplug(self, device_id: str) -> None:
        with self._lock:
            for member in self._devices.pop(device_id).members:
                self._ubcore = self._ubcore.unplug(member)
            self._ubse = self._ubse.without(device_id)

    def set_health(self, device_id: str, *, healthy: bool) -> None:
        with self._lock:
            self._devices[device_id] = replace(self._devices[device_id], is_healthy=healthy)

    def netns_gone(self, netns: int) -> None:
        """The namespace with this inode died: devices and EIDs come home, or are lost in shared mode."""
        with self._lock:
            self._ubcore = self._ubcore.close_netns(netns)

    def set_sharing(self, sharing: Sharing) -> None:
        """As ``urma_admin system set dev_sharing``: refused while another namespace lives."""
        with self._lock, _reasons(sharing.value):
            self._ubcore = self._ubcore.set_sharing(shared=sharing is Sharing.SHARED)

    def set_sharing_kind(self, device_id: str, *, unique: bool) -> None:
        """Make UBSE's device one that many share, which then can be neither held nor limited."""
        with self._lock:
            self._ubse = self._ubse.changed(replace(self._ubse.named(device_id), is_unique=unique))

    def holder(self, device_id: str) -> int | None:
        """Return the uid that allocated the device."""
        return self._ubse.named(device_id).holder

    def service_levels(self, member: str) -> tuple[int, ...]:
        return self._ubcore.devices[member].service_levels

    # The provider

    def devices(self) -> tuple[Device, ...]:
        with self._operation("devices"):
            found = sorted(self._devices.values(), key=lambda device: device.id)
            return tuple(replace(device, eids=self._seen_at_home(device)) for device in found)

    def device(self, name: str) -> Device:
        with self._operation("device", name):
            for device in self.devices():
                if device.is_called(name):
                    return device
            raise NotFound(f"there is no device called {name!r} on this host")

    def sharing(self) -> Sharing:
        with self._operation("sharing"):
            return Sharing.SHARED if self._ubcore.is_shared else Sharing.EXCLUSIVE

    def expose(self, member: str, netns: int) -> None:
        inode = _inode(netns)
        with self._operation("expose", member, f"net:[{inode}]"):
            self._require(member)
            if self._ubcore.is_shared:
                raise Unsupported(f"{member}: {HOW_TO_SWITCH}")
            self._change(lambda state: state.expose(member, inode))

    def unexpose(self, member: str, netns: int) -> None:
        inode = _inode(netns)
        with self._operation("unexpose", member, f"net:[{inode}]"):
            if member in self._ubcore.devices:
                self._change(lambda state: state.unexpose(member, inode))

    def expose_all(self, members: tuple[str, ...], netns: int) -> None:
        """Each counts as one ``expose`` among the calls and for the faults."""
        with self._lock:
            for member in members:
                self._require(member)
            for member in members:
                self.expose(member, netns)

    def unexpose_all(self, members: tuple[str, ...], netns: int) -> None:
        for member in members:
            self.unexpose(member, netns)

    def move_eid(self, slot: EidSlot, netns: int) -> None:
        inode = _inode(netns)
        with self._operation("move_eid", slot.device, f"eid{slot.index} to net:[{inode}]"):
            self._require_movable(slot, inode)
            self._change(lambda state: state.set_eid_netns(slot.device, slot.index, inode))

    def move_eids(self, slots: tuple[EidSlot, ...], netns: int) -> None:
        """Each counts as one ``move_eid`` among the calls and for the faults."""
        with self._lock:
            for slot in slots:
                self._require_movable(slot, _inode(netns))
            for slot in slots:
                self.move_eid(slot, netns)

    def visible(self, netns: int) -> tuple[EidSlot, ...]:
        inode = _inode(netns)
        with self._operation("visible", detail=f"net:[{inode}]"):
            self._change(lambda state: state.open_netns(inode))
            return tuple(
                EidSlot(device.name, at, eid)
                for device in self._ubcore.visible(inode)
                for at, eid in enumerate(device.seen_from(inode, all_eids=self._ubcore.is_eid_shared))
                if not eid.is_zero
            )

    def exposed(self, netns: int) -> tuple[str, ...]:
        inode = _inode(netns)
        with self._operation("exposed", detail=f"net:[{inode}]"):
            self._change(lambda state: state.open_netns(inode))
            return tuple(device.name for device in self._ubcore.visible(inode))

    def allocate(self, device_id: str) -> None:
        with self._operation("allocate", device_id):
            self._ubse = self._ubse.allocate(device_id, os.geteuid())

    def free(self, device_id: str) -> None:
        with self._operation("free", device_id):
            if self._ubse.named(device_id).holder is not None:  # freeing what is free is no error
                self._ubse = self._ubse.free(device_id, os.geteuid())

    def bandwidth(self, device_id: str) -> Bandwidth:
        with self._operation("bandwidth", device_id):
            return self._ubse.named(device_id).bandwidth or Bandwidth()

    def set_bandwidth(self, device_id: str, bandwidth: Bandwidth) -> None:
        with self._operation("set_bandwidth", device_id, f"{bandwidth.min_mbps} to {bandwidth.max_mbps} Mb/s"):
            if bandwidth == Bandwidth():
                self._ubse = self._ubse.unlimit(device_id, os.geteuid())
            else:
                self._ubse = self._ubse.limit(device_id, bandwidth, os.geteuid())

    def service_level(self, member: str, priority: int) -> int | None:
        with self._operation("service_level", member):
            return self.service_levels(member)[priority] if member in self._ubcore.devices else None

    def set_service_level(self, member: str, service_level: int, priority: int) -> None:
        with self._operation("set_service_level", member, f"priority {priority} -> {service_level}"):
            self._require(member)
            self._change(lambda state: state.set_service_level(member, priority, service_level))

    def _seen_at_home(self, device: Device) -> tuple[EidSlot, ...]:
        home = {
            (member, at): eid
            for member in device.members
            for at, eid in enumerate(self._ubcore.devices[member].seen_from(self._ubcore.init))
        }
        slots = (replace(slot, eid=home[slot.device, slot.index]) for slot in device.eids)
        return tuple(slot for slot in slots if not slot.eid.is_zero)

    def _require_movable(self, slot: EidSlot, inode: int) -> None:
        self._require(slot.device)
        table = self._ubcore.devices[slot.device].slots
        if not 0 <= slot.index < len(table) or table[slot.index].eid.is_zero:
            raise NotFound(f"{slot.device} has no EID in slot {slot.index}")
        if not self._ubcore.devices[slot.device].is_in(inode):
            refusal = Refused(errno.EPERM, "no logical device")
            raise Conflict(f"{slot.device} is not exposed in net:[{inode}]: expose it first") from refusal

    def _require(self, member: str) -> None:
        if member not in self._ubcore.devices:
            raise NotFound(f"there is no device {member!r}")

    def _change(self, change: Callable[[Ubcore], Ubcore]) -> None:
        self._ubcore = change(self._ubcore)

    @contextmanager
    def _operation(self, operation: str, device: str = "", detail: str = "") -> Iterator[None]:
        outcome = "ok"
        with self._lock:
            try:
                with _reasons(device):
                    self.faults.meet(operation, device)
                    yield
                    self.faults.meet(operation, device, When.AFTER)
            except Exception as error:
                outcome = type(error).__name__
                raise
            finally:
                self.calls.append(Call(operation, device, detail, outcome))


@contextmanager
def _reasons(name: str) -> Iterator[None]:
    """Turn what the driver and UBSE say into the reasons that the provider interface promises."""
    try:
        yield
    except Refused as refusal:
        kind = InvalidRequest if refusal.errno == errno.EINVAL else HostFault
        raise kind(f"{name}: {refusal.strerror}") from refusal
    except Rejected as rejection:
        raise _REASONS.get(rejection.code, HostFault)(str(rejection)) from rejection


_REASONS: dict[int, type[UbError]] = {
    Status.ENGINE_EXISTED: Busy,
    Status.ENGINE_ALLOCATE: Busy,
    Status.ENGINE_NOT_EXIST: NotFound,
    Status.ENGINE_OUT_OF_RANGE: InvalidRequest,
    Status.NOT_SUPPORTED: Unsupported,
}


def _inode(netns: int) -> int:
    try:
        return os.fstat(netns).st_ino
    except OSError as error:
        raise HostFault(f"descriptor {netns} is not an open namespace: {error.strerror}") from error
