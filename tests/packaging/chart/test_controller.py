"""The CSI controller that a cluster may have beside the drivers of its nodes."""

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import yaml
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from csi_ub.__main__ import parser as csi_parser
from csi_ub.config import Config as CsiConfig
from tests.packaging.chart.conftest import CONTROLLER, Render, of_kind, pods, render_text
from tests.packaging.conftest import ROOT
from ubhost import config

pytestmark = pytest.mark.chart


def test_the_controller_needs_peers_to_hand_calls_to(helm: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render_text(helm, "csi.controller.enabled=true")
    assert "needs csi.config.peers" in refused.value.stderr


def test_the_controller_needs_a_key_as_it_has_no_address_that_owners_know(helm: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render_text(helm, *(value for value in CONTROLLER if not value.startswith("csi.peerKeySecret")))
    assert "needs csi.peerKeySecret" in refused.value.stderr


def test_the_controller_has_one_of_each_sidecar_that_a_cluster_has_once(render: Render) -> None:
    manifests = render(*CONTROLLER)
    specs = pods(manifests)
    node, controller = specs["ub-ub-node-csi"], specs["ub-ub-node-csi-controller"]
    assert [one["name"] for one in node["containers"]] == ["csi", "livenessprobe", "registrar", "provisioner"]
    by_name = {one["name"]: one for one in controller["containers"]}
    assert by_name.keys() == {"csi", "livenessprobe", "resizer", "snapshotter", "attacher"}
    assert "--feature-gates=CSIVolumeGroupSnapshot=true" in by_name["snapshotter"]["args"]
    for name in ("resizer", "snapshotter", "attacher"):
        assert "--leader-election" in by_name[name]["args"]
    assert csi_parser().parse_args(by_name["csi"]["args"]).mode == "controller"
    assert not any(one["securityContext"].get("privileged") for one in controller["containers"])
    assert not any("hostPath" in volume for volume in controller["volumes"])
    assert of_kind(manifests, "CSIDriver")["csi-ub.unifiedbus.com"]["spec"]["attachRequired"] is True
    assert all(one["allowVolumeExpansion"] for one in of_kind(manifests, "StorageClass").values())


def test_the_controller_knows_the_peers_and_opens_no_port_of_a_node(render: Render) -> None:
    text = of_kind(render(*CONTROLLER), "ConfigMap")["ub-ub-node-csi-controller"]["data"]["csi.yaml"]
    settings = config.convert(yaml.safe_load(text), CsiConfig, where="csi")
    assert [peer.node for peer in settings.peers] == ["a"]
    assert settings.metrics_address is None


def test_the_controller_serves_with_what_the_chart_gives_it_and_no_capability(render: Render, tmp_path: Path) -> None:
    manifests = render(*CONTROLLER)
    text = of_kind(manifests, "ConfigMap")["ub-ub-node-csi-controller"]["data"]["csi.yaml"]
    key, settings, endpoint = tmp_path / "key", tmp_path / "csi.yaml", tmp_path / "csi.sock"
    key.write_text("0123456789abcdef" * 3)
    key.chmod(0o400)
    settings.write_text(text.replace("/etc/ub-node-peers/key", str(key)))
    [csi] = [one for one in pods(manifests)["ub-ub-node-csi-controller"]["containers"] if one["name"] == "csi"]
    places = {
        "unix:///csi/csi.sock": f"unix://{endpoint}",
        "$(POD_NAME)": "c-0",
        "/etc/ub-node/csi.yaml": str(settings),
    }
    arguments = [places.get(argument, argument) for argument in csi["args"]]
    nothing = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--ambient-caps=-all", "--no-new-privs"]
    environ = {**os.environ, "UB_ROOT": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    with subprocess.Popen([*nothing, sys.executable, "-m", "csi_ub", *arguments], env=environ) as driver:
        try:
            with grpc.insecure_channel(f"unix:{endpoint}") as channel:
                asked = csi_pb2_grpc.IdentityStub(channel).Probe
                assert asked(csi_pb2.ProbeRequest(), timeout=60, wait_for_ready=True).ready.value
            driver.terminate()
            assert driver.wait(60) == 0
        finally:
            driver.kill()
