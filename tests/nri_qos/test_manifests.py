import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nri_qos import cli, manifests, plan
from tests.nri_qos import nodes
from ubhost.errors import InvalidRequest


def manifest(name: str = "web", *, limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    container = {"name": "app", "resources": {"limits": limits} if limits else {}}
    return {"kind": "Pod", "metadata": {"name": name, **more}, "spec": {"containers": [container]}}


def test_requests_and_limits_become_what_kubelet_asks_for() -> None:
    (wanted,) = manifests.pods([manifest(limits={"cpu": "1500m", "memory": "1Gi"})])
    (container,) = wanted.containers
    resources = container.resources
    assert (resources.shares, resources.quota, resources.period, resources.memory_limit) == (
        1536,
        150_000,
        100_000,
        2**30,
    )
    assert plan.is_guaranteed(wanted.pod, container)


def test_a_pod_without_requests_is_best_effort() -> None:
    (wanted,) = manifests.pods([manifest()])
    assert "besteffort" in wanted.pod.cgroup_parent
    assert wanted.containers[0].resources.shares == 2
    (wanted,) = manifests.pods([manifest(limits={"cpu": 1})])
    assert "burstable" in wanted.pod.cgroup_parent


def test_lists_and_pod_templates_are_read_too() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": manifest()["spec"]}
    deployment = {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 1, "template": template}}
    found = manifests.pods([None, {"kind": "List", "items": [manifest("one"), deployment]}])
    assert [(wanted.pod.name, dict(wanted.pod.labels)) for wanted in found] == [("one", {}), ("d", {"a": "b"})]


def test_sidecars_run_beside_the_others_and_init_containers_before() -> None:
    document = manifest()
    document["spec"]["initContainers"] = [{"name": "init"}, {"name": "proxy", "restartPolicy": "Always"}]
    (wanted,) = manifests.pods([document])
    assert [c.name for c in wanted.starting] == ["init"]
    assert [c.name for c in wanted.containers] == ["proxy", "app"]


keys = st.sampled_from(["spec", "metadata", "items", "template", "containers", "resources", "limits", "cpu"])
leaves: st.SearchStrategy[object] = st.none() | st.integers() | st.text(max_size=3)
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


@given(documents)
def test_any_document_is_read_or_refused_clearly(document: object) -> None:
    try:
        manifests.pods([document])
    except InvalidRequest:
        return


def test_plan_shows_what_each_pod_would_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.write(nodes.machine("0-3", "4-7"), tmp_path)
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    key = "qos.unifiedbus.com/class"
    hls = manifest("db", limits={"cpu": 2, "memory": "1Gi"}, annotations={key: "HLS"})
    hls["spec"]["initContainers"] = [{**hls["spec"]["containers"][0], "name": "init"}]
    too_much = manifest(
        "big", limits={"cpu": 7}, annotations={key: "LS", "qos.unifiedbus.com/numa": "single-numa-node"}
    )
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all([hls, manifest("batch", labels={key: "BE"}), too_much]))
    assert cli.main(["plan", "-f", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["pod"], row["container"], row["class"], row.get("cpus")) for row in rows] == [
        ("default/db", "init", "HLS", "0-1"),
        ("default/db", "app", "HLS", "0-1"),
        ("default/batch", "app", "BE", "2-7"),
        ("default/big", "app", "LS", None),
    ]
    assert "no one NUMA node has 7 CPUs" in rows[3]["refused"]
    assert cli.main(["plan", "-f", str(file)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["POD", "CONTAINER", "CLASS", "WEIGHT", "CPUS", "MEMORY", "WHY"]
    assert "default/db     init       HLS    as requested  0-1   node 0    " in table[1]


@pytest.mark.parametrize(
    "text", ["a: [", "[]", "spec: {containers: 7}", "spec: {containers: [{resources: {limits: {cpu: x}}}]}"]
)
def test_a_wrong_manifest_is_one_clear_error(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.write(nodes.machine("0-3"), tmp_path)
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest):
        cli.main(["plan", "-f", str(file)])
