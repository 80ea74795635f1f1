"""Which pods have which devices, as kubelet tells; and what follows from that.

Pods on a device that became unhealthy are named in the log and in the metrics. A device whose make-up UBSE tells only
when it is allocated is allocated when kubelet gives it to a pod. Nobody tells a device plugin when that pod is gone;
so we see, and free it then. What was allocated is on disk: an agent that was killed does not forget it.

Source: design section 6; reference/ub.md section 5 (DEV_ALLOC, DEV_FREE).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cni_ub.agent.inventory import Inventory
from cni_ub.agent.podresources import PodResources
from cni_ub.agent.service import Loop
from ubhost import statefile
from ubhost.errors import Busy, NotFound
from ubhost.ledger import Ledger
from ubhost.provider import Provider
from ubhost.roots import Roots

PERIOD_S = 30.0
GRACE_S = 60.0  # between Allocate and the pod's appearance in kubelet's account
VERSION = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodDevice:
    """One device of one container."""

    device: str
    resource: str
    namespace: str
    pod: str
    container: str


class Holders:
    """A ``Service`` of the agent."""

    name = "pods"

    def __init__(
        self,
        kubelet: PodResources,
        inventory: Inventory,
        choose: Callable[[], Provider],
        ledger: Ledger,
        roots: Roots,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.pods: tuple[PodDevice, ...] = ()
        self._kubelet = kubelet
        self._inventory = inventory
        self._choose = choose
        self._ledger = ledger
        self._path = roots.run / "reserved.json"
        self._clock = clock
        self._writing = threading.Lock()
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._loop = Loop(self.name, self.look, PERIOD_S)
        inventory.before_announcing(lambda _: self._loop.wake())

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def ready(self) -> str | None:
        return self._loop.trouble

    def look(self) -> None:
        """Ask kubelet, and act on it.

        Raises:
            HostFault: kubelet cannot be asked: nothing is concluded from that.
        """
        if not self._kubelet.socket.exists():
            raise NotFound(f"kubelet is not running: there is no {self._kubelet.socket}")
        self.pods = tuple(
            PodDevice(given.device, given.resource, namespace, name, given.container)
            for (namespace, name), devices in sorted(self._kubelet.everybody().items())
            for given in devices
        )
        self._name_pods_on_sick_devices()
        self._free_what_nobody_has()

    def reserve(self, devices: Iterable[str]) -> None:
        """Allocate devices for a pod that kubelet is about to start.

        Raises:
            Busy: somebody else has one of them.
        """
        with self._writing:
            reserved = self._reserved()
            for device in devices:
                try:
                    self._choose().allocate(device)
                except Busy:
                    if device not in reserved:
                        raise
                reserved[device] = self._clock()
                self._write(reserved)

    def _free_what_nobody_has(self) -> None:
        in_use = {given.device for given in self.pods} | set(self._ledger.held())
        with self._writing:
            reserved = self._reserved()
            for device, since in sorted(reserved.items()):
                if device not in in_use and self._clock() - since >= GRACE_S:
                    self._choose().free(device)
                    log.info("a device is free again", extra={"device": device})
                    del reserved[device]
                    self._write(reserved)

    def _name_pods_on_sick_devices(self) -> None:
        states = self._inventory.snapshot.by_id
        sick = {given for given in self.pods if given.device in states and states[given.device].faults}
        told = frozenset((given.device, f"{given.namespace}/{given.pod}") for given in sick)
        for device, pod in sorted(told - self._told):
            log.warning(
                "a pod is on an unhealthy device",
                extra={"device": device, "pod": pod, "why": "; ".join(states[device].faults)},
            )
        self._told = told

    def _reserved(self) -> dict[str, float]:
        try:
            content = statefile.read(self._path, VERSION) or {}
        except statefile.Damaged as error:
            log.warning("what was allocated is forgotten", extra={"error": str(error)})
            return {}
        return {str(name): float(since) for name, since in content.get("devices", {}).items()}

    def _write(self, reserved: dict[str, float]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        statefile.write(self._path, VERSION, {"devices": reserved})
