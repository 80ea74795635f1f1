"""The Helm chart: valid for the Kubernetes API, and wired as kubelet, the runtime and the sidecars expect.

Helm and kubeconform are installed with Go in pinned versions; the schemas are those of Kubernetes itself.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import grpc
import pytest
import yaml
from ubproto.csi.v1 import csi_pb2, csi_pb2_grpc

from cni_ub.agent.config import AgentConfig
from cni_ub.agent.confplan import ALONE
from csi_ub.__main__ import parser as csi_parser
from csi_ub.config import Config as CsiConfig
from docs import reference
from nri_qos.__main__ import parser as nri_parser
from nri_qos.config import Config as NriConfig
from tests.packaging.conftest import ROOT
from ubhost import config
from ubnode.install.cli import parser as install_parser
from ubnode.install.layout import FILES

pytestmark = pytest.mark.chart

CHART = ROOT / "packaging" / "chart" / "ub-node"
KUBERNETES = "v1.34.1"
SNAPSHOTTER = "csi.sidecars.snapshotter=registry.example/csi-snapshotter:v8.4.0"
EVERYTHING = (
    SNAPSHOTTER,
    "csi.snapshotClass=ub",
    "csi.volumeAttributesClasses[0].name=relaxed",
    "csi.volumeAttributesClasses[0].parameters.maxStaleness=30s",
    "networkAttachments[0].name=ub",
    "networkAttachments[0].config.isolation=shared",
    "monitoring.serviceMonitor=true",
    "monitoring.rules=true",
    "monitoring.dashboards=true",
    "csi.config.pools[0].name=fast",
    "csi.config.pools[0].path=/data/ub",
)
CONTROLLER = (
    SNAPSHOTTER,
    "csi.controller.enabled=true",
    "csi.controller.groupSnapshots=true",
    "csi.config.fencing=true",
    "csi.config.peers[0].node=a",
    "csi.config.peers[0].address=192.0.2.1",
    "csi.peerKeySecret=ub-peers",
)
Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="module")
def helm() -> str:
    return tool("helm")


def call(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def tool(name: str) -> str:
    done = call(ROOT / "e2e" / "install-go-tools", name)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def render_text(helm: str, *settings: str) -> str:
    sets = [argument for setting in settings for argument in ("--set", setting)]
    done = call(helm, "template", "ub", CHART, "--namespace", "ub-system", "--kube-version", KUBERNETES, *sets)
    done.check_returncode()
    return done.stdout


@pytest.fixture(scope="module")
def render(helm: str) -> Render:
    def render(*settings: str) -> list[Manifest]:
        return [document for document in yaml.safe_load_all(render_text(helm, *settings)) if document]

    return render


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Name of each DaemonSet and Deployment -> the spec of its pods."""
    sets = of_kind(manifests, "DaemonSet") | of_kind(manifests, "Deployment")
    return {name: manifest["spec"]["template"]["spec"] for name, manifest in sets.items()}


def containers(manifests: list[Manifest]) -> Iterator[Manifest]:
    for pod in pods(manifests).values():
        yield from [*pod.get("initContainers", ()), *pod["containers"]]


def container(manifests: list[Manifest], name: str) -> Manifest:
    [found] = [found for found in containers(manifests) if found["name"] == name]
    return found


def mounts(found: Manifest) -> dict[str, Manifest]:
    return {mount["mountPath"]: mount for mount in found["volumeMounts"]}


