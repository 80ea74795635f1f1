"""Kubelet as a device plugin sees it, for tests: it finds, registers, watches, allocates, restarts and dies.

    kubelet = Kubelet(root / "var/lib/kubelet")
    kubelet.start()
    kubelet.wait_for("unifiedbus.com/ub_net_device", healthy=2)
    answer = kubelet.admit("default/pod", {"main": {"unifiedbus.com/ub_net_device": 1}})["main"]
    kubelet.restart()                 # as systemd would: sockets of plugins are removed, allocations are remembered
    kubelet.kill()                    # no goodbye

What the real one refuses, this one refuses: names that are no extended resources, versions it does not speak, an
allocation of more than is free or of what is unhealthy, an answer that does not fit the question. A resource whose
stream broke counts as unhealthy until its plugin registers again.

Source: kubernetes pkg/kubelet/cm/devicemanager (manager.go, endpoint.go, plugin/v1beta1), pkg/kubelet/pluginmanager,
pkg/kubelet/apis/podresources, release 1.34; its own words and structure.
"""

import contextlib
import json
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path

import grpc
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from ubproto.pluginregistration.v1 import pluginregistration_pb2 as registry_pb
from ubproto.pluginregistration.v1 import pluginregistration_pb2_grpc
from ubproto.podresources.v1 import podresources_pb2_grpc

from ubhost.socketpath import short
from ubsim.kubelet_doors import Account, Legacy
from ubsim.kubelet_doors import Registered as Registered
from ubsim.kubelet_doors import objection as objection
from ubsim.kubelet_endpoint import Endpoint
from ubsim.kubelet_endpoint import Rejected as Rejected

CHECKPOINT = "kubelet_internal_checkpoint"
GET_INFO_S = 1.0
LOOK_S = 0.05  # the real one is told by inotify, and reconciles once a second


