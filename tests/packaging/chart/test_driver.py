"""The CSI driver on each node and its sidecars: they meet at one socket, wherever the driver runs."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from csi_ub.__main__ import parser as csi_parser
from tests.packaging.chart.conftest import EVERYTHING, SNAPSHOTTER, Render, container, mounts, of_kind, pods
from ubnode.install.layout import FILES

pytestmark = pytest.mark.chart


def test_the_driver_object_says_what_the_driver_does(render: Render) -> None:
    spec = of_kind(render(), "CSIDriver")["csi-ub.unifiedbus.com"]["spec"]
    wanted: Mapping[str, object] = {
        "attachRequired": False,
        "fsGroupPolicy": "None",
        "requiresRepublish": False,
        "seLinuxMount": False,
    }
    assert wanted.items() <= spec.items()


def test_the_sidecars_and_the_driver_meet_at_one_socket(render: Render) -> None:
    manifests = render(*EVERYTHING)
    arguments = csi_parser().parse_args(container(manifests, "csi")["args"])
    inside = arguments.endpoint.removeprefix("unix://")
    pod = pods(manifests)["ub-ub-node-csi"]
    [plugin] = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "plugin"]
    for name in ("registrar", "livenessprobe", "provisioner", "snapshotter"):
        sidecar = container(manifests, name)
        assert f"--csi-address={inside}" in sidecar["args"]
        assert mounts(sidecar)[str(PurePosixPath(inside).parent)]["name"] == "plugin"
    registered = f"--kubelet-registration-path={plugin}/{PurePosixPath(inside).name}"
    assert registered in container(manifests, "registrar")["args"]


def test_the_folder_of_every_pool_is_there_in_the_driver(render: Render) -> None:
    manifests = render(*EVERYTHING)
    assert mounts(container(manifests, "csi"))["/data/ub"]["name"] == "pool-fast"
    [path] = [
        volume["hostPath"]["path"]
        for volume in pods(manifests)["ub-ub-node-csi"]["volumes"]
        if volume["name"] == "pool-fast"
    ]
    assert path == "/data/ub"


def test_a_pool_that_needs_the_nodes_own_lvm_is_refused_in_a_pod(render: Render) -> None:
    pool = ("pools[0].name=thin", "pools[0].path=/data/thin", "pools[0].type=lvm", "pools[0].thin_pool=vg0/thin")
    settings = [f"csi.config.{setting}" for setting in pool]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render(*settings)
    assert "pool thin is of type lvm" in caught.value.stderr
    assert "csi.driver=host" in caught.value.stderr
    assert render("csi.driver=host", *settings)


def test_the_probes_of_the_driver_ask_the_port_of_the_livenessprobe(render: Render) -> None:
    manifests = render("csi.livenessPort=19808")
    assert container(manifests, "csi")["livenessProbe"]["httpGet"]["port"] == 19808
    assert "--http-endpoint=127.0.0.1:19808" in container(manifests, "livenessprobe")["args"]


def test_a_driver_on_the_host_needs_sidecars_only_and_no_privilege(render: Render) -> None:
    manifests = render("csi.driver=host", SNAPSHOTTER, "monitoring.serviceMonitor=true")
    pod = pods(manifests)["ub-ub-node-csi"]
    assert [one["name"] for one in pod["containers"]] == ["registrar", "provisioner", "snapshotter"]
    assert not any(one["securityContext"].get("privileged") for one in pod["containers"])
    assert {volume["name"] for volume in pod["volumes"]} == {"plugin", "registration", "token"}
    assert "ub-ub-node-csi" not in of_kind(manifests, "ConfigMap")
    assert set(of_kind(manifests, "ServiceMonitor")) == {"ub-ub-node-agent", "ub-ub-node-nri"}


def test_the_sidecars_find_the_driver_of_the_host_where_its_unit_listens(render: Render) -> None:
    [start] = re.findall(r"^ExecStart=\S+ (.*)$", (FILES / "ub-csi.service").read_text(), re.MULTILINE)
    unit = csi_parser().parse_args(start.split())
    assert unit.mode == "all"  # its node provisions for itself
    registrar = container(render("csi.driver=host"), "registrar")
    assert f"--kubelet-registration-path={unit.endpoint.removeprefix('unix://')}" in registrar["args"]
