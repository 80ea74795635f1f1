"""Where the chart's pods may run, as the API server's Pod Security says; docs/install.md has the label it takes."""

import pytest

from e2e.kubernetes.api import Api, Manifest, Refused, namespace
from tests.packaging.chart.conftest import CONTROLLER, EVERYTHING, Render, of_kind, pods
from tests.packaging.chart.server.conftest import SPACE, present

pytestmark = pytest.mark.apiserver


def pod(name: str, spec: Manifest, space: str) -> Manifest:
    """Return the pod that a controller of Kubernetes makes of a template."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space}, "spec": spec}


def specs(render: Render) -> dict[str, Manifest]:
    """Return every kind of pod that the chart may have, by name."""
    return pods(render(*EVERYTHING)) | pods(render(*CONTROLLER)) | pods(render("cleanup=true"))


def accounts(render: Render, space: str) -> list[Manifest]:
    every = of_kind(render(*CONTROLLER), "ServiceAccount")
    return [{**account, "metadata": {"name": name, "namespace": space}} for name, account in every.items()]


def test_the_pods_are_let_into_a_namespace_that_is_privileged(api: Api, render: Render) -> None:
    with present(api, accounts(render, SPACE)):
        for name, spec in specs(render).items():
            assert api.create(pod(name, spec, SPACE), keep=False).warnings == (), name


def test_another_namespace_refuses_them_all_and_says_why(api: Api, render: Render) -> None:
    limited = "limited"
    said = {}
    with present(api, [namespace(limited, enforce="baseline"), *accounts(render, limited)]):
        for name, spec in specs(render).items():
            with pytest.raises(Refused, match='violates PodSecurity "baseline:latest"') as refused:
                api.create(pod(name, spec, limited), keep=False)
            said[name] = str(refused.value)
    assert "hostPath volumes" in said["ub-ub-node-nri"]
    assert "privileged" not in said["ub-ub-node-nri"], "it has files of the host, and nothing else"
    assert "host namespaces" in said["ub-ub-node-csi-controller"]
    assert "hostPath volumes" not in said["ub-ub-node-csi-controller"]
