"""The pods of a node: what they mount and see, how they are replaced, and what is left of a component that is off."""

import re
from pathlib import PurePosixPath

import pytest

from nri_qos.__main__ import parser as nri_parser
from tests.packaging.chart.conftest import (
    CONTROLLER,
    EVERYTHING,
    Render,
    container,
    containers,
    mounts,
    of_kind,
    pods,
    render_text,
)
from tests.packaging.conftest import ROOT
from ubnode.install.layout import DATA_DAEMONS

pytestmark = pytest.mark.chart

PEERS = ("csi.config.peers[0].node=a", "csi.config.peers[0].address=192.0.2.1")


@pytest.mark.parametrize("settings", [EVERYTHING, CONTROLLER, ("cleanup=true",)])
def test_every_mount_has_its_volume_and_every_volume_its_mount(render: Render, settings: tuple[str, ...]) -> None:
    for name, pod in pods(render(*settings)).items():
        every = [*pod.get("initContainers", ()), *pod["containers"]]
        mounted = {mount["name"] for found in every for mount in found.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod["volumes"]}, name


def test_stage_and_publish_paths_are_seen_by_kubelet(render: Render) -> None:
    kubelet = mounts(container(render(), "csi"))["/var/lib/kubelet"]
    assert kubelet["mountPropagation"] == "Bidirectional"  # plugins/ and pods/, both below it


def test_namespaces_that_the_runtime_makes_later_are_seen_by_the_agent(render: Render) -> None:
    assert mounts(container(render(), "agent"))["/run/netns"]["mountPropagation"] == "HostToContainer"


def test_what_one_pod_unmounts_is_held_by_no_other(render: Render) -> None:
    """A folder that is mounted into a container brings what is mounted below it, and keeps that, if it is not told."""
    whole = pods([*render(*EVERYTHING), *render("cleanup=true")]).values()
    mounted = [
        (container["name"], PurePosixPath(volume["hostPath"]["path"]), mount.get("mountPropagation"))
        for pod in whole
        for container in [*pod.get("initContainers", ()), *pod["containers"]]
        for mount in container.get("volumeMounts", ())
        for volume in pod["volumes"]
        if volume["name"] == mount["name"] and "hostPath" in volume
    ]
    shared = {path for _, path, way in mounted if way == "Bidirectional"}
    assert len(shared) == 3
    for name, path, way in mounted:
        if any(path == other or path in other.parents for other in shared):
            assert way in ("Bidirectional", "HostToContainer"), (name, path)


def test_resctrl_is_there_for_who_shall_use_it(render: Render) -> None:
    pod = pods(render("nri.config.resctrl.cache=25"))["ub-ub-node-nri"]
    assert pod["hostPID"]
    assert "/sys/fs/resctrl" in mounts(pod["containers"][0])


def test_what_nri_qos_did_to_resctrl_is_taken_back_by_the_cleanup(render: Render) -> None:
    found = container(render("nri.config.resctrl.cache=25", "cleanup=true"), "restore-qos")
    assert "/host/sys/fs/resctrl" in mounts(found)


def test_why_a_container_ended_is_told_and_no_file_of_the_nodes_dev_is_made_for_it(render: Render) -> None:
    for found in [*containers(render(*EVERYTHING)), *containers(render("cleanup=true"))]:
        assert found["terminationMessagePolicy"] == "FallbackToLogsOnError" or found["name"] == "done"
        if "/dev" in {mount["mountPath"] for mount in found.get("volumeMounts", ())}:
            assert found["terminationMessagePath"].startswith("/tmp/")


