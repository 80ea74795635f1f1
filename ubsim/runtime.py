"""A container runtime as NRI plugins see it: a stand-in for containerd, as strict as the real one.

It closes the connection where containerd does (a frame over 4096 bytes, an event it does not know, an answer that is
late), fails a creation where containerd does, and keeps in a container's spec what plugins adjusted, so that the next
Synchronize tells it. No container runs and no cgroup is written.

Source: reference/nri.md sections 1.1 to 1.10.
"""

import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.message import Message
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos.ttrpc.session import Status
from ubsim.nri_peer import CallRefused as CallRefused
from ubsim.nri_peer import Peer
from ubsim.nri_peer import PluginClosed as PluginClosed

M = TypeVar("M", bound=Message)
_EVENTS_BEFORE_0_10, _EVENTS_SINCE_0_10 = 0x7FF, 0x3FFF
_POD_CALLS = {
    "RunPodSandbox": nri_pb2.RUN_POD_SANDBOX,
    "StopPodSandbox": nri_pb2.STOP_POD_SANDBOX,
    "RemovePodSandbox": nri_pb2.REMOVE_POD_SANDBOX,
}
_CONTAINER_CALLS = {
    "PostCreateContainer": nri_pb2.POST_CREATE_CONTAINER,
    "StartContainer": nri_pb2.START_CONTAINER,
    "PostStartContainer": nri_pb2.POST_START_CONTAINER,
    "PostUpdateContainer": nri_pb2.POST_UPDATE_CONTAINER,
    "RemoveContainer": nri_pb2.REMOVE_CONTAINER,
}


