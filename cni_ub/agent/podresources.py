"""Ask kubelet which devices it gave to a pod.

gRPC is imported when kubelet is really asked: this module is also loaded by ub-cni itself when no agent runs.

Source: k8s.io/kubelet pkg/apis/podresources/v1; reference/cni.md 7.4; design section 4 (precedence).
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cni_ub.agent import deviceid
from ubhost.errors import HostFault, NotFound
from ubhost.roots import Roots
from ubhost.socketpath import short

if TYPE_CHECKING:
    from ubproto.podresources.v1 import podresources_pb2 as pb
    from ubproto.podresources.v1.podresources_pb2_grpc import PodResourcesListerStub

PATIENCE_S = 5.0  # kubelet answers from memory; a pod that starts waits for this
LARGEST = 16 << 20  # bytes of an answer, as kubelet's other clients allow
SOCKET = Path("pod-resources", "kubelet.sock")


@dataclass(frozen=True, slots=True)
class Allocated:
    """One device of a pod: what kubelet calls it, and the resource and container it was given for."""

    resource: str
    id: str
    container: str

    @property
    def device(self) -> str:
        return deviceid.device_of(self.id)


class PodResources:
    """Kubelet's account of one node."""

    def __init__(self, roots: Roots, resources: Collection[str], folder: str = "/var/lib/kubelet") -> None:
        """``resources`` are the names of ours: devices of others are not told."""
        self.socket = roots.root / folder.lstrip("/") / SOCKET
        self._resources = frozenset(resources)
        self._can_get = True

    def devices_of(self, namespace: str, name: str) -> tuple[str, ...]:
        """Return the names of a pod's devices, each once; see ``of_pod``."""
        return tuple(dict.fromkeys(allocated.device for allocated in self.of_pod(namespace, name)))

    def of_pod(self, namespace: str, name: str) -> tuple[Allocated, ...]:
        """Return the devices of a pod, by container and then in kubelet's order; nothing if it has none of ours.

        Raises:
            NotFound: kubelet does not know the pod.
            HostFault: kubelet cannot be asked.
        """
        with self._asking(f"pod {namespace}/{name}") as stub:
            pod = self._get(stub, namespace, name) if self._can_get else None
            if pod is None:
                listed = self._list(stub)
                pod = next((found for found in listed if (found.namespace, found.name) == (namespace, name)), None)
        if pod is None:
            raise NotFound(f"kubelet does not know pod {namespace}/{name}")
        return self._ours(pod)

    def everybody(self) -> dict[tuple[str, str], tuple[Allocated, ...]]:
        """Return the devices of every pod (namespace, name) that has one of ours.

        Raises:
            HostFault: kubelet cannot be asked.
        """
        with self._asking("its pods") as stub:
            pods = {(pod.namespace, pod.name): self._ours(pod) for pod in self._list(stub)}
        return {pod: devices for pod, devices in pods.items() if devices}

    @contextmanager
    def _asking(self, what: str) -> Iterator["PodResourcesListerStub"]:
        import grpc
        from ubproto.podresources.v1.podresources_pb2_grpc import PodResourcesListerStub

        options = (("grpc.max_receive_message_length", LARGEST),)
        try:
            with short(self.socket) as address, grpc.insecure_channel(f"unix:{address}", options=options) as channel:
                yield PodResourcesListerStub(channel)
        except (grpc.RpcError, OSError) as error:
            raise HostFault(f"cannot ask kubelet at {self.socket} for {what}: {_details(error)}") from error

    def _get(self, stub: "PodResourcesListerStub", namespace: str, name: str) -> "pb.PodResources | None":
        """Ask for one pod; ``None`` where kubelet cannot tell that way, and the list decides.

        A kubelet before 1.27 has no such method; one before 1.34 has it switched off, and says so as UNKNOWN; for a
        pod that it does not know, it says UNKNOWN too.
        """
        import grpc
        from ubproto.podresources.v1 import podresources_pb2 as pb

        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            return stub.Get(request, timeout=PATIENCE_S).pod_resources
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN):
                raise
            self._can_get = error.code() is grpc.StatusCode.UNKNOWN and "disabled" not in _details(error)
            return None

    def _list(self, stub: "PodResourcesListerStub") -> "list[pb.PodResources]":
        from ubproto.podresources.v1 import podresources_pb2 as pb

        return list(stub.List(pb.ListPodResourcesRequest(), timeout=PATIENCE_S).pod_resources)

    def _ours(self, pod: "pb.PodResources") -> tuple[Allocated, ...]:
        return tuple(
            Allocated(devices.resource_name, id_, container.name)
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name in self._resources
            for id_ in devices.device_ids
        )


def _details(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details() if details else error)
