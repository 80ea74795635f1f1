"""The sidecars of others at work, with the chart's own arguments and accounts, between a real API server and ub-csi.

What the scheduler, kubelet and the controllers of Kubernetes would do to an object is done here by hand: choose a node,
bind a claim, release a volume. Nothing is mounted. The same with a kubelet: e2e/outside/test_kubernetes.py.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ubproto.csi.v1 import csi_pb2 as csi

from e2e.kubernetes.api import Api, Manifest
from e2e.kubernetes.controlplane import ControlPlane, process
from tests.csi_ub.driver import Driver
from tests.packaging.chart.conftest import CONTROLLER, Render, built, container, of_kind, sidecar_source
from tests.packaging.chart.server.conftest import SPACE, is_established

pytestmark = pytest.mark.apiserver

NODE, NAME = "node0", "csi-ub.unifiedbus.com"
PEERS = ("csi.config.peers[0].node=node0", "csi.config.peers[0].address=127.0.0.1")
ONLY_STORAGE = ("agent.enabled=false", "nri.enabled=false")
CLASSES = (
    "csi.snapshotClass=ub-snapshots",
    "csi.volumeAttributesClasses[0].name=ub-relaxed",
    "csi.volumeAttributesClasses[0].parameters.maxStaleness=30s",
)
FIELDS = {"spec.nodeName": NODE, "metadata.namespace": SPACE, "metadata.name": "csi-0"}  # of the pod
ACCOUNTS = {"provisioner": "ub-ub-node-csi"}  # the others: the controller's


@dataclass(frozen=True)
class Cluster:
    """An API server, a driver of a node, one without a node, and the sidecars of both."""

    api: Api
    driver: Driver
    folder: Path

    def log(self, sidecar: str) -> str:
        [file] = self.folder.glob(f"csi-{sidecar}-v*.log")
        return file.read_text()


def programs() -> dict[str, Path]:
    """Return the sidecars, and the controller that snapshots need beside theirs."""
    names = ("csi-provisioner", "csi-resizer", "csi-attacher", "csi-snapshotter", "snapshot-controller")
    paths = built("e2e/kubernetes/build-sidecars", *names)
    return {name.removeprefix("csi-"): path for name, path in zip(names, paths, strict=True)}


@pytest.fixture(scope="module")
def cluster(
    api: Api, plane: ControlPlane, render: Render, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    found, folder = programs(), tmp_path_factory.mktemp("sidecars")
    manifests = render(*CONTROLLER, *PEERS, *ONLY_STORAGE, *CLASSES)
    with contextlib.ExitStack() as running:
        for manifest in (*definitions(), *(one for one in manifests if one["kind"] != "PodDisruptionBudget")):
            api.apply(manifest)
            running.callback(api.delete, manifest)
            if manifest["kind"] == "CustomResourceDefinition":
                api.wait(manifest, is_established, "its resources are served")
        settings = of_kind(manifests, "ConfigMap")["ub-ub-node-csi"]["data"]["csi.yaml"]
        on_node = running.enter_context(driver(folder, NODE, "all", settings))
        apart = running.enter_context(driver(folder, "controller-0", "controller", settings))
        for manifest in on_a_node(api, on_node):
            api.apply(manifest)
            running.callback(api.delete, manifest)
        for sidecar in ("provisioner", "resizer", "attacher", "snapshotter"):
            account = ACCOUNTS.get(sidecar, "ub-ub-node-csi-controller")
            config = account_config(plane, api, account)
            at = on_node if sidecar == "provisioner" else apart
            chosen = container(manifests, sidecar)
            arguments = [one for one in chosen["args"] if not one.startswith("--csi-address=")]
            if "--leader-election" in arguments:
                arguments.append(f"--leader-election-namespace={SPACE}")  # in a pod it knows
            arguments += [f"--csi-address={at.socket}", f"--kubeconfig={config}", "--v=4"]
            env = {one["name"]: FIELDS[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in chosen.get("env", ())}
            running.enter_context(process(folder, found[sidecar], *arguments, env=env))
        admin = plane.write_kubeconfig("admin")
        running.enter_context(process(folder, found["snapshot-controller"], f"--kubeconfig={admin}"))
        yield Cluster(api, on_node, folder)


@contextlib.contextmanager
def driver(folder: Path, node: str, mode: str, settings: str) -> Iterator[Driver]:
    """Run ub-csi by the chart's configuration; the key of the peers lies elsewhere, and nobody asks for metrics."""
    key = folder / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o400)
    config = {**yaml.safe_load(settings), "peer_key_file": str(key), "metrics_address": None}
    running = Driver.start(folder, node, mode, config)
    try:
        yield running
    finally:
        running.stop()


