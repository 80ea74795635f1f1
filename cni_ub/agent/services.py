"""The parts of the agent beside its socket, put together. Whoever starts them stops them in reverse order."""

from collections.abc import Callable, Iterable, Sequence

from cni_ub.agent.cdi import CdiFile
from cni_ub.agent.conf import ConfGenerator
from cni_ub.agent.deviceinfo import DeviceInfoFiles
from cni_ub.agent.deviceplugin import DevicePlugin, assign, ids
from cni_ub.agent.glance import Glance
from cni_ub.agent.holders import Holders
from cni_ub.agent.hotplug import Hotplug
from cni_ub.agent.inventory import Inventory, Snapshot
from cni_ub.agent.metrics import Calls, Exposition
from cni_ub.agent.nodefeatures import FeatureFile
from cni_ub.agent.podresources import PodResources
from cni_ub.agent.registration import KubeletRegistration
from cni_ub.agent.service import Service
from cni_ub.agent.settings import Resource, Settings
from cni_ub.agent.webserver import WebServer
from ubhost.ledger import Ledger
from ubhost.provider import Device, Provider
from ubhost.roots import Roots


def services(
    settings: Settings,
    roots: Roots,
    choose: Callable[[], Provider],
    ledger: Ledger,
    others: Sequence[Service] = (),
    calls: Calls | None = None,
) -> tuple[Service, ...]:
    """Return the parts in the order in which they start: first what looks, then what tells.

    Args:
        others: parts that are somebody else's to start, but count for whether the agent is ready.
        calls: counts CNI calls for the metrics.
    """
    inventory = Inventory(choose, roots, ledger, Glance(roots))
    parts: list[Service] = []
    holders: Holders | None = None
    if settings.kubelet.is_used:
        kubelet = PodResources(roots, [resource.name for resource in settings.resources], settings.kubelet.folder)
        holders = Holders(kubelet, inventory, choose, ledger, roots)
        parts += [*_device_plugins(settings, roots, inventory, holders), holders]
    if settings.node_features:
        inventory.before_announcing(FeatureFile(roots).update)
    parts += [inventory, Hotplug(roots, inventory), ConfGenerator(settings.conf, roots)]
    if settings.metrics_address is not None:

        def everything() -> Sequence[Service]:
            return (*parts, *others)

        exposition = Exposition(
            lambda: inventory.snapshot, lambda: holders.pods if holders else (), everything, calls or Calls()
        )
        parts.append(WebServer(settings.metrics_address, exposition, everything))
    return tuple(parts)


def _device_plugins(settings: Settings, roots: Roots, inventory: Inventory, holders: Holders) -> list[Service]:
    resources = settings.resources
    cdi, info = CdiFile(roots), DeviceInfoFiles(roots, [resource.name for resource in resources])

    def write_cdi(snapshot: Snapshot) -> None:
        offered = assign(resources, snapshot.devices).values()
        cdi.update(state.device for states in offered for state in states)

    def write_info(snapshot: Snapshot) -> None:
        info.update(_by_id(resources, snapshot))

    def prepare(names: Iterable[str]) -> Snapshot:
        """Learn what the devices are made of, where that is not known yet, and have CDI say it."""
        known = inventory.snapshot.by_id
        if unknown := [name for name in names if not known[name].device.members]:
            holders.reserve(unknown)
            inventory.look()
        write_cdi(inventory.snapshot)
        return inventory.snapshot

    inventory.before_announcing(write_cdi)
    inventory.before_announcing(write_info)
    folder = roots.root / settings.kubelet.folder.lstrip("/")
    registrations: list[Service] = [
        KubeletRegistration(
            folder,
            settings.kubelet.registration,
            lambda resource=resource: DevicePlugin(resource, resources, inventory, prepare),  # type: ignore[misc]
            resource.name,
        )
        for resource in resources
    ]
    return [Leftovers(info), *registrations]


def _by_id(resources: tuple[Resource, ...], snapshot: Snapshot) -> dict[tuple[str, str], Device]:
    offered = assign(resources, snapshot.devices)
    return {
        (resource.name, id_): state.device
        for resource in resources
        for state in offered[resource.name]
        for id_ in ids(resource, state.device.id)
    }


class Leftovers:
    """Removes the DeviceInfo files when the agent stops. The CDI file stays: containers restart without us too."""

    name = "device info"

    def __init__(self, info: DeviceInfoFiles) -> None:
        self._info = info

    def start(self) -> None:
        """Nothing to do: the files are written when the devices are known."""

    def stop(self) -> None:
        self._info.remove()

    def ready(self) -> str | None:
        return None
