"""The sidecars of others, in the releases that the chart names: what their own source says of rights and flags."""

import re
from typing import Any

import pytest
import yaml

from tests.packaging.chart.conftest import CHART, CONTROLLER, EVERYTHING, Render, containers, sidecar_source

pytestmark = [pytest.mark.chart, pytest.mark.usefixtures("helm")]  # where Helm comes from, there is Go

# The registrar and the livenessprobe are no modules that a Go proxy has.
RULES = {
    "provisioner": "deploy/kubernetes/rbac.yaml",
    "resizer": "deploy/kubernetes/rbac.yaml",
    "attacher": "deploy/kubernetes/rbac.yaml",
    "snapshotter": "deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml",
}
UNUSED = {("", "pods", verb) for verb in ("get", "list", "watch")}  # the resizer: --handle-volume-inuse-error=false
Right = tuple[str, str, str]  # group, resource, verb


def flat(rules: list[dict[str, Any]]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("sidecar", RULES)
def test_a_sidecar_may_what_its_own_release_asks_for(sidecar: str) -> None:
    documents = yaml.safe_load_all((sidecar_source(sidecar) / RULES[sidecar]).read_text())
    [asked] = [flat(one["rules"]) for one in documents if one and one["kind"] == "ClusterRole"]
    roles = yaml.safe_load((CHART / "roles.yaml").read_text())
    given = flat(roles[sidecar]) | flat(roles.get(f"group-{sidecar}", ()))
    assert asked - given <= UNUSED


@pytest.mark.parametrize("sidecar", RULES)
def test_a_sidecar_knows_every_flag_and_feature_that_it_is_given(render: Render, sidecar: str) -> None:
    source = sidecar_source(sidecar)
    text = "".join(file.read_text() for folder in ("cmd", "pkg") for file in (source / folder).rglob("*.go"))
    # Defined in a library of all sidecars.
    known = set(re.findall(r'"([a-z][-a-z]+|[A-Z]\w+)"', text)) | {"csi-address", "leader-election"}
    found = [
        one for one in [*containers(render(*EVERYTHING)), *containers(render(*CONTROLLER))] if one["name"] == sidecar
    ]
    assert found
    for one in found:
        for argument in one["args"]:
            flag, _, value = argument.removeprefix("--").partition("=")
            assert flag in known, argument
            if flag == "feature-gates":
                assert value.partition("=")[0] in known, argument