def definitions() -> list[Manifest]:
    """Return the definitions of snapshots as objects, which whoever wants snapshots installs."""
    folder = sidecar_source("snapshotter", "/client") / "config/crd"
    files = [file for file in sorted(folder.glob("*_*.yaml")) if "_volumesnapshotclasses" not in file.name]  # is there
    made = [yaml.safe_load(file.read_text()) for file in files]
    for one in made:
        one.pop("status", None)
    return made


def on_a_node(api: Api, driver: Driver) -> list[Manifest]:
    """Return what kubelet makes of a driver that registers, and the pod that the driver runs in."""
    known = driver.rpc.NodeGetInfo(csi.NodeGetInfoRequest())
    segments = dict(known.accessible_topology.segments)
    drivers = [{"name": NAME, "nodeID": known.node_id, "topologyKeys": sorted(segments)}]
    daemons = api.get(
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ub-ub-node-csi", "namespace": SPACE}}
    )
    assert daemons is not None
    owner = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": "ub-ub-node-csi",
        "uid": daemons["metadata"]["uid"],
        "controller": True,
    }
    pod = {
        "containers": [{"name": "csi", "image": "ub-node"}],
        "nodeName": NODE,
        "serviceAccountName": "ub-ub-node-csi",
        "tolerations": [{"operator": "Exists"}],
    }
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": segments}},
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": NODE},
            "spec": {"drivers": drivers},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "csi-0", "namespace": SPACE, "ownerReferences": [owner]},
            "spec": pod,
        },
    ]


def account_config(plane: ControlPlane, api: Api, account: str) -> Path:
    """Return how a program acts as a service account, with a token as its pod would get."""
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    plane.tokens[account] = api.call("POST", path, asked).body["status"]["token"]
    return plane.write_kubeconfig(account)


def patch(api: Api, manifest: Manifest, body: Manifest, part: str = "") -> None:
    api.call("PATCH", api.path(manifest) + part, body, kind="application/merge-patch+json")


