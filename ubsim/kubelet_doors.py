"""Where kubelet listens: for plugins that register themselves, and for who asks which devices pods have.

Source: kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1, pkg/kubelet/apis/podresources, release 1.34.
"""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from ubproto.podresources.v1 import podresources_pb2 as account_pb
from ubproto.podresources.v1 import podresources_pb2_grpc

if TYPE_CHECKING:
    from ubsim.kubelet import Kubelet

VERSIONS = ("v1beta1",)
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Registered:
    """One registration, successful or not, for tests to look at."""

    resource: str
    way: str
    error: str = ""


class Legacy(deviceplugin_pb2_grpc.RegistrationServicer):
    """``kubelet.sock`` in device-plugins."""

    def __init__(self, kubelet: "Kubelet") -> None:
        self._kubelet = kubelet

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        time.sleep(self._kubelet.delay_s)
        error = objection(request.resource_name, [request.version])
        self._kubelet.registrations.append(Registered(request.resource_name, "legacy", error))
        if error:
            context.abort(grpc.StatusCode.UNKNOWN, error)
        path = self._kubelet.plugins / request.endpoint
        # The real one connects after it has answered.
        threading.Thread(target=self._kubelet.connect, args=(request.resource_name, path), daemon=True).start()
        return pb.Empty()


class Account(podresources_pb2_grpc.PodResourcesListerServicer):
    """``kubelet.sock`` in pod-resources."""

    def __init__(self, kubelet: "Kubelet") -> None:
        self._kubelet = kubelet

    def List(
        self, request: account_pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> account_pb.ListPodResourcesResponse:
        self._kubelet.calls["List"] += 1
        pods = [self._pod(pod) for pod in self._kubelet.pods]
        return account_pb.ListPodResourcesResponse(pod_resources=pods)

    def Get(
        self, request: account_pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> account_pb.GetPodResourcesResponse:
        self._kubelet.calls["Get"] += 1
        if not self._kubelet.can_get:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        pod = f"{request.pod_namespace}/{request.pod_name}"
        if pod not in self._kubelet.pods:
            text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            context.abort(grpc.StatusCode.UNKNOWN, text)
        return account_pb.GetPodResourcesResponse(pod_resources=self._pod(pod))

    def _pod(self, pod: str) -> account_pb.PodResources:
        namespace, _, name = pod.partition("/")
        containers = [
            account_pb.ContainerResources(
                name=container,
                devices=[
                    account_pb.ContainerDevices(resource_name=resource, device_ids=[id_])
                    for resource, ids in held.items()
                    for id_ in ids
                ],
            )
            for container, held in self._kubelet.pods[pod].items()
        ]
        return account_pb.PodResources(name=name, namespace=namespace, containers=containers)


def objection(resource: str, versions: Sequence[str]) -> str:
    """Return why kubelet would not register a resource; empty if it would."""
    if not set(versions) & set(VERSIONS):
        return f"requested API version {', '.join(versions)!r} is not supported by kubelet. Expected {VERSIONS}"
    domain = resource.partition("/")[0]
    if not _RESOURCE.fullmatch(resource) or "kubernetes.io" in domain or domain.startswith("requests."):
        return f"the ResourceName {resource!r} is invalid"
    return ""