class Runtime:
    """Listens on ``path`` for one plugin at a time, and remembers pods and containers over its coming and going.

    ``nri_version`` "" stands for a runtime before 0.12: no version in Configure, StateChange instead of calls of
    their own. ``timeout_s`` is the limit of every request.
    """

    def __init__(self, path: Path, *, nri_version: str = "v0.12.1", timeout_s: float = 2.0) -> None:
        self.name, self.version = "ubsim", "v2.0.0"
        self.pods: dict[str, nri_pb2.PodSandbox] = {}
        self.containers: dict[str, nri_pb2.Container] = {}
        self._path = path
        self._nri_version = nri_version
        self._timeout_s = timeout_s
        self._peer: Peer | None = None
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut_down()

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            raise PluginClosed("no plugin is connected")
        return self._peer

    def listen(self) -> None:
        """Make the socket anew, as a runtime does at every start."""
        self._path.unlink(missing_ok=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(16)

    def shut_down(self) -> None:
        """End as a runtime does that is restarted: connections break, pods and containers live on."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._path.unlink(missing_ok=True)

    def accept(self, timeout_s: float = 60) -> Peer:
        """Wait for a plugin to connect; nothing is said yet."""
        assert self._listener is not None
        self._listener.settimeout(timeout_s)
        trunk, _ = self._listener.accept()
        return self.adopt(trunk)

    def adopt(self, trunk: socket.socket) -> Peer:
        """Take a connected socket as the plugin: our end of fd 3 of a plugin that the runtime starts."""
        if self._peer is not None:
            self._peer.close()
        self._peer = Peer(trunk, self._timeout_s)
        return self._peer

    def register(self, timeout_s: float = 60, config: str = "") -> nri_pb2.SynchronizeResponse:
        """Wait for a plugin and bring it to work; return its answer to Synchronize."""
        self.handshake(self.accept(timeout_s), config)
        return self.synchronize()

    def handshake(self, peer: Peer, config: str = "", timeout_s: float = 60) -> None:
        """Register and configure. The confirmation is held back until Configure is answered, as can happen.

        Raises:
            PluginClosed: the plugin is not acceptable.
        """
        call = peer.asked(timeout_s)
        assert (call.service, call.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin"), call
        register = nri_pb2.RegisterPluginRequest.FromString(call.payload)
        peer.name, peer.index = register.plugin_name, register.plugin_idx
        configure = nri_pb2.ConfigureRequest(config=config, runtime_name=self.name, runtime_version=self.version)
        if self._nri_version:
            configure.NRI_version = self._nri_version
            configure.registration_timeout, configure.request_timeout = 5000, int(self._timeout_s * 1000)
        peer.events = peer.call("Configure", configure, nri_pb2.ConfigureResponse, timeout_s=timeout_s).events
        known = _EVENTS_SINCE_0_10 if self._nri_version else _EVENTS_BEFORE_0_10
        if peer.events & ~known:
            peer.close()
            raise PluginClosed(f"invalid plugin events: {peer.events & ~known:#x}")
        peer.answer(call, nri_pb2.Empty())

    def synchronize(self, parts: int = 1) -> nri_pb2.SynchronizeResponse:
        """Tell the plugin what there is, in ``parts`` messages; return its answer to the last."""
        pods, containers = list(self.pods.values()), [c for c in self.containers.values() if c.state != 4]
        for part in range(parts - 1):
            request = nri_pb2.SynchronizeRequest(pods=pods[part::parts], containers=containers[part::parts], more=True)
            reply = self.peer.call("Synchronize", request, nri_pb2.SynchronizeResponse)
            assert reply.more, "the plugin does not know Synchronize in parts"
            assert not reply.update, "updates before the last part"
        request = nri_pb2.SynchronizeRequest(pods=pods[parts - 1 :: parts], containers=containers[parts - 1 :: parts])
        return self.peer.call("Synchronize", request, nri_pb2.SynchronizeResponse)

    def run_pod(self, pod: nri_pb2.PodSandbox) -> None:
        self.pods[pod.id] = pod
        self._pod_call("RunPodSandbox", pod)

    def stop_pod(self, pod_id: str) -> None:
        self._pod_call("StopPodSandbox", self.pods[pod_id])

    def remove_pod(self, pod_id: str) -> None:
        self._pod_call("RemovePodSandbox", self.pods.pop(pod_id))

    def create(self, container: nri_pb2.Container) -> nri_pb2.ContainerAdjustment:
        """Create a container; without a plugin it is created as it is.

        Raises:
            CallRefused: the creation fails.
        """
        request = nri_pb2.CreateContainerRequest(pod=self.pods.get(container.pod_sandbox_id), container=container)
        adjust = nri_pb2.ContainerAdjustment()
        if self._peer is not None and self._peer.events & 1 << nri_pb2.CREATE_CONTAINER - 1:
            reply = self._guard("CreateContainer", request, nri_pb2.CreateContainerResponse)
            if reply is not None:
                self._apply_updates(reply.update, creating=container.id)
                adjust = reply.adjust
        created = nri_pb2.Container()
        created.CopyFrom(container)
        _merge(created.linux.resources, adjust.linux.resources)
        created.state = nri_pb2.CONTAINER_CREATED
        self.containers[container.id] = created
        return adjust

    def start(self, container_id: str) -> None:
        self.containers[container_id].state = nri_pb2.CONTAINER_RUNNING
        self._container_call("PostStartContainer", container_id)

    def update(self, container_id: str, resources: nri_pb2.LinuxResources) -> nri_pb2.UpdateContainerResponse:
        """Update a container as kubelet asked; return what the plugin makes of it, which is applied on top."""
        container = self.containers[container_id]
        request = nri_pb2.UpdateContainerRequest(
            pod=self.pods.get(container.pod_sandbox_id), container=container, linux_resources=resources
        )
        reply = self.peer.call("UpdateContainer", request, nri_pb2.UpdateContainerResponse)
        _merge(container.linux.resources, resources)
        self._apply_updates(reply.update)
        self._container_call("PostUpdateContainer", container_id)
        return reply

    def stop(self, container_id: str) -> None:
        container = self.containers[container_id]
        container.state = nri_pb2.CONTAINER_STOPPED
        request = nri_pb2.ContainerRequest(pod=self.pods.get(container.pod_sandbox_id), container=container)
        if self._peer is not None:
            self._guard("StopContainer", request, nri_pb2.StopContainerResponse)

    def remove(self, container_id: str) -> None:
        self._container_call("RemoveContainer", container_id)
        del self.containers[container_id]

    def _pod_call(self, method: str, pod: nri_pb2.PodSandbox) -> None:
        self._notify(method, _POD_CALLS[method], nri_pb2.PodRequest(pod=pod), pod, None)

    def _container_call(self, method: str, container_id: str) -> None:
        container = self.containers[container_id]
        pod = self.pods.get(container.pod_sandbox_id)
        request = nri_pb2.ContainerRequest(pod=pod, container=container)
        self._notify(method, _CONTAINER_CALLS[method], request, pod, container)

    def _notify(
        self,
        method: str,
        event: nri_pb2.Event.ValueType,
        request: Message,
        pod: nri_pb2.PodSandbox | None,
        container: nri_pb2.Container | None,
    ) -> None:
        """Tell the plugin by a call of its own, or as runtimes before 0.12 did."""
        if self._peer is None or not self._peer.events & 1 << event - 1:
            return
        if self._nri_version:
            self._guard(method, request, nri_pb2.Empty)
        else:
            change = nri_pb2.StateChangeEvent(event=event, pod=pod, container=container)
            self._guard("StateChange", change, nri_pb2.Empty)

    def _guard(self, method: str, request: Message, answer: type[M]) -> M | None:
        """Ask the plugin; one that broke the connection is forgotten, and the request goes on without it."""
        try:
            return self.peer.call(method, request, answer)
        except PluginClosed:
            self.peer.close()
            self._peer = None
            return None

    def _apply_updates(self, updates: Iterable[nri_pb2.ContainerUpdate], creating: str = "") -> None:
        for update in updates:
            if update.container_id == creating:
                raise CallRefused(Status.UNKNOWN, f"plugin asked update of {creating!r} during creation")
            if update.container_id in self.containers:
                _merge(self.containers[update.container_id].linux.resources, update.linux.resources)


def _merge(target: nri_pb2.LinuxResources, change: nri_pb2.LinuxResources) -> None:
    """Set what ``change`` says; zero and "" mean that it says nothing."""
    target.MergeFrom(change)