@pytest.mark.parametrize("name", ["agent", "csi", "nri-qos"])
def test_a_daemon_has_three_minutes_to_begin_and_is_then_asked_whether_it_lives_and_is_ready(
    render: Render, name: str
) -> None:
    found = container(render(), name)
    start = found["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == 180  # as the units have: TimeoutStartSec
    assert {"livenessProbe", "readinessProbe"} <= found.keys()


def test_sockets_that_others_make_anew_are_reached_through_their_folders(render: Render) -> None:
    for pod in pods(render()).values():
        for volume in pod["volumes"]:
            if "hostPath" in volume:
                kind = "File" if volume["name"] == "cpu-manager" else "Directory"  # its policy does not change in use
                assert volume["hostPath"]["type"].removesuffix("OrCreate") == kind
                assert not volume["hostPath"]["path"].endswith(".sock")
    assert "/var/run/nri" in mounts(container(render(), "nri-qos"))


def test_another_kubelet_folder_is_used_everywhere(helm: str) -> None:
    text = render_text(helm, "kubeletDir=/data/kubelet", *EVERYTHING)
    assert set(re.findall(r"/var/lib/kubelet[^, ]*", text)) == {"/var/lib/kubelet/cpu_manager_state"}  # inside nri-qos
    assert "/data/kubelet/cpu_manager_state" in text
    assert "/data/kubelet/plugins/csi-ub.unifiedbus.com/csi.sock" in text


def test_one_plugin_registers_per_node_at_a_time(render: Render) -> None:
    for manifest in of_kind(render(), "DaemonSet").values():
        assert manifest["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_how_many_nodes_change_at_once_can_be_said(render: Render) -> None:
    for manifest in of_kind(render("maxUnavailable=1"), "DaemonSet").values():
        assert manifest["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1


def test_data_daemons_get_scopes_of_the_nodes_systemd_and_outlive_the_pod(render: Render) -> None:
    manifests = render(*PEERS)
    assert mounts(container(manifests, "csi"))["/run/systemd"]["readOnly"]
    assert pods(manifests)["ub-ub-node-csi"]["hostPID"]  # systemd moves processes by the numbers that it knows
    assert of_kind(manifests, "DaemonSet")["ub-ub-node-csi"]["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert "livenessProbe" in container(manifests, "csi")
    assert (ROOT / "packaging/image/packages.txt").read_text().count("\nsystemd ") == 1


def test_without_systemd_a_pod_that_carries_volumes_of_others_is_replaced_only_when_its_node_is_drained(
    render: Render,
) -> None:
    """Its FUSE daemons are what running pods read through: it is not restarted for being slow, either."""
    manifests = render(*PEERS, "csi.hostSystemd=false")
    assert of_kind(manifests, "DaemonSet")["ub-ub-node-csi"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    found = container(manifests, "csi")
    assert "livenessProbe" not in found
    assert "readinessProbe" in found
    assert "/run/systemd" not in mounts(found)


def test_data_daemons_that_outlived_their_pods_are_ended_by_the_cleanup(render: Render) -> None:
    [_, _, script] = container(render("cleanup=true"), "end-data-daemons")["command"]
    assert script.endswith(f"systemctl stop '{DATA_DAEMONS}'")
    names = {container["name"] for container in containers(render("cleanup=true", "csi.hostSystemd=false"))}
    assert "end-data-daemons" not in names


def test_a_component_can_be_tried_on_one_node_first(render: Render) -> None:
    specs = pods(render("nri.nodeSelector.colocation=yes"))
    assert specs["ub-ub-node-nri"]["nodeSelector"] == {"kubernetes.io/os": "linux", "colocation": "yes"}
    assert specs["ub-ub-node-csi"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_a_component_that_is_off_leaves_nothing(render: Render) -> None:
    assert not pods(render("agent.enabled=false", "csi.enabled=false", "nri.enabled=false"))
    assert set(pods(render("csi.enabled=false"))) == {"ub-ub-node-agent", "ub-ub-node-nri"}
    assert not of_kind(render("csi.enabled=false"), "ClusterRole")


def test_cleaning_up_replaces_the_plugins(render: Render) -> None:
    manifests = render("cleanup=true")
    assert nri_parser().parse_args(container(manifests, "restore-qos")["command"][1:]).restore
    assert set(pods(manifests)) == {"ub-ub-node-cleanup"}
    assert not of_kind(manifests, "CSIDriver")
