"""What each account of the chart may do, as the API server's own authorizer says."""

from collections.abc import Iterator

import pytest
import yaml

from e2e.kubernetes.api import Api
from tests.packaging.chart.conftest import CHART, CONTROLLER, Manifest, Render
from tests.packaging.chart.server.conftest import SPACE, present

pytestmark = pytest.mark.apiserver

Right = tuple[str, str, str]  # group, resource, verb
NODE, CSI, CONTROL = "ub-ub-node-node", "ub-ub-node-csi", "ub-ub-node-csi-controller"
SIDECARS = {
    NODE: (),
    CSI: ("provisioner",),
    CONTROL: ("resizer", "snapshotter", "group-snapshotter", "attacher"),
}
EVERY_VERB = ("get", "list", "watch", "create", "update", "patch", "delete")
OWN: dict[str, set[Right]] = {  # in the namespace of the chart only
    NODE: set(),
    CSI: {
        *(("storage.k8s.io", "csistoragecapacities", verb) for verb in EVERY_VERB),
        ("", "pods", "get"),
        ("apps", "daemonsets", "get"),
    },
    CONTROL: {("coordination.k8s.io", "leases", verb) for verb in EVERY_VERB},
}


@pytest.fixture(scope="module")
def bound(api: Api, render: Render) -> Iterator[Api]:
    """A cluster in which the accounts of the whole chart are."""
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    with present(api, [manifest for manifest in render(*CONTROLLER) if manifest["kind"] in kinds]):
        yield api


def flat(rules: list[Manifest]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def rights(api: Api, account: str, space: str) -> set[Right]:
    """Return all that an account may do in a namespace, as the server resolves it, without what every account may."""

    def asked(name: str) -> set[Right]:
        body = {"spec": {"namespace": space}}
        answer = api.acting_as(name).call("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)
        assert not answer.body["status"]["incomplete"]
        return flat(answer.body["status"]["resourceRules"])

    return asked(f"{SPACE}:{account}") - asked(f"{SPACE}:nobody")


@pytest.mark.parametrize("account", SIDECARS)
def test_an_account_may_exactly_what_its_sidecars_ask(bound: Api, account: str) -> None:
    roles = yaml.safe_load((CHART / "roles.yaml").read_text())
    wanted = set[Right]().union(*(flat(roles[sidecar]) for sidecar in SIDECARS[account]))
    assert rights(bound, account, SPACE) == wanted | OWN[account]
    assert rights(bound, account, "default") == wanted


@pytest.mark.parametrize("account", SIDECARS)
def test_no_account_may_what_would_make_it_more(bound: Api, account: str) -> None:
    for group, resource, verb in (
        ("", "secrets", "get"),
        ("", "secrets", "list"),
        ("", "pods", "create"),
        ("", "pods/exec", "create"),
        ("", "serviceaccounts/token", "create"),
        ("", "nodes", "patch"),
        ("", "nodes/proxy", "get"),
        ("rbac.authorization.k8s.io", "clusterrolebindings", "create"),
        ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
        ("storage.k8s.io", "csidrivers", "update"),
    ):
        for space in (SPACE, "kube-system"):
            asked = (verb, resource, space)
            assert not bound.may(f"{SPACE}:{account}", verb, resource, group=group, namespace=space), asked


def test_the_check_knows_a_right_when_there_is_one(bound: Api) -> None:
    """The control of the test above."""
    csi, controller = f"{SPACE}:{CSI}", f"{SPACE}:{CONTROL}"
    assert bound.may(csi, "create", "persistentvolumes")
    assert bound.may(csi, "update", "csistoragecapacities", group="storage.k8s.io", namespace=SPACE)
    assert not bound.may(csi, "update", "csistoragecapacities", group="storage.k8s.io", namespace="default")
    assert bound.may(controller, "patch", "persistentvolumeclaims/status", namespace="default")
    assert bound.may(controller, "update", "leases", group="coordination.k8s.io", namespace=SPACE)


def test_no_right_is_for_a_resource_that_kubernetes_does_not_have(bound: Api) -> None:
    """A role with a misspelt resource is taken without a word."""
    for account in SIDECARS:
        for group, resource, _ in rights(bound, account, SPACE):
            if group.endswith("snapshot.storage.k8s.io"):
                continue  # custom resources: most of their definitions are not installed here
            assert resource in bound.served(group), (group, resource)
