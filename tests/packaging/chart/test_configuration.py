"""What the chart tells our executables is what they accept."""

import json
import re
from pathlib import Path

import pytest
import yaml

from cni_ub.agent.config import AgentConfig
from cni_ub.agent.confplan import ALONE
from csi_ub.__main__ import parser as csi_parser
from csi_ub.config import Config as CsiConfig
from nri_qos.__main__ import parser as nri_parser
from nri_qos.config import Config as NriConfig
from tests.packaging.chart.conftest import CHART, EVERYTHING, KUBERNETES, Conforms, Render, call, container, of_kind
from tests.packaging.conftest import ROOT
from ubhost import config
from ubnode.install.cli import parser as install_parser

pytestmark = pytest.mark.chart

CONFIGS: dict[str, type[object]] = {"agent": AgentConfig, "csi": CsiConfig, "nri": NriConfig}


@pytest.mark.parametrize("component", CONFIGS)
def test_the_executables_accept_their_configuration(render: Render, component: str) -> None:
    text = of_kind(render(), "ConfigMap")[f"ub-ub-node-{component}"]["data"][f"{component}.yaml"]
    config.convert(yaml.safe_load(text), CONFIGS[component], where=component)


def test_the_executables_accept_their_arguments(render: Render) -> None:
    manifests = render()
    csi, nri = container(manifests, "csi"), container(manifests, "nri-qos")
    assert csi_parser().parse_args(csi["args"]).mode == "all"
    assert str(nri_parser().parse_args(nri["command"][1:]).socket) == "/var/run/nri/nri.sock"
    install = install_parser("install").parse_args(container(manifests, "install-cni")["command"][2:])
    uninstall = install_parser("uninstall").parse_args(container(render("cleanup=true"), "uninstall")["command"][2:])
    assert install.node_root == uninstall.node_root == Path("/host")


def test_a_network_attachment_carries_a_configuration_of_ub_cni(render: Render) -> None:
    [network] = of_kind(render(*EVERYTHING), "NetworkAttachmentDefinition").values()
    given = json.loads(network["spec"]["config"])
    assert given.pop("capabilities") == ALONE["capabilities"]  # as `ubnode conf --mode nad` prints it
    assert given == {"cniVersion": "1.0.0", "name": "ub", "type": "ub-cni", "isolation": "shared"}


@pytest.mark.parametrize("guide", ["multus", "chaining", "rdma", "colocation"])
def test_values_of_the_guides_give_a_valid_chart(helm: str, conforms: Conforms, guide: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / f"{guide}.md").read_text()
    for block in re.findall(r"^```yaml\n(# values.yaml\n.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (tmp_path / "values.yaml").write_text(block)
        done = call(helm, "template", "ub", CHART, "--kube-version", KUBERNETES, "--values", tmp_path / "values.yaml")
        assert done.returncode == 0, done.stderr
        assert conforms(done.stdout).returncode == 0
        maps = of_kind([each for each in yaml.safe_load_all(done.stdout) if each], "ConfigMap")
        for component, kind in CONFIGS.items():
            if found := maps.get(f"ub-ub-node-{component}"):
                config.convert(yaml.safe_load(found["data"][f"{component}.yaml"]), kind, where=guide)
