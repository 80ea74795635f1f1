"""What Prometheus and Grafana are told: metrics that exist, at ports that are open."""

import json
import re

import pytest
import yaml

from docs import reference
from tests.packaging.chart.conftest import EVERYTHING, Render, container, of_kind
from tests.packaging.conftest import ROOT

pytestmark = pytest.mark.chart


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
        assert yaml.safe_load(text)["metrics_address"] == f":{port}"
        assert container(manifests, name)["ports"][0]["containerPort"] == port
        if component != "csi":  # its probes go through the sidecar
            assert container(manifests, name)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_without_a_metrics_port_there_are_no_probes_either(render: Render) -> None:
    manifests = render(
        "nri.metricsPort=0", "agent.metricsPort=0", "csi.metricsPort=0", "monitoring.serviceMonitor=true"
    )
    assert not of_kind(manifests, "ServiceMonitor")
    assert "livenessProbe" not in container(manifests, "nri-qos")