def test_helm_finds_nothing_to_complain_about(helm: str) -> None:
    done = call(helm, "lint", "--strict", CHART, "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def conforms() -> Callable[[str], subprocess.CompletedProcess[str]]:
    kubeconform = tool("kubeconform")
    made = call(sys.executable, ROOT / "packaging" / "kubernetes_schemas.py", KUBERNETES)
    assert made.returncode == 0, made.stderr
    folder = made.stdout.strip()
    location = f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"

    def conforms(text: str) -> subprocess.CompletedProcess[str]:
        return call(kubeconform, "-strict", "-schema-location", location, stdin=text)

    return conforms


@pytest.mark.parametrize("settings", [(), EVERYTHING, CONTROLLER, CONTROLLER[1:], ("cleanup=true",)])
def test_every_manifest_is_valid_for_the_kubernetes_api(
    helm: str, conforms: Callable[[str], subprocess.CompletedProcess[str]], settings: tuple[str, ...]
) -> None:
    done = conforms(render_text(helm, *settings))
    assert done.returncode == 0, done.stdout


def test_a_misspelt_field_is_found(helm: str, conforms: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    text = render_text(helm)
    assert "hostNetwork: true" in text
    assert conforms(text.replace("hostNetwork: true", "hostNetwrok: true")).returncode == 1


def test_a_misspelt_field_of_a_custom_resource_is_found(
    helm: str, conforms: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    text = render_text(helm, *EVERYTHING)
    for field in ("relabelings", "deletionPolicy", "expr"):
        assert f"{field}:" in text
        assert conforms(text.replace(f"{field}:", f"{field}s:")).returncode == 1


def test_an_unknown_value_is_refused(helm: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render_text(helm, "agent.enabeld=false")
    assert "enabeld" in refused.value.stderr


@pytest.mark.parametrize(
    ("component", "kind"), [("agent", AgentConfig), ("csi", CsiConfig), ("nri", NriConfig)], ids=["agent", "csi", "nri"]
)
def test_the_executables_accept_their_configuration(render: Render, component: str, kind: type[object]) -> None:
    text = of_kind(render(), "ConfigMap")[f"ub-ub-node-{component}"]["data"][f"{component}.yaml"]
    config.convert(yaml.safe_load(text), kind, where=component)


def test_the_executables_accept_their_arguments(render: Render) -> None:
    manifests = render()
    csi, nri = container(manifests, "csi"), container(manifests, "nri-qos")
    assert csi_parser().parse_args(csi["args"]).mode == "all"
    assert str(nri_parser().parse_args(nri["command"][1:]).socket) == "/var/run/nri/nri.sock"
    install = install_parser("install").parse_args(container(manifests, "install-cni")["command"][2:])
    uninstall = install_parser("uninstall").parse_args(container(render("cleanup=true"), "uninstall")["command"][2:])
    assert install.node_root == uninstall.node_root == Path("/host")


@pytest.mark.parametrize("settings", [EVERYTHING, CONTROLLER, ("cleanup=true",)])
def test_every_mount_has_its_volume_and_every_volume_its_mount(render: Render, settings: tuple[str, ...]) -> None:
    for name, pod in pods(render(*settings)).items():
        every = [*pod.get("initContainers", ()), *pod["containers"]]
        mounted = {mount["name"] for found in every for mount in found.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod["volumes"]}, name


def test_every_container_has_bounds_and_a_pinned_image_and_writes_nothing_of_its_own(render: Render) -> None:
    for found in [*containers(render(*EVERYTHING)), *containers(render(*CONTROLLER))]:
        assert found["resources"]["requests"]
        assert found["resources"]["limits"]["memory"]
        assert found["image"].rpartition(":")[2] not in ("", "latest")
        assert found["securityContext"]["readOnlyRootFilesystem"]


def test_only_what_enters_namespaces_or_mounts_is_privileged(render: Render) -> None:
    found = list(containers(render(*EVERYTHING)))
    privileged = {one["name"] for one in found if one["securityContext"].get("privileged")}
    assert privileged == {"agent", "csi"}
    for one in found:
        if one["name"] not in privileged:
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert one["securityContext"]["allowPrivilegeEscalation"] is False


def test_stage_and_publish_paths_are_seen_by_kubelet(render: Render) -> None:
    kubelet = mounts(container(render(), "csi"))["/var/lib/kubelet"]
    assert kubelet["mountPropagation"] == "Bidirectional"  # plugins/ and pods/, both below it


def test_only_who_mounts_for_others_propagates_to_the_node(render: Render) -> None:
    ways = {
        found["name"]: {
            mount["mountPath"] for mount in found["volumeMounts"] if mount.get("mountPropagation") == "Bidirectional"
        }
        for found in containers(render(*EVERYTHING))
    }
    assert {name: paths for name, paths in ways.items() if paths} == {
        "agent": {"/run/ub-node"},
        "csi": {"/var/lib/kubelet", "/run/ub-node", "/var/lib/ub-node"},
    }


def test_namespaces_that_the_runtime_makes_later_are_seen_by_the_agent(render: Render) -> None:
    assert mounts(container(render(), "agent"))["/run/netns"]["mountPropagation"] == "HostToContainer"


def test_who_must_see_all_processes_of_the_node_does_and_nobody_else(render: Render) -> None:
    """Namespaces without a name, and files that are open, are known by /proc alone."""
    found = {name for name, pod in pods(render(*CONTROLLER)).items() if pod.get("hostPID")}
    assert found == {"ub-ub-node-agent", "ub-ub-node-csi"}


def test_secrets_of_pods_are_seen_by_nobody_who_mounts_nothing_for_them(render: Render) -> None:
    """Kubelet's folder has them all."""
    specs = pods(render(*CONTROLLER, "nri.config.resctrl.cache=25"))
    seers = {
        name
        for name, pod in specs.items()
        for volume in pod["volumes"]
        if volume.get("hostPath", {}).get("path") in ("/var/lib/kubelet", "/var/lib", "/var", "/")
    }
    assert seers == {"ub-ub-node-csi"}


def test_resctrl_is_there_for_who_shall_use_it(render: Render) -> None:
    pod = pods(render("nri.config.resctrl.cache=25"))["ub-ub-node-nri"]
    assert pod["hostPID"]
    assert "/sys/fs/resctrl" in mounts(pod["containers"][0])


def test_sockets_that_others_make_anew_are_reached_through_their_folders(render: Render) -> None:
    for pod in pods(render()).values():
        for volume in pod["volumes"]:
            if "hostPath" in volume:
                kind = "File" if volume["name"] == "cpu-manager" else "Directory"  # its policy does not change in use
                assert volume["hostPath"]["type"].removesuffix("OrCreate") == kind
                assert not volume["hostPath"]["path"].endswith(".sock")
    assert "/var/run/nri" in mounts(container(render(), "nri-qos"))


def test_one_plugin_registers_per_node_at_a_time(render: Render) -> None:
    for manifest in of_kind(render(), "DaemonSet").values():
        assert manifest["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_a_pod_that_carries_volumes_of_others_is_replaced_only_when_its_node_is_drained(render: Render) -> None:
    """With peers, its FUSE daemons are what running pods read through."""
    peers = ("csi.config.peers[0].node=a", "csi.config.peers[0].address=192.0.2.1")
    assert of_kind(render(*peers), "DaemonSet")["ub-ub-node-csi"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_a_driver_on_the_host_needs_sidecars_only_and_no_privilege(render: Render) -> None:
    manifests = render("csi.driver=host", SNAPSHOTTER, "monitoring.serviceMonitor=true")
    pod = pods(manifests)["ub-ub-node-csi"]
    assert [one["name"] for one in pod["containers"]] == ["registrar", "provisioner", "snapshotter"]
    assert not any(one["securityContext"].get("privileged") for one in pod["containers"])
    assert {volume["name"] for volume in pod["volumes"]} == {"plugin", "registration"}
    assert "ub-ub-node-csi" not in of_kind(manifests, "ConfigMap")
    assert set(of_kind(manifests, "ServiceMonitor")) == {"ub-ub-node-agent", "ub-ub-node-nri"}


def test_the_sidecars_find_the_driver_of_the_host_where_its_unit_listens(render: Render) -> None:
    [start] = re.findall(r"^ExecStart=\S+ (.*)$", (FILES / "ub-csi.service").read_text(), re.MULTILINE)
    unit = csi_parser().parse_args(start.split())
    assert unit.mode == "all"  # its node provisions for itself
    registrar = container(render("csi.driver=host"), "registrar")
    assert f"--kubelet-registration-path={unit.endpoint.removeprefix('unix://')}" in registrar["args"]


def test_the_folder_of_every_pool_is_there_in_the_driver(render: Render) -> None:
    manifests = render(*EVERYTHING)
    assert mounts(container(manifests, "csi"))["/data/ub"]["name"] == "pool-fast"
    [path] = [
        volume["hostPath"]["path"]
        for volume in pods(manifests)["ub-ub-node-csi"]["volumes"]
        if volume["name"] == "pool-fast"
    ]
    assert path == "/data/ub"


def test_a_component_can_be_tried_on_one_node_first(render: Render) -> None:
    specs = pods(render("nri.nodeSelector.colocation=yes"))
    assert specs["ub-ub-node-nri"]["nodeSelector"] == {"kubernetes.io/os": "linux", "colocation": "yes"}
    assert specs["ub-ub-node-csi"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


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


def test_the_probes_of_the_driver_ask_the_port_of_the_livenessprobe(render: Render) -> None:
    manifests = render("csi.livenessPort=19808")
    assert container(manifests, "csi")["livenessProbe"]["httpGet"]["port"] == 19808
    assert "--http-endpoint=127.0.0.1:19808" in container(manifests, "livenessprobe")["args"]


def test_another_kubelet_folder_is_used_everywhere(helm: str) -> None:
    text = render_text(helm, "kubeletDir=/data/kubelet", *EVERYTHING)
    assert set(re.findall(r"/var/lib/kubelet[^, ]*", text)) == {"/var/lib/kubelet/cpu_manager_state"}  # inside nri-qos
    assert "/data/kubelet/cpu_manager_state" in text
    assert "/data/kubelet/plugins/csi-ub.unifiedbus.com/csi.sock" in text


def test_who_needs_no_api_server_has_no_token(render: Render) -> None:
    manifests = render()
    specs = pods(manifests)
    for name in ("ub-ub-node-agent", "ub-ub-node-nri"):
        assert specs[name]["automountServiceAccountToken"] is False
    bound = [
        subject["name"]
        for binding in of_kind(manifests, "ClusterRoleBinding").values()
        for subject in binding["subjects"]
    ]
    assert set(bound) == {"ub-ub-node-csi"}


def test_no_role_may_do_everything_or_read_secrets(render: Render) -> None:
    manifests = [*render(*EVERYTHING), *render(*CONTROLLER)]
    for role in [*of_kind(manifests, "ClusterRole").values(), *of_kind(manifests, "Role").values()]:
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            assert not {"secrets", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])


def test_the_driver_object_says_what_the_driver_does(render: Render) -> None:
    spec = of_kind(render(), "CSIDriver")["csi-ub.unifiedbus.com"]["spec"]
    wanted: Mapping[str, object] = {
        "attachRequired": False,
        "fsGroupPolicy": "None",
        "requiresRepublish": False,
        "seLinuxMount": False,
    }
    assert wanted.items() <= spec.items()


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


def test_an_account_may_what_its_sidecars_need_and_no_other(render: Render) -> None:
    bound = {
        binding["roleRef"]["name"].removeprefix("ub-ub-node-csi-"): binding["subjects"][0]["name"]
        for binding in of_kind(render(*CONTROLLER), "ClusterRoleBinding").values()
    }
    controller = "ub-ub-node-csi-controller"
    assert bound == {
        "provisioner": "ub-ub-node-csi",
        "resizer": controller,
        "snapshotter": controller,
        "group-snapshotter": controller,
        "attacher": controller,
    }


def test_a_network_attachment_carries_a_configuration_of_ub_cni(render: Render) -> None:
    [network] = of_kind(render(*EVERYTHING), "NetworkAttachmentDefinition").values()
    given = json.loads(network["spec"]["config"])
    assert given.pop("capabilities") == ALONE["capabilities"]  # as `ubnode conf --mode nad` prints it
    assert given == {"cniVersion": "1.0.0", "name": "ub", "type": "ub-cni", "isolation": "shared"}


def known_series() -> set[str]:
    """Every name that Prometheus can see, in the reference and in the guide of nri-qos; both are tested themselves."""
    families = {
        row[0].strip("`")
        for rows in (reference._agent_metrics, reference._csi_metrics, reference._nri_metrics)
        for row in rows()
    }
    told = re.findall(r"`(?:ub_qos)?_(\w+)(?:\{[\w,]+\})?`", (ROOT / "docs" / "qos.md").read_text())
    families |= {f"ub_qos_{name}" for name in told}
    return families | {f"{name}_{part}" for name in families for part in ("total", "bucket", "sum", "count")}


def series(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:csi_)?ub_[a-z_]+", expression))


def test_alerts_ask_for_metrics_that_exist(render: Render) -> None:
    [rules] = of_kind(render(*EVERYTHING), "PrometheusRule").values()
    asked = {name for group in rules["spec"]["groups"] for rule in group["rules"] for name in series(rule["expr"])}
    assert len(asked) >= 8
    assert asked - known_series() == set()


@pytest.mark.parametrize("name", ["agent", "csi", "qos"])
def test_dashboards_show_metrics_that_exist(render: Render, name: str) -> None:
    manifest = of_kind(render(*EVERYTHING), "ConfigMap")[f"ub-ub-node-dashboard-{name}"]
    board = json.loads(manifest["data"][f"{name}.json"])
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = series(" ".join([*expressions, board["templating"]["list"][1]["query"]]))
    assert len(asked) >= 6
    assert asked - known_series() == set()
    assert manifest["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_probes_ask_a_port_that_the_configuration_opens(render: Render) -> None:
    manifests = render("nri.metricsPort=12345", "agent.metricsPort=12346", "csi.metricsPort=12347")
    for component, name, port in (("nri", "nri-qos", 12345), ("agent", "agent", 12346), ("csi", "csi", 12347)):
        text = of_kind(manifests, "ConfigMap")[f"ub-ub-node-{component}"]["data"][f"{component}.yaml"]
        assert yaml.safe_load(text)["metrics_address"] == f"0.0.0.0:{port}"
        assert container(manifests, name)["ports"][0]["containerPort"] == port
        if component != "csi":  # its probes go through the sidecar
            assert container(manifests, name)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_without_a_metrics_port_there_are_no_probes_either(render: Render) -> None:
    manifests = render(
        "nri.metricsPort=0", "agent.metricsPort=0", "csi.metricsPort=0", "monitoring.serviceMonitor=true"
    )
    assert not of_kind(manifests, "ServiceMonitor")
    assert "livenessProbe" not in container(manifests, "nri-qos")


def test_a_component_that_is_off_leaves_nothing(render: Render) -> None:
    assert not pods(render("agent.enabled=false", "csi.enabled=false", "nri.enabled=false"))
    assert set(pods(render("csi.enabled=false"))) == {"ub-ub-node-agent", "ub-ub-node-nri"}
    assert not of_kind(render("csi.enabled=false"), "ClusterRole")


def test_cleaning_up_replaces_the_plugins(render: Render) -> None:
    manifests = render("cleanup=true")
    assert nri_parser().parse_args(container(manifests, "restore-qos")["command"][1:]).restore
    assert set(pods(manifests)) == {"ub-ub-node-cleanup"}
    assert not of_kind(manifests, "CSIDriver")


@pytest.mark.parametrize("guide", ["multus", "chaining", "rdma", "colocation"])
def test_values_of_the_guides_give_a_valid_chart(
    helm: str, conforms: Callable[[str], subprocess.CompletedProcess[str]], guide: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "howto" / f"{guide}.md").read_text()
    for block in re.findall(r"^```yaml\n(# values.yaml\n.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (tmp_path / "values.yaml").write_text(block)
        done = call(helm, "template", "ub", CHART, "--kube-version", KUBERNETES, "--values", tmp_path / "values.yaml")
        assert done.returncode == 0, done.stderr
        assert conforms(done.stdout).returncode == 0
        for component, kind in (("agent", AgentConfig), ("csi", CsiConfig), ("nri", NriConfig)):
            maps = of_kind([each for each in yaml.safe_load_all(done.stdout) if each], "ConfigMap")
            if found := maps.get(f"ub-ub-node-{component}"):
                config.convert(yaml.safe_load(found["data"][f"{component}.yaml"]), kind, where=guide)


def test_the_plain_manifests_are_what_the_chart_gives_now(helm: str, tmp_path: Path) -> None:
    call(ROOT / "packaging" / "render-manifests", tmp_path).check_returncode()
    committed = {file.name: file.read_text() for file in (ROOT / "packaging" / "manifests").glob("*.yaml")}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == committed, "run make manifests and commit"


def test_the_plain_manifests_are_valid_and_know_nothing_of_helm(
    conforms: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    files = sorted((ROOT / "packaging" / "manifests").glob("*.yaml"))
    assert [file.stem for file in files] == ["00-namespace", "agent", "csi", "nri"]
    for file in files:
        done = conforms(file.read_text())
        assert done.returncode == 0, done.stdout
        assert "helm" not in file.read_text().lower()


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    declared = [
        line for line in Path(ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = ")
    ]
    assert declared == [f'version = "{chart["appVersion"]}"']
    assert chart["version"] == chart["appVersion"]
