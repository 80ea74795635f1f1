"""One container to be created, and its pod: what a plan is asked about. Pure."""

from dataclasses import dataclass

from nri_qos.classes import Classified
from nri_qos.model import Container, Pod
from nri_qos.pools import WHOLE, Key


@dataclass(frozen=True, slots=True)
class Request:
    pod: Pod
    container: Container
    classified: Classified
    device_nodes: frozenset[int] = frozenset()  # NUMA nodes of its devices

    @property
    def key(self) -> Key:
        return self.pod.key, self.container.name

    @property
    def whole(self) -> Key:
        """The key of what is reserved for the pod as a whole."""
        return self.pod.key, WHOLE

    @property
    def label(self) -> str:
        return f"container {self.container.name} of pod {self.pod.namespace}/{self.pod.name}"

    @property
    def memory(self) -> int:
        """Bytes to have room for on the nodes it is bound to; 0 if it has no limit."""
        return self.container.resources.memory_limit or 0

    @property
    def cpus(self) -> int:
        """Thousandths of a CPU that it requests."""
        return self.container.resources.requested
