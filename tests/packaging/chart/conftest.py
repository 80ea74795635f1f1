"""The Helm chart: rendered, and looked at as kubelet, the runtime and the sidecars see it.

Helm and kubeconform are installed with Go in pinned versions; the schemas are those of Kubernetes itself.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.conftest import ROOT

CHART = ROOT / "packaging" / "chart" / "ub-node"
KUBERNETES = "v1.34.1"
SNAPSHOTTER = "csi.snapshots=true"
EVERYTHING = (
    SNAPSHOTTER,
    "csi.snapshotClass=ub",
    "csi.volumeAttributesClasses[0].name=relaxed",
    "csi.volumeAttributesClasses[0].parameters.maxStaleness=30s",
    "networkAttachments[0].name=ub",
    "networkAttachments[0].config.isolation=shared",
    "monitoring.serviceMonitor=true",
    "monitoring.rules=true",
    "monitoring.dashboards=true",
    "csi.config.pools[0].name=fast",
    "csi.config.pools[0].path=/data/ub",
)
CONTROLLER = (
    SNAPSHOTTER,
    "csi.controller.enabled=true",
    "csi.controller.groupSnapshots=true",
    "csi.config.fencing=true",
    "csi.config.peers[0].node=a",
    "csi.config.peers[0].address=192.0.2.1",
    "csi.peerKeySecret=ub-peers",
)
Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Conforms = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def helm() -> str:
    return tool("helm")


def call(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def tool(name: str) -> str:
    done = call(ROOT / "e2e" / "install-go-tools", name)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def built(script: str, *names: str) -> list[Path]:
    """Return where a script of ours has built programs; it builds nothing now, and without them the test is skipped."""
    environ = {**os.environ, "UB_E2E_BUILT": "1"}
    done = subprocess.run([ROOT / script, *names], env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()]


@cache
def sidecar_source(sidecar: str, part: str = "") -> Path:
    """Return the folder of a sidecar's Go module in the release that the chart names; ``part``: of one beside it."""
    image = yaml.safe_load((CHART / "values.yaml").read_text())["csi"]["sidecars"][sidecar]
    version = image.rpartition(":")[2]
    module = f"github.com/kubernetes-csi/external-{sidecar}{part}/{version.partition('.')[0]}@{version}"
    got = call("go", "-C", "/", "mod", "download", "-json", module)
    assert got.returncode == 0, got.stdout + got.stderr
    return Path(json.loads(got.stdout)["Dir"])


def render_text(helm: str, *settings: str) -> str:
    sets = [argument for setting in settings for argument in ("--set", setting)]
    done = call(helm, "template", "ub", CHART, "--namespace", "ub-system", "--kube-version", KUBERNETES, *sets)
    done.check_returncode()
    return done.stdout


@pytest.fixture(scope="session")
def render(helm: str) -> Render:
    def render(*settings: str) -> list[Manifest]:
        return [document for document in yaml.safe_load_all(render_text(helm, *settings)) if document]

    return render


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Name of each DaemonSet and Deployment -> the spec of its pods."""
    sets = of_kind(manifests, "DaemonSet") | of_kind(manifests, "Deployment")
    return {name: manifest["spec"]["template"]["spec"] for name, manifest in sets.items()}


def containers(manifests: list[Manifest]) -> Iterator[Manifest]:
    for pod in pods(manifests).values():
        yield from [*pod.get("initContainers", ()), *pod["containers"]]


def container(manifests: list[Manifest], name: str) -> Manifest:
    [found] = [found for found in containers(manifests) if found["name"] == name]
    return found


def mounts(found: Manifest) -> dict[str, Manifest]:
    return {mount["mountPath"]: mount for mount in found["volumeMounts"]}


@pytest.fixture(scope="session")
def conforms() -> Conforms:
    kubeconform = tool("kubeconform")
    made = call(sys.executable, ROOT / "packaging" / "kubernetes_schemas.py", KUBERNETES)
    assert made.returncode == 0, made.stderr
    folder = made.stdout.strip()
    location = f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"

    def conforms(text: str) -> subprocess.CompletedProcess[str]:
        return call(kubeconform, "-strict", "-schema-location", location, stdin=text)

    return conforms
