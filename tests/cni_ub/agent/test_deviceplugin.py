"""The device plugin against the test kubelet, over real sockets."""

import logging
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from ubproto.deviceplugin.v1beta1 import deviceplugin_pb2_grpc

from cni_ub.agent import registration
from cni_ub.agent.service import Service
from cni_ub.agent.services import services
from cni_ub.agent.settings import KubeletSettings, Registration, Resource, Settings
from tests.cni_ub.agent.host import Host
from tests.waiting import wait_for
from ubhost.ledger import Ledger
from ubhost.provider import Sharing
from ubhost.socketpath import short
from ubsim.kubelet import Kubelet, Registered, Rejected

NAME = "unifiedbus.com/ub_net_device"
LOOKS_S = 2.5  # the agent looks at kubelet once a second


@contextmanager
def serving(host: Host, settings: Settings | None = None) -> Iterator[tuple[Service, ...]]:
    parts = services(settings or Settings(), host.roots, lambda: host.provider, Ledger(host.roots, boot_id="boot"))
    with ExitStack() as stopping:
        for part in parts:
            stopping.callback(part.stop)
            part.start()
        yield parts


def by(registration: Registration) -> Settings:
    return Settings(kubelet=KubeletSettings(registration=registration))


@pytest.mark.parametrize(("way", "expected"), [(Registration.AUTO, "watcher"), (Registration.LEGACY, "legacy")])
def test_kubelet_learns_of_every_device_with_health_and_numa(
    host: Host, kubelet: Kubelet, way: Registration, expected: str
) -> None:
    kubelet.start()
    with serving(host, by(way)) as parts:
        devices = kubelet.wait_for(NAME, healthy=4).devices
        assert sorted(devices) == ["urma_1", "urma_2", "urma_3", "urma_4"]
        assert {id_: [node.ID for node in device.topology.nodes] for id_, device in devices.items()} == {
            "urma_1": [1],
            "urma_2": [0],
            "urma_3": [1],
            "urma_4": [0],
        }
        wait_for(lambda: kubelet.registrations == [Registered(NAME, expected)])
        wait_for(lambda: all(part.ready() is None for part in parts))


def test_a_container_gets_cdi_names_and_variables_and_the_cdi_file_is_there(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
        answer = kubelet.admit("default/web", {"main": {NAME: 2}, "sidecar": {}})["main"]
    assert [device.name for device in answer.cdi_devices] == [
        "unifiedbus.com/urma=urma_1",
        "unifiedbus.com/urma=urma_3",
    ]
    assert dict(answer.envs) == {
        "UB_NET_DEVICE": "urma_1,urma_3",
        "UB_NET_DEVICE_URMA": "bonding_dev_1,udma2,udma3,bonding_dev_3,udma6,udma7",
        "UB_NET_DEVICE_EID": "0000:0001:0000:0000:0000:0002:0000:0003,0000:0001:0000:0000:0000:0006:0000:0007",
    }
    assert not answer.devices  # CDI brings them
    assert (host.root / "var/run/cdi/unifiedbus.com-urma.json").exists()


def test_a_container_on_the_numa_node_that_kubelet_chose_gets_devices_there(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
        answer = kubelet.admit("default/web", {"main": {NAME: 2}}, numa=0)["main"]
        assert answer.envs["UB_NET_DEVICE"] == "urma_2,urma_4"
        answer = kubelet.admit("default/db", {"main": {NAME: 2}}, numa=0)["main"]
        assert answer.envs["UB_NET_DEVICE"] == "urma_1,urma_3"  # what is left
        with pytest.raises(Rejected, match="requested number of devices unavailable"):
            kubelet.admit("default/late", {"main": {NAME: 1}})


def test_health_reaches_kubelet_both_ways(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
        for state, healthy in ((1, 3), (4, 4)):
            host.set_port("udma2", state)
            kubelet.wait_for(NAME, healthy=healthy)


def test_a_device_that_became_unhealthy_after_kubelet_chose_it_is_refused_with_the_reason(
    host: Host, kubelet: Kubelet
) -> None:
    kubelet.start()
    with serving(host):
        endpoint = kubelet.wait_for(NAME, healthy=4)
        host.set_port("udma2", 1)
        kubelet.wait_for(NAME, healthy=3)
        for id_, code, why in (
            ("urma_1", grpc.StatusCode.FAILED_PRECONDITION, "port 0 of udma2 is DOWN"),
            ("urma_9", grpc.StatusCode.NOT_FOUND, "there are: urma_1, urma_2, urma_3, urma_4"),
        ):
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[id_])])
            with pytest.raises(grpc.RpcError, match=why) as refused:
                deviceplugin_pb2_grpc.DevicePluginStub(endpoint.channel).Allocate(request)
            assert refused.value.code() is code


