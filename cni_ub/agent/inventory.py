"""The devices of this node as the agent knows them now, and the word to everybody when that changes.

``observe`` looks once and returns plain values. ``Inventory`` looks again when something hints at a change, hands
what it found first to those who write it down (CDI, DeviceInfo, node features) and then to those who announce it
(kubelet): a device that is announced can be given to a container at once.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from cni_ub.agent import deviceid
from cni_ub.agent.allocation import Place, natural
from cni_ub.agent.allowance import Allowance
from cni_ub.agent.glance import Glance
from cni_ub.agent.health import faults
from cni_ub.agent.service import Loop
from ubhost.discovery import level_of
from ubhost.errors import UbError
from ubhost.ledger import Ledger
from ubhost.model import Position, UrmaDevice
from ubhost.provider import Device, Kind, Provider
from ubhost.rdma.sysfs import read_rdma
from ubhost.record import Record
from ubhost.roots import Roots
from ubhost.sysfs import Folder, read_host
from ubhost.topology import Die, Topology, topology

GLANCE_S = 0.9  # seconds; a change of what raises no event is seen within this, and told within one
BLIND_GRACE_S = 10.0  # UBSE may restart meanwhile; pods that ask for a device then are tried again
LOOK_S = 300.0  # everything is read again after this, whatever the glances said
SHARE = 0.02  # of one CPU, in the long run, goes into looks: they are dear where many devices and pods come and go
SAVED_S = 0.5  # seconds of CPU that looks may take at once, after a rest: a rare change is seen at the next glance
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")  # also a legal name in CDI
_LONGEST = deviceid.MAX - len("::9999")
UNKNOWN = Place()
NOWHERE = Position()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device now. ``pod`` is namespace/name, empty where the runtime did not tell."""

    container: str
    ifname: str
    pod: str = ""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device with everything that others ask about it."""

    device: Device
    place: Place = UNKNOWN
    faults: tuple[str, ...] = ()
    holder: Holder | None = None
    members: tuple[UrmaDevice, ...] = ()  # those that the host sees

    @property
    def is_healthy(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All devices, by name in natural order, and the dies they sit on. ``version`` grows with each change."""

    devices: tuple[DeviceState, ...] = ()
    dies: tuple[Die, ...] = ()
    position: Position = NOWHERE
    level: str = ""  # how real this is: see ``ubhost.discovery.Level``
    version: int = 0

    @property
    def by_id(self) -> dict[str, DeviceState]:
        return {state.device.id: state for state in self.devices}


def observe(
    provider: Provider, roots: Roots, records: Callable[[], Iterable[Record]], before: Mapping[str, DeviceState]
) -> Snapshot:
    """Look at every device.

    A device that a pod holds is never dropped: an RDMA device moves out of the host's sight, and a device that was
    pulled out is still the pod's. ``before`` tells what it was. ``records`` is asked before and after the host is read:
    an attachment that came or went meanwhile must not look like lost EIDs.

    Raises:
        UbError: the provider or sysfs cannot be read.
    """
    were_held = {record.device for record in records()}
    devices = {device.id: device for device in provider.devices() if _is_sound(device)}
    found = topology(read_host(roots))
    kernel = None if provider.kind is Kind.RDMA else found.devices
    held = {record.device: record for record in records()}
    states = [
        DeviceState(
            device,
            _place(device, found),
            faults(device, kernel, held=device.id in held or device.id in were_held),
            _holder(held.get(device.id)),
            tuple(found.devices[name] for name in device.members if name in found.devices),
        )
        for device in devices.values()
    ]
    for name, record in held.items():
        if name not in devices:
            last = before[name].device if name in before else Device(name, record.members)
            away = () if provider.kind is Kind.RDMA else (f"{name} is gone",)
            states.append(DeviceState(last, faults=away, holder=_holder(record)))
    states.sort(key=lambda state: natural(state.device.id))
    level = level_of(provider.kind, read_rdma(Folder(roots.sys)) if provider.kind is Kind.RDMA else ())
    return Snapshot(tuple(states), found.dies, found.position, level.value)


def _is_sound(device: Device) -> bool:
    """UBSE and the driver name devices as they like; kubelet, CDI, files and variables cannot take every name."""
    if len(device.id) <= _LONGEST and all(_NAME.fullmatch(name) for name in (device.id, *device.members)):
        return True
    names = [name[:200] for name in (device.id, *device.members)]
    log.warning("a device has a name that kubelet or CDI cannot take", extra={"names": names})
    return False


def _place(device: Device, found: Topology) -> Place:
    dies = sorted({die.controller for member in device.members if (die := found.die_of(member))})
    return Place(device.numa, "+".join(dies) or None, found.planes_of(device.members))


