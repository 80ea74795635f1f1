"""What the agent tells Prometheus: devices, ports, owners, EIDs, its own parts, CNI calls.

Everything is taken from the last snapshot when it is asked for, so a scrape costs the host next to nothing.
``prometheus_client`` is loaded only where somebody may ask: it costs 10 MiB.

Counters of a netdev are the kernel's, and only those of netdevs that are on the host; 26.06 has no counters of URMA
traffic in sysfs (reference/ub.md section 9).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cni_ub.agent.holders import PodDevice
from cni_ub.agent.inventory import DeviceState, Snapshot
from cni_ub.agent.service import Service
from ubhost.model import PortState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

NET = Path("/sys/class/net")  # links are always the real kernel's
BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60)


class Calls:
    """Counts CNI calls: the agent's socket reports each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seen: dict[tuple[str, bool], list[float]] = {}  # (verb, succeeded) -> count per bucket, then sum

    def __call__(self, verb: str, succeeded: bool, seconds: float) -> None:
        with self._lock:
            counts = self.seen.setdefault((verb, succeeded), [0.0] * (len(BUCKETS) + 2))
            at = next((at for at, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
            counts[at] += 1
            counts[-1] += seconds

    def copy(self) -> dict[tuple[str, bool], list[float]]:
        with self._lock:
            return {key: list(counts) for key, counts in self.seen.items()}


class Exposition:
    """A collector for ``prometheus_client``: turns a snapshot into metrics."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        pods: Callable[[], Sequence[PodDevice]],
        services: Callable[[], Sequence[Service]],
        calls: Calls,
    ) -> None:
        self._snapshot = snapshot
        self._pods = pods
        self._services = services
        self._calls = calls

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> "Iterator[Metric]":
        snapshot = self._snapshot()
        yield from _devices(snapshot)
        yield from _ports(snapshot)
        yield from _netdevs(snapshot.devices)
        yield _allocated(self._pods())
        yield self._ready()
        yield self._durations()

    def _ready(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        ready = GaugeMetricFamily("ub_agent_ready", "Whether a part of the agent can do its work", labels=["part"])
        for service in self._services():
            ready.add_metric([service.name], float(service.ready() is None))
        return ready

    def _durations(self) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily

        durations = HistogramMetricFamily(
            "ub_cni_call_seconds", "CNI calls that the agent answered", labels=["verb", "outcome"]
        )
        for (verb, succeeded), counts in sorted(self._calls.copy().items()):
            total, buckets = 0.0, []
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts[:-1], strict=True):
                total += count
                buckets.append((bound, total))
            durations.add_metric([verb, "success" if succeeded else "error"], buckets, counts[-1])
        return durations


def _devices(snapshot: Snapshot) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    info = GaugeMetricFamily(
        "ub_device_info",
        "A device that pods can be given; level says how real it is",
        labels=["device", "level", "numa", "die", "address"],
    )
    healthy = GaugeMetricFamily("ub_device_healthy", "Whether it can be given to a pod", labels=["device"])
    fault = GaugeMetricFamily("ub_device_fault", "What is wrong with it", labels=["device", "fault"])
    attachment = ["device", "pod_namespace", "pod", "container_id", "interface"]
    owner = GaugeMetricFamily("ub_device_owner", "Which attachment has it", labels=attachment)
    eids = GaugeMetricFamily("ub_eid_info", "EIDs that the host sees", labels=["device", "urma_device", "slot", "eid"])
    for state in snapshot.devices:
        device = state.device
        numa = "" if device.numa is None else str(device.numa)
        info.add_metric([device.id, snapshot.level, numa, state.place.die or "", device.address or ""], 1)
        healthy.add_metric([device.id], float(state.is_healthy))
        for text in state.faults:
            fault.add_metric([device.id, text], 1)
        if state.holder:
            namespace, _, pod = state.holder.pod.rpartition("/")
            owner.add_metric([device.id, namespace, pod, state.holder.container, state.holder.ifname], 1)
        for slot in device.eids:
            eids.add_metric([device.id, slot.device, str(slot.index), str(slot.eid)], 1)
    yield from (info, healthy, fault, owner, eids)


def _allocated(pods: Sequence[PodDevice]) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    labels = ["device", "resource", "pod_namespace", "pod", "container"]
    allocated = GaugeMetricFamily("ub_device_allocated", "Which container kubelet gave it to", labels=labels)
    for given in pods:
        allocated.add_metric([given.device, given.resource, given.namespace, given.pod, given.container], 1)
    return allocated


def _ports(snapshot: Snapshot) -> "Iterator[Metric]":
    """Ports twice: as the URMA driver tells them of its devices, and as the bus tells of the cables of a die."""
    from prometheus_client.core import GaugeMetricFamily

    labels = ["device", "urma_device", "port"]
    active = GaugeMetricFamily("ub_port_state", "State of a device's port, 1 for the one", labels=[*labels, "state"])
    speed = GaugeMetricFamily("ub_port_speed_bits_per_second", "Nominal speed of a device's port", labels=labels)
    mtu = GaugeMetricFamily("ub_port_mtu_bytes", "Active MTU of a device's port", labels=labels)
    for state in snapshot.devices:
        for member in state.members:
            for port in member.ports:
                key = [state.device.id, member.name, str(port.index)]
                for value in PortState if port.state is not None else ():
                    active.add_metric([*key, value.name], float(value is port.state))
                if port.active_speed is not None:
                    speed.add_metric(key, port.active_speed.mbps * 1e6 * (port.active_width or 1))
                if port.active_mtu is not None:
                    mtu.add_metric(key, port.active_mtu.size)
    cable = GaugeMetricFamily("ub_link_up", "Whether a cable of a die is up", labels=["die", "plane", "port", "peer"])
    for die in snapshot.dies:
        for socket in die.ports:
            if socket.is_up is not None:
                cable.add_metric([die.controller, str(die.plane), str(socket.index), socket.peer or ""], socket.is_up)
    yield from (active, speed, mtu, cable)


def _netdevs(devices: Sequence[DeviceState]) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily

    counters = (
        CounterMetricFamily(
            "ub_netdev_errors", "Errors of a device's netdev", labels=["device", "netdev", "direction"]
        ),
        CounterMetricFamily("ub_netdev_dropped", "Packets it dropped", labels=["device", "netdev", "direction"]),
        CounterMetricFamily("ub_netdev_bytes", "Bytes through it", labels=["device", "netdev", "direction"]),
    )
    for state in devices:
        netdev = state.device.netdev
        if not netdev or "/" in netdev:
            continue
        for family, name in zip(counters, ("errors", "dropped", "bytes"), strict=True):
            for direction in ("rx", "tx"):
                with suppress(OSError, ValueError):  # it is in a pod
                    text = (NET / netdev / "statistics" / f"{direction}_{name}").read_text(encoding="ascii")
                    family.add_metric([state.device.id, netdev, direction], float(text))
    yield from counters
