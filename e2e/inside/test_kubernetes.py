"""A node of a real cluster: kubelet, containerd, and an installed release of ours; the control plane is outside.

Kubelet gives devices, mounts volumes and makes the cgroups; nobody plays its part. The UB host is simulated (level:
stand-in). Run by e2e/outside/test_kubernetes.py.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import pytest
from ubproto.podresources.v1 import podresources_pb2, podresources_pb2_grpc

from e2e.inside import kubelet
from e2e.inside.cri import Container, Pod, Runtime
from e2e.inside.csi import provisioner
from e2e.inside.host import RESOURCE, Belongings, attachments, eids_in, simulated_host
from e2e.inside.installed import main_pid, release, systemctl
from e2e.inside.network import BRIDGE, links, write_conflist
from e2e.inside.programs import mount_points, wait_until
from e2e.inside.test_qos import CLASS, check_offline
from e2e.kubernetes.api import Api, Manifest

Start = Callable[..., "Started"]
DEVICES = 2
EIDS = 21  # of a device, as in test_network.py
REFUSED = "UnexpectedAdmissionError"  # by a kubelet that has just started and waits for its plugins
PATIENCE_S = 300.0  # the node is emulated
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node0"}}
DRIVER = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {"name": kubelet.DRIVER},
    "spec": {
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    },
}


@pytest.fixture(scope="module")
def api() -> Api:
    return kubelet.api()


@pytest.fixture(scope="module", autouse=True)
def node(api: Api, containerd: Runtime) -> Iterator[None]:
    """The node has joined, with our plugins and their devices."""
    write_conflist(BRIDGE, {"type": "ub-cni"})
    api.apply(DRIVER)
    with (
        simulated_host(DEVICES),
        kubelet.meeting_places(),
        kubelet.registrar() as registered,
        release(),
        kubelet.kubelet(),
    ):
        api.wait(NODE, is_ready, "node0 is ready", PATIENCE_S)
        api.wait(NODE, offers_devices, "kubelet offers the devices", PATIENCE_S)
        wait_until(lambda: registered.answers == [""], "kubelet has taken the CSI driver", PATIENCE_S)
        yield


def is_ready(node: Manifest) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ()))


def offers_devices(node: Manifest) -> bool:
    return bool(node["status"].get("allocatable", {}).get(RESOURCE) == str(DEVICES))


def pod(
    name: str,
    *,
    devices: int = 0,
    volumes: Mapping[str, Manifest] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return a pod that sleeps; its volumes lie in folders of their names."""
    volumes = volumes or {}
    asked = {RESOURCE: devices} if devices else {}
    container: Manifest = {
        "name": "main",
        "image": "localhost/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "resources": {"limits": asked},
        "volumeMounts": [{"name": volume, "mountPath": f"/{volume}"} for volume in volumes],
    }
    spec = {
        "automountServiceAccountToken": False,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,  # 0 is a deletion that does not wait for the node
        "containers": [container],
        "volumes": [{"name": volume, **source} for volume, source in volumes.items()],
    }
    metadata = {"name": name, "namespace": "default", "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim(name: str, volume: Any) -> list[Manifest]:
    """Return a claim, and the volume that a provisioner made for it: they are for one another."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name}
    size = {"storage": "1Gi"}
    source = {
        "driver": kubelet.DRIVER,
        "volumeHandle": volume.volume_id,
        "volumeAttributes": dict(volume.volume_context),
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": common["accessModes"],
                "capacity": size,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "default", "name": name},
                "csi": source,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {**common, "resources": {"requests": size}},
        },
    ]


class Started:
    """A pod of the cluster that runs on this node."""

    def __init__(self, api: Api, runtime: Runtime, manifest: Manifest) -> None:
        self.manifest = manifest
        self.name = manifest["metadata"]["name"]
        self._api, self._runtime = api, runtime
        api.create(manifest)
        api.wait(manifest, is_decided, f"{self.name} runs", PATIENCE_S)
        while self.status["status"].get("reason") == REFUSED:  # as a controller of Kubernetes does
            self.remove()
            api.create(manifest)
            api.wait(manifest, is_decided, f"{self.name} runs", PATIENCE_S)
        assert self.status["status"]["phase"] == "Running", self.status["status"]

    @property
    def status(self) -> Manifest:
        found = self._api.get(self.manifest)
        assert found, f"{self.name} is gone"
        return found

    @property
    def pod(self) -> Pod:
        return self._runtime.pod_of_kubelet(self.status["metadata"]["uid"])

    @property
    def container(self) -> Container:
        (told,) = self.status["status"]["containerStatuses"]
        return self._runtime.container(told["containerID"].removeprefix("containerd://"))

    def shell(self, script: str) -> str:
        code, said = self._runtime.execute(self.container, "sh", "-ec", script)
        assert code == 0, said
        return said

    def remove(self) -> None:
        """Have it removed, and wait until the node has; twice is allowed."""
        if self._api.get(self.manifest):
            self._api.delete(self.manifest)
        self._api.wait_until_gone(self.manifest, PATIENCE_S)


@pytest.fixture
def start(api: Api, runtime: Runtime) -> Iterator[Start]:
    """Start a pod and wait until it runs; at the end of the test it is removed, and the node must be as before."""
    before, started = Belongings.now(), list[Started]()

    def start(name: str, **wanted: Any) -> Started:
        started.append(Started(api, runtime, pod(name, **wanted)))
        return started[-1]

    yield start
    for one in started:
        one.remove()
    assert Belongings.now().differs_from(before) == [], (
        "all that pods borrowed is back when the API server lets them go"
    )
    assert [point for point in mount_points() if "kubernetes.io~csi" in point or "kubernetes.io/csi" in point] == []


def check_has(started: Started, device: str) -> None:
    """The pod has the device: its EIDs, its netdev, and its device nodes."""
    assert sum(len(eids) for eids in eids_in(started.pod).values()) == EIDS
    assert "ub0" in links(started.pod.netns)
    assert "ummu" in started.shell("ls /dev"), "CDI gave the container the device nodes"
    assert (f"default/{started.name}", device) in {(one["pod"], one["device"]) for one in attachments()}


def given(api: Api, started: Started) -> str:
    """Return the device that kubelet says it gave to a pod."""
    with grpc.insecure_channel(f"unix://{kubelet.FOLDER}/pod-resources/kubelet.sock") as channel:
        answer = podresources_pb2_grpc.PodResourcesListerStub(channel).List(podresources_pb2.ListPodResourcesRequest())
    (device,) = (
        ident
        for one in answer.pod_resources
        if one.name == started.name
        for container in one.containers
        for devices in container.devices
        for ident in devices.device_ids
    )
    return str(device)


def test_a_pod_gets_the_device_that_kubelet_chose(api: Api, start: Start) -> None:
    started = start("with-device", devices=1)
    check_has(started, given(api, started))
    assert started.pod.ip.startswith("10.88."), "and keeps its place in the cluster network"


def test_each_pod_has_a_device_of_its_own_and_one_too_many_waits(api: Api, start: Start) -> None:
    first, second = start("first", devices=1), start("second", devices=1)
    assert {given(api, first), given(api, second)} == {"urma_1", "urma_2"}
    third = pod("third", devices=1)
    api.create(third)
    api.wait(third, is_told_to_wait, "the scheduler finds no device", PATIENCE_S)
    first.remove()
    api.wait(third, lambda now: now["status"].get("phase") == "Running", "third runs in its place", PATIENCE_S)
    api.delete(third)
    api.wait_until_gone(third, PATIENCE_S)


def is_decided(pod: Manifest) -> bool:
    return pod["status"].get("phase") in ("Running", "Failed")


def is_told_to_wait(waiting: Manifest) -> bool:
    return any(
        one["type"] == "PodScheduled" and one["status"] == "False" and f"Insufficient {RESOURCE}" in one["message"]
        for one in waiting["status"].get("conditions", ())
    )


def test_pods_share_a_claim_and_have_space_of_their_own(api: Api, start: Start) -> None:
    with provisioner("node0") as driver:
        volume = driver.create("claim")
        manifests = claim("shared", volume)
        for manifest in manifests:
            api.create(manifest)
        sources = {
            "data": {"persistentVolumeClaim": {"claimName": "shared"}},
            "scratch": {"csi": {"driver": kubelet.DRIVER, "volumeAttributes": {"size": "16Mi"}}},
        }
        writer, reader = start("writer", volumes=sources), start("reader", volumes=sources)
        writer.shell("echo hello >/data/greeting; echo mine >/scratch/note")
        assert reader.shell("cat /data/greeting; ls /scratch") == "hello\n"
        for one in (writer, reader):
            one.remove()
        for manifest in manifests:
            api.delete(manifest)
        driver.delete(volume)


def test_an_offline_pod_gets_what_online_ones_leave(start: Start) -> None:
    check_offline(start("offline", annotations={CLASS: "BE"}).container)


def test_a_restart_of_kubelet_changes_nothing_for_its_pods(api: Api, start: Start) -> None:
    scratch = {"scratch": {"csi": {"driver": kubelet.DRIVER, "volumeAttributes": {"size": "16Mi"}}}}
    started = start("lives-on", devices=1, volumes=scratch, annotations={CLASS: "BE"})
    device, container = given(api, started), started.container
    started.shell("echo kept >/scratch/note")
    before = main_pid("kubelet.service")
    systemctl("restart", "kubelet")
    assert main_pid("kubelet.service") != before
    later = start("comes-later", devices=1)
    assert {given(api, started), given(api, later)} == {"urma_1", "urma_2"}
    check_has(started, device)
    assert started.container == container, "the container was not started again"
    assert started.shell("cat /scratch/note") == "kept\n"
    check_offline(container)