def _holder(record: Record | None) -> Holder | None:
    return Holder(record.container, record.ifname, record.pod) if record else None


Writer = Callable[[Snapshot], None]


class Inventory:
    """Keeps the snapshot. What ``glance`` returns differs when a full look is worth it."""

    name = "devices"

    def __init__(
        self,
        provider: Callable[[], Provider],
        roots: Roots,
        ledger: Ledger,
        glance: Glance,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._choose = provider
        self._roots = roots
        self._ledger = ledger
        self._glance = glance
        self._clock = clock
        self._writers: list[Writer] = []
        self._unwritten = True
        self._looking = threading.Lock()
        self._changed = threading.Condition()
        self._snapshot = Snapshot()
        self._seen: object = None
        self._looked_at = float("-inf")
        self._allowance = Allowance(SHARE, SAVED_S, clock())
        self._blind_since: float | None = None
        self._loop = Loop(self.name, self._turn, GLANCE_S)

    def before_announcing(self, writer: Writer) -> None:
        """Have ``writer`` called with each new snapshot before anybody is told. It must be safe to repeat."""
        self._writers.append(writer)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._glance.close()
        self.wake_waiters()

    def ready(self) -> str | None:
        return self._loop.trouble

    def wake(self) -> None:
        """Look soon: an event said that something changed."""
        self._glance.again()
        self._looked_at = float("-inf")
        self._loop.wake()

    def wake_waiters(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def wait(self, version: int, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> Snapshot:
        """Return the snapshot as soon as it is newer than ``version``, or after ``timeout_s``, or when ``is_over``.

        Whoever makes ``is_over`` true calls ``wake_waiters`` afterwards.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot.version != version or is_over(), timeout_s)
            return self._snapshot

    def look(self) -> None:
        """Look now, write down and announce what changed.

        Raises:
            UbError: the host cannot be read, or what changed cannot be written down; it is tried again next time.
        """
        with self._looking:
            self._look()

    def _look(self) -> None:
        before = self._snapshot
        blind: UbError | None = None
        try:
            provider = self._choose()  # anew each time: a driver may have been loaded since
            now = observe(provider, self._roots, self._ledger.records, before.by_id)
            self._blind_since = None
        except UbError as error:
            if not before.version:  # nothing is known yet, and nothing must be said
                raise
            blind = error
            now = self._while_blind(before, error)
        self._publish(now)
        if blind:
            raise blind

    def _while_blind(self, before: Snapshot, why: UbError) -> Snapshot:
        """UBSE or the driver does not answer: what we know stays true for a while, then nobody can tell any more."""
        now = self._clock()
        self._blind_since = now if self._blind_since is None else self._blind_since
        if now - self._blind_since < BLIND_GRACE_S:
            return before
        return replace(before, devices=tuple(replace(state, faults=(str(why),)) for state in before.devices))

    def _publish(self, now: Snapshot) -> None:
        """Write down and then announce ``now``, if it differs from the last or that could not be written down."""
        before = self._snapshot
        now = replace(now, version=before.version)
        if now != before or not before.version:
            self._unwritten = True
            _log_changes(before.by_id, now.devices)
        if not self._unwritten:
            return
        snapshot = replace(now, version=before.version + 1)
        failures = self._write(snapshot)
        self._unwritten = bool(failures)
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()
        if failures:
            raise failures[0]

    def _turn(self) -> None:
        now = self._clock()
        if not self._allowance.is_there(now):
            return
        began = time.thread_time()
        try:
            self._look_if_worthwhile(now)
        finally:
            self._allowance.spend(time.thread_time() - began)

    def _look_if_worthwhile(self, now: float) -> None:
        seen = self._glance()
        if seen == self._seen and now - self._looked_at < LOOK_S and not self._unwritten:
            return
        self._looked_at = now  # before the look: an event during it asks for another
        self.look()
        self._seen = seen

    def _write(self, snapshot: Snapshot) -> list[UbError]:
        failures: list[UbError] = []
        for writer in self._writers:
            try:
                writer(snapshot)
            except UbError as error:
                failures.append(error)
        return failures


def _log_changes(before: dict[str, DeviceState], devices: Iterable[DeviceState]) -> None:
    for state in devices:
        was = before.pop(state.device.id, None)
        if was is None or was.faults != state.faults:
            _log_health(state, is_new=was is None)
    for name in before:
        log.warning("a device is gone", extra={"device": name})


def _log_health(state: DeviceState, *, is_new: bool) -> None:
    extra = {"device": state.device.id, "pod": state.holder.pod if state.holder else ""}
    if state.faults:
        log.warning("a device is unhealthy", extra={**extra, "why": "; ".join(state.faults)})
    elif is_new:
        log.info("a device was found", extra=extra)
    else:
        log.info("a device is healthy again", extra=extra)
