"""Which devices kubelet gave to a pod, for ADD; the agent and the lone shim ask alike."""

from collections.abc import Callable, Collection

from cni_ub.agent.podresources import PodResources
from ubhost.roots import Roots

DevicesOf = Callable[[str, str], tuple[str, ...]]


def devices_of(roots: Roots, resources: Collection[str], folder: str) -> DevicesOf:
    """Return a function from (namespace, pod) to device ids. Where there is no kubelet, no pod has a device."""
    kubelet = PodResources(roots, resources, folder)

    def ask(namespace: str, name: str) -> tuple[str, ...]:
        return kubelet.devices_of(namespace, name) if kubelet.socket.exists() else ()

    return ask