def test_hot_plug_reaches_kubelet_and_the_cdi_file(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    host.provider.listed.remove("urma_4")
    with serving(host):
        kubelet.wait_for(NAME, healthy=3, total=3)
        host.provider.listed.append("urma_4")
        (host.root / "dev/uburma/plugged").touch()  # the driver makes a device node: that is the hint
        kubelet.wait_for(NAME, healthy=4, total=4)
        assert "urma_4" in (host.root / "var/run/cdi/unifiedbus.com-urma.json").read_text()


@pytest.mark.parametrize("way", [Registration.WATCHER, Registration.LEGACY, Registration.AUTO])
def test_a_restart_of_kubelet_is_survived(host: Host, kubelet: Kubelet, way: Registration) -> None:
    kubelet.start()
    with serving(host, by(way)):
        kubelet.wait_for(NAME, healthy=4)
        kubelet.admit("default/web", {"main": {NAME: 1}})
        for _ in range(2):
            kubelet.restart()
            kubelet.wait_for(NAME, healthy=4)
        assert kubelet.pods["default/web"]["main"][NAME] == ["urma_1"]
        answer = kubelet.admit("default/db", {"main": {NAME: 1}})["main"]
        assert answer.envs["UB_NET_DEVICE"] == "urma_3"


def test_a_kubelet_that_was_called_and_listens_keeps_its_stream_whatever_happens_to_its_socket(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting kubelet makes its socket anew while our call waits for it (seen with kubelet 1.37)."""
    monkeypatch.setattr(registration, "PATIENCE_S", 0.5)
    kubelet = Kubelet(host.kubelet, watches_plugins=False)
    kubelet.start()
    try:
        with serving(host):
            kubelet.wait_for(NAME, healthy=4)
            (host.kubelet / "device-plugins/kubelet.sock").chmod(0o660)
            time.sleep(LOOKS_S)
            assert kubelet.registrations == [Registered(NAME, "legacy")]
            kubelet.wait_for(NAME, healthy=4)
    finally:
        kubelet.stop()


def test_a_socket_that_a_dead_kubelet_left_is_not_called(
    host: Host, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "PATIENCE_S", 0.5)
    kubelet.start()
    with serving(host), caplog.at_level(logging.INFO):
        kubelet.wait_for(NAME, healthy=4)
        kubelet.kill()
        caplog.clear()
        wait_for(lambda: caplog.records != [])  # patience is over
        time.sleep(LOOKS_S)
        assert {record.way for record in caplog.records if hasattr(record, "way")} == {"plugin watcher"}
        kubelet.start()
        kubelet.wait_for(NAME, healthy=4)
        assert kubelet.registrations[-1] == Registered(NAME, "watcher")


def test_a_kubelet_that_died_makes_us_not_ready_and_one_that_comes_back_makes_us_ready(
    host: Host, kubelet: Kubelet
) -> None:
    kubelet.start()
    with serving(host) as parts:
        kubelet.wait_for(NAME, healthy=4)
        kubelet.kill()
        wait_for(lambda: any(part.ready() == f"kubelet does not listen to {NAME}" for part in parts))
        kubelet.start()
        kubelet.wait_for(NAME, healthy=4)
        wait_for(lambda: all(part.ready() is None for part in parts))


def test_we_wait_for_a_kubelet_that_has_not_started(host: Host, kubelet: Kubelet) -> None:
    with serving(host) as parts:
        wait_for(lambda: any("kubelet" in (part.ready() or "") for part in parts))
        kubelet.start()
        kubelet.wait_for(NAME, healthy=4)


def test_a_slow_kubelet_is_waited_for(host: Host, kubelet: Kubelet) -> None:
    kubelet.delay_s = 3
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
        wait_for(lambda: kubelet.registrations == [Registered(NAME, "watcher")])


def test_a_restart_of_the_agent_registers_anew_even_after_it_was_killed(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
    (host.kubelet / "plugins_registry/unifiedbus.com_ub_net_device.sock").unlink(missing_ok=True)
    with (
        socket.socket(socket.AF_UNIX) as dead,  # what SIGKILL leaves behind
        short(host.kubelet / "plugins_registry/unifiedbus.com_ub_net_device.sock") as address,
    ):
        dead.bind(address)
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)


def test_the_socket_is_for_root_only(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
        mode = (host.kubelet / "plugins_registry/unifiedbus.com_ub_net_device.sock").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600


def test_nothing_of_ours_is_left_in_kubelets_folders_after_a_stop(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
    assert list((host.kubelet / "plugins_registry").iterdir()) == []
    assert list((host.root / "var/run/k8s.cni.cncf.io/devinfo/dp").iterdir()) == []
    assert (host.root / "var/run/cdi/unifiedbus.com-urma.json").exists()  # containers restart without us too


def test_a_file_in_the_place_of_our_socket_is_not_removed(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    precious = host.kubelet / "plugins_registry/unifiedbus.com_ub_net_device.sock"
    precious.write_text("precious")
    with serving(host) as parts:
        wait_for(lambda: any("is not a socket" in (part.ready() or "") for part in parts))
    assert precious.read_text() == "precious"


def test_several_resources_share_the_devices_out_and_a_shared_one_is_offered_many_times(
    host: Host, kubelet: Kubelet
) -> None:
    shared = "unifiedbus.com/ub_net_device_shared"
    settings = Settings(
        resources=(Resource(shared, Sharing.SHARED, ("urma_4",), replicas=3), Resource("example.org/urma")),
    )
    kubelet.start()
    with serving(host, settings):
        assert sorted(kubelet.wait_for(shared, healthy=3).devices) == ["urma_4::0", "urma_4::1", "urma_4::2"]
        assert sorted(kubelet.wait_for("example.org/urma", healthy=3).devices) == ["urma_1", "urma_2", "urma_3"]
        answer = kubelet.admit("default/web", {"main": {shared: 1, "example.org/urma": 1}})["main"]
    assert answer.envs["UB_NET_DEVICE_SHARED"] == "urma_4"
    assert answer.envs["URMA"] == "urma_2"  # alone in its die, so the pair stays whole
    assert [device.name for device in answer.cdi_devices] == [
        "unifiedbus.com/urma=urma_4",
        "unifiedbus.com/urma=urma_2",
    ]


def test_a_resource_that_kubelet_refuses_makes_us_not_ready_and_says_why(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    resource = Resource("unifiedbus.com/ub_net_device")
    object.__setattr__(resource, "name", "kubernetes.io/ub")  # settings would not let it through
    with serving(host, Settings(resources=(resource,))) as parts:
        wait_for(lambda: any("is invalid" in (part.ready() or "") for part in parts))
    assert "kubernetes.io/ub" in kubelet.registrations[0].error


def test_a_cdi_file_that_somebody_removed_is_back_when_a_container_needs_it(host: Host, kubelet: Kubelet) -> None:
    kubelet.start()
    file = host.root / "var/run/cdi/unifiedbus.com-urma.json"
    with serving(host):
        kubelet.wait_for(NAME, healthy=4)
        file.unlink()
        kubelet.admit("default/web", {"main": {NAME: 1}})
        assert file.exists()


def test_a_root_far_down_is_no_obstacle(tmp_path: Path) -> None:
    host = Host(tmp_path / ("x" * 120), count=1)
    kubelet = Kubelet(host.kubelet)
    kubelet.start()
    try:
        for way in (Registration.WATCHER, Registration.LEGACY):
            with serving(host, by(way)):
                kubelet.wait_for(NAME, healthy=1)
    finally:
        kubelet.stop()