class Kubelet:
    """One node's kubelet below ``folder``. ``can_get`` is the feature gate KubeletPodResourcesGet."""

    def __init__(self, folder: Path, *, watches_plugins: bool = True, can_get: bool = True, delay_s: float = 0) -> None:
        self.folder = folder
        self.can_get = can_get
        self.delay_s = delay_s  # before it answers a registration: a busy kubelet
        self.registrations: list[Registered] = []
        self.endpoints: dict[str, Endpoint] = {}
        self.pods: dict[str, dict[str, dict[str, list[str]]]] = {}  # pod -> container -> resource -> ids
        self.calls: Counter[str] = Counter()
        self._watches = watches_plugins
        self._changed = threading.Condition()
        self._servers: list[grpc.Server] = []
        self._opened = contextlib.ExitStack()  # what their addresses need
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def plugins(self) -> Path:
        return self.folder / "device-plugins"

    @property
    def registry(self) -> Path:
        return self.folder / "plugins_registry"

    # Life

    def start(self) -> None:
        """Start as kubelet does: empty the folder of plugin sockets, but remember what pods have."""
        for folder in (self.plugins, self.registry, self.folder / "pod-resources"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        for entry in self.plugins.iterdir():
            if entry.name != CHECKPOINT:
                entry.unlink()
        with contextlib.suppress(FileNotFoundError):
            self.pods = json.loads((self.plugins / CHECKPOINT).read_text())
        self._stopping = threading.Event()
        self._serve(
            self.plugins / "kubelet.sock", deviceplugin_pb2_grpc.add_RegistrationServicer_to_server, Legacy(self)
        )
        self._serve(
            self.folder / "pod-resources" / "kubelet.sock",
            podresources_pb2_grpc.add_PodResourcesListerServicer_to_server,
            Account(self),
        )
        if self._watches:
            self._watcher = threading.Thread(target=self._watch, args=(self._stopping,), name="plugin watcher")
            self._watcher.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._watcher:
            self._watcher.join()
            self._watcher = None
        for endpoint in list(self.endpoints.values()):
            endpoint.channel.close()
        for server in self._servers:
            server.stop(0).wait()
        self._servers.clear()
        self._opened.close()
        self.endpoints.clear()

    def kill(self) -> None:
        """Go without a word, leaving a dead socket behind as SIGKILL does."""
        self.stop()
        for name in ("device-plugins", "pod-resources"):
            _dead_socket(self.folder / name / "kubelet.sock")

    def restart(self) -> None:
        self.stop()
        self.start()

    def _serve(self, path: Path, add: object, servicer: object) -> None:
        path.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(8))
        add(servicer, server)  # type: ignore[operator]
        server.add_insecure_port(f"unix:{self._opened.enter_context(short(path))}")
        server.start()
        self._servers.append(server)

    # Registration

    def _watch(self, stopping: threading.Event) -> None:
        """The plugin watcher: a socket that is new, or made anew, is asked who it is; one that went is forgotten."""
        known: dict[Path, tuple[int, int]] = {}
        while not stopping.wait(LOOK_S):
            present = dict(_sockets(self.registry))
            for path in known.keys() - present.keys():
                self._forget(path)
            for path, identity in present.items():
                if known.get(path) != identity and not self._register_watched(path):
                    present[path] = (0, 0)  # tried again
            known = present

    def _register_watched(self, path: Path) -> bool:
        if self._stopping.wait(self.delay_s):
            return True
        with short(path) as address, grpc.insecure_channel(f"unix:{address}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            try:
                info = stub.GetInfo(registry_pb.InfoRequest(), timeout=GET_INFO_S)
                error = self._objection(info)
                error = error or self.connect(info.name, Path(info.endpoint or path))
                status = registry_pb.RegistrationStatus(plugin_registered=not error, error=error)
                stub.NotifyRegistrationStatus(status, timeout=GET_INFO_S)
            except grpc.RpcError:
                return False
        self.registrations.append(Registered(info.name, "watcher", error))
        return True

    @staticmethod
    def _objection(info: registry_pb.PluginInfo) -> str:
        if info.type != "DevicePlugin":
            return f"no handler registered for plugin type: {info.type}"
        return objection(info.name, info.supported_versions)

    def connect(self, resource: str, path: Path) -> str:
        """Open the stream of a plugin in place of an older one; return what went wrong."""
        with short(path) as address:  # once connected, the address is not needed any more
            channel = grpc.insecure_channel(f"unix:{address}")
            stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
            try:
                options = stub.GetDevicePluginOptions(pb.Empty(), timeout=10)
            except grpc.RpcError as error:
                channel.close()
                return f"failed to get options of {path}: {error.details()}"
        endpoint = Endpoint(resource, path, channel, options)
        with self._changed:
            old = self.endpoints.pop(resource, None)
            self.endpoints[resource] = endpoint
        if old:
            old.channel.close()
        threading.Thread(target=self._listen, args=(endpoint,), daemon=True).start()
        return ""

    def _listen(self, endpoint: Endpoint) -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):
            for answer in deviceplugin_pb2_grpc.DevicePluginStub(endpoint.channel).ListAndWatch(pb.Empty()):
                with self._changed:
                    endpoint.devices = {device.ID: device for device in answer.devices}
                    endpoint.lists += 1
                    self._changed.notify_all()
        with self._changed:
            endpoint.is_alive = False
            self._changed.notify_all()

    def _forget(self, path: Path) -> None:
        for resource, endpoint in list(self.endpoints.items()):
            if endpoint.path == path:
                endpoint.is_alive = False
                endpoint.channel.close()
                del self.endpoints[resource]

    # What the node offers

    def wait_for(self, resource: str, *, healthy: int, total: int | None = None, timeout_s: float = 60) -> Endpoint:
        """Wait until the node offers exactly so many devices.

        Raises:
            TimeoutError: it does not; the text says what it offers.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                endpoint = self.endpoints.get(resource)
                if endpoint and len(endpoint.healthy) == healthy and total in (None, len(endpoint.devices)):
                    return endpoint
                if not self._changed.wait(min(0.1, max(0.0, deadline - time.monotonic()))) and (
                    time.monotonic() >= deadline
                ):
                    offered = endpoint.devices if endpoint else None
                    raise TimeoutError(f"{resource}: not {healthy} healthy of {total} after {timeout_s} s: {offered}")

    # Pods

    def admit(
        self, pod: str, containers: Mapping[str, Mapping[str, int]], *, numa: int | None = None
    ) -> dict[str, pb.ContainerAllocateResponse]:
        """Allocate devices for a pod (namespace/name); return the plugin's answer for each container that asked.

        ``numa`` is what the topology manager decided; devices elsewhere are taken only if those do not suffice.

        Raises:
            Rejected: kubelet would fail the pod.
        """
        answers: dict[str, pb.ContainerAllocateResponse] = {}
        given: dict[str, dict[str, list[str]]] = {}
        for container, wanted in containers.items():
            given[container] = {}
            for resource, count in wanted.items():
                ids, answer = self._allocate(resource, count, numa, given)
                given[container][resource] = ids
                answers.setdefault(container, pb.ContainerAllocateResponse()).MergeFrom(answer)
        self.pods[pod] = given
        self._remember()
        return answers

    def remove(self, pod: str) -> None:
        del self.pods[pod]
        self._remember()

    def _remember(self) -> None:
        (self.plugins / CHECKPOINT).write_text(json.dumps(self.pods))

    def _in_use(self, resource: str) -> set[str]:
        return {id_ for pod in self.pods.values() for held in pod.values() for id_ in held.get(resource, ())}

    def _allocate(
        self, resource: str, count: int, numa: int | None, given: Mapping[str, Mapping[str, list[str]]]
    ) -> tuple[list[str], pb.ContainerAllocateResponse]:
        endpoint = self.endpoints.get(resource)
        if endpoint is None or not endpoint.is_alive:
            raise Rejected(f"requested device {resource} but no plugin serves it")
        in_use = self._in_use(resource) | {id_ for held in given.values() for id_ in held.get(resource, ())}
        free = endpoint.healthy - in_use
        if len(free) < count:
            raise Rejected(f"requested number of devices unavailable for {resource}: {count} of {len(free)}")
        aligned = {id_ for id_ in free if numa in [node.ID for node in endpoint.devices[id_].topology.nodes]}
        pool, must = (aligned, []) if len(aligned) >= count else (free, sorted(aligned))
        ids = self._preferred(endpoint, pool, must, count)
        self.calls["Allocate"] += 1
        return ids, endpoint.allocate(ids)

    def _preferred(self, endpoint: Endpoint, pool: set[str], must: Sequence[str], count: int) -> list[str]:
        if not endpoint.options.get_preferred_allocation_available:
            return sorted(pool)[:count]
        self.calls["GetPreferredAllocation"] += 1
        return endpoint.preferred(pool, must, count)


def _sockets(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = entry.lstat()
            if stat.S_ISSOCK(found.st_mode) and not entry.name.startswith("."):
                yield entry, (found.st_ino, found.st_ctime_ns)


def _dead_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead, short(path) as address:
        dead.bind(address)
