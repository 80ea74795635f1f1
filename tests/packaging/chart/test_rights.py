"""Nobody may more than its work needs: privilege, namespaces and folders of the host, roles, tokens."""

import pytest

from tests.packaging.chart.conftest import CONTROLLER, EVERYTHING, Render, container, containers, of_kind, pods

pytestmark = pytest.mark.chart


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


def test_only_who_asks_the_api_server_has_a_token(render: Render) -> None:
    manifests = [*render(*EVERYTHING), *render(*CONTROLLER), *render("cleanup=true")]
    assert {pod["automountServiceAccountToken"] for pod in pods(manifests).values()} == {False}
    askers = {
        found["name"]
        for found in containers(manifests)
        for mount in found.get("volumeMounts", ())
        if mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    }
    assert askers == {"provisioner", "snapshotter", "resizer", "attacher"}


def test_who_needs_no_api_server_has_no_rights_either(render: Render) -> None:
    bound = [
        subject["name"]
        for binding in of_kind(render(), "ClusterRoleBinding").values()
        for subject in binding["subjects"]
    ]
    assert set(bound) == {"ub-ub-node-csi"}


def test_the_controller_shares_no_files_of_the_host_and_is_confined_by_selinux(render: Render) -> None:
    for found in pods(render(*CONTROLLER))["ub-ub-node-csi-controller"]["containers"]:
        assert "seLinuxOptions" not in found["securityContext"]


def test_who_writes_what_the_runtimes_apparmor_profile_forbids_has_none(render: Render) -> None:
    """That of containerd and CRI-O denies writes below /sys/fs, but for cgroups."""
    for settings, profile in (((), None), (("nri.config.resctrl.cache=25",), {"type": "Unconfined"})):
        found = container(render(*settings), "nri-qos")
        assert found["securityContext"].get("appArmorProfile") == profile


def test_no_role_may_do_everything_or_read_secrets(render: Render) -> None:
    manifests = [*render(*EVERYTHING), *render(*CONTROLLER)]
    for role in [*of_kind(manifests, "ClusterRole").values(), *of_kind(manifests, "Role").values()]:
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            assert not {"secrets", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])


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
