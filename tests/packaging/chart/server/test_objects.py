"""A real API server takes what the chart makes without a warning, and Helm goes from any set of values to any other."""

import subprocess
from collections.abc import Iterator

import pytest
import yaml

from e2e.kubernetes.api import Api, Manifest, Refused, names
from e2e.kubernetes.controlplane import ControlPlane
from tests.packaging.chart.conftest import CHART, CONTROLLER, EVERYTHING, Render, call, of_kind
from tests.packaging.chart.server.conftest import SPACE, present
from tests.packaging.conftest import ROOT

pytestmark = pytest.mark.apiserver

FENCING = "csi.config.fencing=true"
VARIANTS = {
    "defaults": (),
    "everything": EVERYTHING,
    "controller": CONTROLLER,
    "controller without snapshots": CONTROLLER[1:],
    "driver on the host": ("csi.driver=host",),
    "caches are shared out": ("nri.config.resctrl.cache=25", "nri.dryRun=true"),
    "no metrics": ("agent.metricsPort=0", "csi.metricsPort=0", "nri.metricsPort=0"),
    "storage only": ("agent.enabled=false", "nri.enabled=false"),
    "cleanup": ("cleanup=true",),
}


def test_every_manifest_is_taken_without_a_warning(api: Api, render: Render) -> None:
    for variant, settings in VARIANTS.items():
        for manifest in render(*settings):
            answer = api.create(manifest, keep=False)
            assert answer.warnings == (), (variant, manifest["kind"], manifest["metadata"]["name"])


def test_what_the_server_does_not_know_is_refused(api: Api, render: Render) -> None:
    """The negative control of the test above."""
    daemon = of_kind(render(), "DaemonSet")["ub-ub-node-agent"]
    daemon["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(Refused, match="hostNetwrok"):
        api.create(daemon, keep=False)


def test_the_plain_manifests_are_applied_and_deleted(api: Api) -> None:
    objects = {}  # the agent's account is that of nri, too
    for file in sorted((ROOT / "packaging" / "manifests").glob("*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(file.read_text())):
            objects[api.path(manifest)] = manifest
    del objects[f"/api/v1/namespaces/{SPACE}"]  # it is there
    with present(api, objects.values()):
        assert all(api.get(one) for one in objects.values())
    assert [path for path, one in objects.items() if api.get(one)] == []


class Release:
    """The chart as Helm has it in the cluster."""

    def __init__(self, helm: str, plane: ControlPlane) -> None:
        config = plane.write_kubeconfig("admin")
        self._helm = [helm, "--kubeconfig", str(config), "--namespace", SPACE]

    def try_to_put(self, *settings: str) -> subprocess.CompletedProcess[str]:
        """Install or upgrade."""
        sets = [argument for setting in settings for argument in ("--set", setting)]
        return call(*self._helm, "upgrade", "--install", "--reset-values", "ub", str(CHART), *sets)

    def put(self, *settings: str) -> set[tuple[str, str]]:
        """Install or upgrade, without a warning; return kind and name of all that the release has."""
        done = self.try_to_put(*settings)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr.lower(), done.stderr
        made = call(*self._helm, "get", "manifest", "ub")
        return names([one for one in yaml.safe_load_all(made.stdout) if one])

    def remove(self) -> None:
        call(*self._helm, "uninstall", "ub").check_returncode()


@pytest.fixture
def release(api: Api, plane: ControlPlane, helm: str) -> Iterator[Release]:
    release = Release(helm, plane)
    yield release
    release.remove()
    assert living(api) == set(), "nothing is left"


def living(api: Api) -> set[tuple[str, str]]:
    """Return kind and name of every object in the cluster that is the chart's."""
    kinds = {
        "v1": ("ConfigMap", "Service", "ServiceAccount"),
        "apps/v1": ("DaemonSet", "Deployment"),
        "policy/v1": ("PodDisruptionBudget",),
        "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        "storage.k8s.io/v1": ("CSIDriver", "StorageClass", "VolumeAttributesClass"),
        "snapshot.storage.k8s.io/v1": ("VolumeSnapshotClass",),
        "k8s.cni.cncf.io/v1": ("NetworkAttachmentDefinition",),
        "monitoring.coreos.com/v1": ("PrometheusRule", "ServiceMonitor"),
    }
    found = set()
    for version, each in kinds.items():
        for kind in each:
            ours = f"{api.collection(version, kind)}?labelSelector=app.kubernetes.io/name%3Dub-node"
            found |= names([{**one, "kind": kind} for one in api.call("GET", ours).body["items"] if not is_going(one)])
    return found


def is_going(one: Manifest) -> bool:
    """A class of attributes waits for a controller of Kubernetes, which none of these tests has, to let it go."""
    return "deletionTimestamp" in one["metadata"]


def test_helm_goes_from_any_set_of_values_to_any_other(api: Api, release: Release) -> None:
    """All but fencing, see below, in a circle."""
    circle = [values for values in VARIANTS.values() if FENCING not in values]
    for values in (*circle, circle[0]):
        assert release.put(*values) == living(api)


def test_helm_says_what_to_do_before_fencing_is_switched_on_or_off(api: Api, release: Release) -> None:
    """The one thing that the API server never changes: it would refuse it when half of the upgrade is done."""
    driver = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "csi-ub.unifiedbus.com"}}
    release.put()
    for values in (CONTROLLER, ()):
        before = living(api)
        refused = release.try_to_put(*values)
        assert "run kubectl delete csidriver csi-ub.unifiedbus.com, then upgrade again" in refused.stderr
        assert living(api) == before
        api.delete(driver)
        assert release.put(*values) == living(api)
