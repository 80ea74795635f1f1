"""Which devices kubelet says a pod has."""

from pathlib import Path

import pytest

from cni_ub.agent.podresources import Allocated, PodResources
from tests.cni_ub.agent.host import Host
from ubhost.errors import HostFault, NotFound
from ubhost.roots import Roots
from ubsim.kubelet import Kubelet

NAME, SHARED = "unifiedbus.com/ub_net_device", "unifiedbus.com/ub_net_device_shared"
PODS: dict[str, dict[str, dict[str, list[str]]]] = {
    "default/web": {
        "init": {"other.org/gpu": ["gpu-1"]},
        "main": {NAME: ["urma_2", "urma_1"], "other.org/gpu": ["gpu-0"]},
        "sidecar": {SHARED: ["urma_4::1"], NAME: ["urma_3"]},
    },
    "prod/web": {"main": {NAME: ["urma_5"]}},
    "default/plain": {"main": {}},
}


@pytest.fixture
def asked(host: Host, kubelet: Kubelet) -> PodResources:
    kubelet.start()
    kubelet.pods = {pod: {c: dict(held) for c, held in containers.items()} for pod, containers in PODS.items()}
    return PodResources(host.roots, [NAME, SHARED])


@pytest.mark.parametrize("can_get", [True, False])
def test_devices_come_in_the_order_of_containers_and_then_kubelets(
    asked: PodResources, kubelet: Kubelet, can_get: bool
) -> None:
    kubelet.can_get = can_get
    assert asked.devices_of("default", "web") == ("urma_2", "urma_1", "urma_4", "urma_3")
    assert asked.devices_of("prod", "web") == ("urma_5",)
    assert asked.devices_of("default", "plain") == ()


def test_get_is_used_where_kubelet_has_it_and_given_up_where_it_has_not(asked: PodResources, kubelet: Kubelet) -> None:
    asked.devices_of("prod", "web")
    assert kubelet.calls == {"Get": 1}
    kubelet.can_get = False
    asked.devices_of("prod", "web")
    asked.devices_of("prod", "web")
    assert kubelet.calls == {"Get": 2, "List": 2}


@pytest.mark.parametrize("can_get", [True, False])
def test_a_pod_that_kubelet_does_not_know_is_named(asked: PodResources, kubelet: Kubelet, can_get: bool) -> None:
    kubelet.can_get = can_get
    with pytest.raises(NotFound, match="kubelet does not know pod default/gone"):
        asked.devices_of("default", "gone")
    assert asked.devices_of("prod", "web") == ("urma_5",)  # and that does not keep others from being asked for


def test_everybody_with_a_device_of_ours_is_listed(asked: PodResources) -> None:
    assert asked.everybody() == {
        ("default", "web"): (
            Allocated(NAME, "urma_2", "main"),
            Allocated(NAME, "urma_1", "main"),
            Allocated(SHARED, "urma_4::1", "sidecar"),
            Allocated(NAME, "urma_3", "sidecar"),
        ),
        ("prod", "web"): (Allocated(NAME, "urma_5", "main"),),
    }


def test_a_kubelet_that_is_not_there_is_named_by_its_socket(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match=r"pod-resources/kubelet\.sock for pod default/web"):
        PodResources(Roots(tmp_path), [NAME]).devices_of("default", "web")
