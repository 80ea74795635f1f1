"""The test kubelet refuses what kubelet refuses, and forgets and remembers what kubelet does."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc
from ubproto.pluginregistration.v1 import pluginregistration_pb2 as registry_pb
from ubproto.pluginregistration.v1 import pluginregistration_pb2_grpc
from ubproto.podresources.v1 import podresources_pb2 as account_pb
from ubproto.podresources.v1 import podresources_pb2_grpc

from ubhost.socketpath import short
from ubsim.kubelet import CHECKPOINT, Kubelet, Rejected, objection

NAME = "example.com/thing"


class Plugin(deviceplugin_pb2_grpc.DevicePluginServicer, pluginregistration_pb2_grpc.RegistrationServicer):
    """A device plugin that does as it is told."""

    def __init__(self, folder: Path, kind: str = "DevicePlugin", preferred: Sequence[str] = ()) -> None:
        self.path = folder / "thing.sock"
        self.info = registry_pb.PluginInfo(type=kind, name=NAME, supported_versions=["v1beta1"])
        self.heard: list[registry_pb.RegistrationStatus] = []
        self.devices = {"a": "Healthy", "b": "Healthy", "c": "Unhealthy"}
        self.preferred = preferred
        self.answers = 1
        self.was_told = threading.Event()
        self.closing = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._short = short(self.path)
        self._server.add_insecure_port(f"unix:{self._short.__enter__()}")
        self._server.start()

    def stop(self) -> None:
        self.closing.set()
        self._server.stop(0).wait()
        self._short.__exit__(None, None, None)

    def GetInfo(self, request: registry_pb.InfoRequest, context: grpc.ServicerContext) -> registry_pb.PluginInfo:
        return self.info

    def NotifyRegistrationStatus(
        self, request: registry_pb.RegistrationStatus, context: grpc.ServicerContext
    ) -> registry_pb.RegistrationStatusResponse:
        self.heard.append(request)
        self.was_told.set()
        return registry_pb.RegistrationStatusResponse()

    def GetDevicePluginOptions(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(get_preferred_allocation_available=bool(self.preferred))

    def ListAndWatch(self, request: pb.Empty, context: grpc.ServicerContext) -> Iterator[pb.ListAndWatchResponse]:
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=i, health=h) for i, h in self.devices.items()])
        self.closing.wait()

    def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()

    def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    def Allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> pb.AllocateResponse:
        ids = ",".join(request.container_requests[0].devices_ids)
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs={"IDS": ids})] * self.answers)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path / "kubelet")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def plugin(kubelet: Kubelet) -> Iterator[Plugin]:
    made = Plugin(kubelet.registry)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("resource", "versions", "why"),
    [
        ("thing", ["v1beta1"], "is invalid"),
        ("kubernetes.io/thing", ["v1beta1"], "is invalid"),
        ("sub.kubernetes.io/thing", ["v1beta1"], "is invalid"),
        ("requests.example.com/thing", ["v1beta1"], "is invalid"),
        ("Example.com/thing", ["v1beta1"], "is invalid"),
        ("example.com/a/b", ["v1beta1"], "is invalid"),
        ("example.com/", ["v1beta1"], "is invalid"),
        (NAME, ["v1alpha1"], "is not supported by kubelet"),
        (NAME, [], "is not supported by kubelet"),
        (NAME, ["v1alpha1", "v1beta1"], ""),
    ],
)
def test_only_extended_resources_of_the_right_version_are_registered(
    resource: str, versions: list[str], why: str
) -> None:
    assert why in objection(resource, versions)
    assert bool(why) == bool(objection(resource, versions))


def test_a_plugin_that_is_refused_is_told_and_serves_nothing(kubelet: Kubelet) -> None:
    plugin = Plugin(kubelet.registry, kind="CoffeePlugin")
    try:
        assert plugin.was_told.wait(20)
        told = registry_pb.RegistrationStatus(error="no handler registered for plugin type: CoffeePlugin")
        assert plugin.heard[0] == told
        assert kubelet.endpoints == {}
    finally:
        plugin.stop()


def test_legacy_registration_answers_with_the_reason(kubelet: Kubelet) -> None:
    request = pb.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="kubernetes.io/thing")
    with (
        short(kubelet.plugins / "kubelet.sock") as address,
        grpc.insecure_channel(f"unix:{address}") as channel,
        pytest.raises(grpc.RpcError, match="is invalid"),
    ):
        deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request)


def test_unhealthy_devices_are_offered_to_nobody_and_nobody_gets_one_twice(kubelet: Kubelet, plugin: Plugin) -> None:
    kubelet.wait_for(NAME, healthy=2, total=3)
    assert kubelet.admit("ns/one", {"main": {NAME: 1}})["main"].envs == {"IDS": "a"}
    assert kubelet.admit("ns/two", {"main": {NAME: 1}})["main"].envs == {"IDS": "b"}
    with pytest.raises(Rejected, match="requested number of devices unavailable"):
        kubelet.admit("ns/three", {"main": {NAME: 1}})
    kubelet.remove("ns/one")
    assert kubelet.admit("ns/three", {"main": {NAME: 1}})["main"].envs == {"IDS": "a"}


def test_containers_of_one_pod_do_not_share_a_device(kubelet: Kubelet, plugin: Plugin) -> None:
    kubelet.wait_for(NAME, healthy=2)
    with pytest.raises(Rejected, match="requested number"):
        kubelet.admit("ns/greedy", {"one": {NAME: 2}, "two": {NAME: 1}})
    assert "ns/greedy" not in kubelet.pods


def test_a_preference_that_is_not_available_is_ignored(kubelet: Kubelet) -> None:
    plugin = Plugin(kubelet.registry, preferred=["c", "z", "b"])  # unhealthy, unknown, good
    try:
        kubelet.wait_for(NAME, healthy=2)
        assert kubelet.admit("ns/one", {"main": {NAME: 1}})["main"].envs == {"IDS": "b"}
    finally:
        plugin.stop()


def test_an_answer_for_more_containers_than_asked_is_refused(kubelet: Kubelet, plugin: Plugin) -> None:
    kubelet.wait_for(NAME, healthy=2)
    plugin.answers = 2
    with pytest.raises(Rejected, match="no containers in response"):
        kubelet.admit("ns/one", {"main": {NAME: 1}})


def test_a_resource_whose_plugin_went_away_has_no_healthy_device(kubelet: Kubelet, plugin: Plugin) -> None:
    endpoint = kubelet.wait_for(NAME, healthy=2)
    plugin.stop()
    deadline = time.monotonic() + 60
    while endpoint.is_alive and time.monotonic() < deadline:
        time.sleep(0.02)
    assert endpoint.healthy == set()
    with pytest.raises(Rejected, match="no plugin serves it"):
        kubelet.admit("ns/one", {"main": {NAME: 1}})


def test_a_restart_clears_the_sockets_of_plugins_but_not_what_pods_have(kubelet: Kubelet, plugin: Plugin) -> None:
    kubelet.wait_for(NAME, healthy=2)
    kubelet.admit("ns/one", {"main": {NAME: 1}})
    (kubelet.plugins / "stale.sock").touch()
    kubelet.restart()
    assert sorted(entry.name for entry in kubelet.plugins.iterdir()) == ["kubelet.sock", CHECKPOINT]
    kubelet.wait_for(NAME, healthy=2)  # the plugin watcher finds it again
    assert kubelet.pods == {"ns/one": {"main": {NAME: ["a"]}}}
    assert kubelet.admit("ns/two", {"main": {NAME: 1}})["main"].envs == {"IDS": "b"}


@pytest.mark.parametrize("can_get", [True, False])
def test_get_says_unknown_for_a_pod_it_does_not_know_and_when_it_is_switched_off(
    kubelet: Kubelet, can_get: bool
) -> None:
    kubelet.can_get = can_get
    address = kubelet.folder / "pod-resources" / "kubelet.sock"
    with short(address) as path, grpc.insecure_channel(f"unix:{path}") as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Get(account_pb.GetPodResourcesRequest(pod_name="x", pod_namespace="ns"))
        assert refused.value.code() is grpc.StatusCode.UNKNOWN
        expected = "pod x in namespace ns not found" if can_get else "PodResources API Get method disabled"
        assert refused.value.details() == expected
