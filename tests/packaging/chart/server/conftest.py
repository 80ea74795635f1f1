"""A real API server for the chart: no node is needed for it. The chart's pods on a node: e2e/outside."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from e2e.kubernetes.api import Api, Manifest, names, namespace
from e2e.kubernetes.controlplane import ControlPlane, control_plane
from tests.packaging.chart.conftest import KUBERNETES, built, call
from tests.packaging.conftest import ROOT

SPACE = "ub-system"


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    etcd, _ = built("e2e/kubernetes/build", "etcd", "kube-apiserver")
    with control_plane(tmp_path_factory.mktemp("plane"), etcd.parent) as plane:
        yield plane


@pytest.fixture(scope="session")
def api(plane: ControlPlane) -> Api:
    """A cluster with a namespace for the chart, and the definitions of the custom resources that the chart may make."""
    api = plane.api
    made = call(sys.executable, ROOT / "packaging" / "kubernetes_schemas.py", KUBERNETES)
    assert made.returncode == 0, made.stderr
    for file in sorted(Path(made.stdout.strip(), "definitions").glob("*.json")):
        definition = json.loads(file.read_text())
        api.create(definition)
        api.wait(definition, is_established, f"{file.stem} is served")
    api.create(namespace(SPACE, enforce="privileged"))
    return api


def is_established(definition: Manifest) -> bool:
    conditions = definition.get("status", {}).get("conditions")
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or ())


@contextlib.contextmanager
def present(api: Api, manifests: Iterable[Manifest]) -> Iterator[None]:
    """Have objects in the cluster for a while; the server may not warn of them."""
    with contextlib.ExitStack() as kept:
        for manifest in manifests:
            kept.callback(api.delete, manifest)
            assert api.apply(manifest).warnings == (), names([manifest])
        yield
