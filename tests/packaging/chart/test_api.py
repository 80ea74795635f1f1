"""What the chart makes, and the plain manifests made from it, are what the Kubernetes API takes."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.packaging.chart.conftest import CHART, CONTROLLER, EVERYTHING, KUBERNETES, Conforms, call, render_text
from tests.packaging.conftest import ROOT

pytestmark = pytest.mark.chart


def test_helm_finds_nothing_to_complain_about(helm: str) -> None:
    done = call(helm, "lint", "--strict", CHART, "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("settings", [(), EVERYTHING, CONTROLLER, CONTROLLER[1:], ("cleanup=true",)])
def test_every_manifest_is_valid_for_the_kubernetes_api(
    helm: str, conforms: Conforms, settings: tuple[str, ...]
) -> None:
    done = conforms(render_text(helm, *settings))
    assert done.returncode == 0, done.stdout


def test_a_misspelt_field_is_found(helm: str, conforms: Conforms) -> None:
    text = render_text(helm)
    assert "hostNetwork: true" in text
    assert conforms(text.replace("hostNetwork: true", "hostNetwrok: true")).returncode == 1


def test_a_misspelt_field_of_a_custom_resource_is_found(helm: str, conforms: Conforms) -> None:
    text = render_text(helm, *EVERYTHING)
    for field in ("relabelings", "deletionPolicy", "expr"):
        assert f"{field}:" in text
        assert conforms(text.replace(f"{field}:", f"{field}s:")).returncode == 1


@pytest.mark.parametrize(
    "value", ["agent.enabeld=false", "nri.config.flor=2", "csi.config.fencing=maybe", "agent.config.log_level=3"]
)
def test_an_unknown_value_is_refused_down_to_the_configuration_of_a_daemon(helm: str, value: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render_text(helm, value)
    assert value.partition("=")[0].rpartition(".")[2] in refused.value.stderr


def test_the_plain_manifests_are_what_the_chart_gives_now(helm: str, tmp_path: Path) -> None:
    call(ROOT / "packaging" / "render-manifests", tmp_path).check_returncode()
    committed = {file.name: file.read_text() for file in (ROOT / "packaging" / "manifests").glob("*.yaml")}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == committed, "run make manifests and commit"


def test_the_plain_manifests_are_valid_and_know_nothing_of_helm(conforms: Conforms) -> None:
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