def claim(name: str, size: str = "64Mi", **spec: object) -> Manifest:
    """Return a claim for which the scheduler has chosen the node, and the controller of volumes who makes it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {
                "volume.kubernetes.io/selected-node": NODE,
                "volume.kubernetes.io/storage-provisioner": NAME,
            },
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "ub-filesystem",
            "resources": {"requests": {"storage": size}},
            **spec,
        },
    }


def volume_of(api: Api, made: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pvc-{made['metadata']['uid']}"}}


@contextlib.contextmanager
def provisioned(cluster: Cluster, wanted: Manifest) -> Iterator[Manifest]:
    """Have a claim with a volume, bound as the controller of Kubernetes binds them; yield the volume."""
    api = cluster.api
    made = api.create(wanted).body
    volume = volume_of(api, made)
    try:
        found: Manifest = api.wait(volume, lambda _: True, "the provisioner makes a volume")
        capacity = found["spec"]["capacity"]
        patch(api, wanted, {"spec": {"volumeName": volume["metadata"]["name"]}})
        modes = {"phase": "Bound", "capacity": capacity, "accessModes": ["ReadWriteMany"]}
        patch(api, wanted, {"status": modes}, "/status")
        patch(api, volume, {"status": {"phase": "Bound"}}, "/status")
        yield found
    finally:
        patch(api, wanted, {"metadata": {"finalizers": None}})
        api.delete(wanted)
        if now := api.get(volume):
            without = [one for one in now["metadata"]["finalizers"] if one != "kubernetes.io/pv-protection"]
            patch(api, volume, {"metadata": {"finalizers": without}})
            patch(api, volume, {"status": {"phase": "Released"}}, "/status")
        api.wait_until_gone(volume)


def volumes(cluster: Cluster) -> list[str]:
    """Return the volumes that the driver has."""
    return [one.volume.volume_id for one in cluster.driver.controller.ListVolumes(csi.ListVolumesRequest()).entries]


def test_a_claim_gets_a_volume_of_its_node_which_goes_with_it(cluster: Cluster) -> None:
    with provisioned(cluster, claim("data")) as volume:
        spec = volume["spec"]
        assert volumes(cluster) == [spec["csi"]["volumeHandle"]]
        assert spec["csi"]["driver"] == NAME
        assert spec["capacity"] == {"storage": "64Mi"}
        assert spec["persistentVolumeReclaimPolicy"] == "Delete"
        [term] = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert {one["key"] for one in term["matchExpressions"]} <= {
            "topology.unifiedbus.com/supernode",
            "topology.unifiedbus.com/node",
        }
    assert volumes(cluster) == []


def test_what_the_node_has_left_is_told_to_the_scheduler(cluster: Cluster) -> None:
    path = cluster.api.collection("storage.k8s.io/v1", "CSIStorageCapacity", SPACE)
    deadline = time.monotonic() + 60
    while len(found := cluster.api.call("GET", path).body["items"]) < 3:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    assert {one["storageClassName"] for one in found} >= {"ub-filesystem", "ub-eventual", "ub-model"}
    [strong] = [one for one in found if one["storageClassName"] == "ub-filesystem"]
    assert strong["nodeTopology"]["matchLabels"]["topology.unifiedbus.com/node"] == NODE
    assert strong["capacity"] not in {"", "0"}


def test_a_claim_that_its_node_has_no_room_for_goes_back_to_the_scheduler(cluster: Cluster) -> None:
    wanted = claim("huge", "1Ei")
    cluster.api.create(wanted)
    chosen = "volume.kubernetes.io/selected-node"
    cluster.api.wait(wanted, lambda now: chosen not in now["metadata"]["annotations"], "the node is given up")
    events = cluster.api.call("GET", cluster.api.collection("v1", "Event", "default")).body["items"]
    said = [one["message"] for one in events if one["involvedObject"]["name"] == "huge"]
    assert any("bytes left, not 1152921504606846976" in message for message in said), said
    patch(cluster.api, wanted, {"metadata": {"finalizers": None}})
    cluster.api.delete(wanted)
    assert volumes(cluster) == []


def test_a_claim_grows(cluster: Cluster) -> None:
    with provisioned(cluster, wanted := claim("growing")) as volume:
        patch(cluster.api, wanted, {"spec": {"resources": {"requests": {"storage": "128Mi"}}}})
        cluster.api.wait(volume, lambda now: now["spec"]["capacity"] == {"storage": "128Mi"}, "the resizer grows it")


def test_a_claim_changes_its_class(cluster: Cluster) -> None:
    with provisioned(cluster, wanted := claim("changing", storageClassName="ub-eventual")) as volume:
        assert volume["spec"]["csi"]["volumeAttributes"]["consistency"] == "eventual"
        patch(cluster.api, wanted, {"spec": {"volumeAttributesClassName": "ub-relaxed"}})

        def has_changed(now: Manifest) -> bool:
            return bool(now["status"].get("currentVolumeAttributesClassName") == "ub-relaxed")

        cluster.api.wait(wanted, has_changed, "the resizer changes its class")


def test_a_snapshot_is_taken_and_a_claim_is_made_from_it(cluster: Cluster) -> None:
    snapshot = {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": "then", "namespace": "default"},
        "spec": {"volumeSnapshotClassName": "ub-snapshots", "source": {"persistentVolumeClaimName": "origin"}},
    }
    with provisioned(cluster, claim("origin")):
        cluster.api.create(snapshot)
        cluster.api.wait(snapshot, lambda now: bool(now.get("status", {}).get("readyToUse")), "a snapshot is ready")
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "then"}
        with provisioned(cluster, claim("copy", dataSource=source)):
            assert len(volumes(cluster)) == 2
        cluster.api.delete(snapshot)
        cluster.api.wait_until_gone(snapshot)
        assert list(cluster.driver.controller.ListSnapshots(csi.ListSnapshotsRequest()).entries) == []


def test_a_node_is_let_in_to_a_volume_and_shut_out_again(cluster: Cluster) -> None:
    with provisioned(cluster, claim("fenced")) as volume:
        attachment = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": "fenced-node0"},
            "spec": {
                "attacher": NAME,
                "nodeName": NODE,
                "source": {"persistentVolumeName": volume["metadata"]["name"]},
            },
        }
        cluster.api.create(attachment)
        cluster.api.wait(attachment, lambda now: bool(now["status"].get("attached")), "the attacher lets it in")
        asked = csi.ControllerGetVolumeRequest(volume_id=volume["spec"]["csi"]["volumeHandle"])
        assert list(cluster.driver.controller.ControllerGetVolume(asked).status.published_node_ids) == [NODE]
        cluster.api.delete(attachment)
        cluster.api.wait_until_gone(attachment)
        assert list(cluster.driver.controller.ControllerGetVolume(asked).status.published_node_ids) == []


@pytest.mark.parametrize("sidecar", ["provisioner", "resizer", "attacher", "snapshotter"])
def test_a_sidecar_may_all_that_it_asks_the_server_for(cluster: Cluster, sidecar: str) -> None:
    """Runs last: what the server refused to an account is in the sidecar's log."""
    assert not [line for line in cluster.log(sidecar).splitlines() if "forbidden" in line]
