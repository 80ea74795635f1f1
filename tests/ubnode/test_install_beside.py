"""The chart links ub-cni into a node from a container that sees three folders of it; the driver may be a unit there."""

from pathlib import Path

import pytest

from tests.ubnode.conftest import Bundle, install, listing, uninstall
from ubhost.kernel import mounts
from ubnode.install import cli
from ubnode.install.layout import RECORD

pytestmark = pytest.mark.kernel

SEEN = ("opt/ub-node", "opt/cni/bin", "var/lib/ub-node")  # packaging/chart/ub-node/templates/agent.yaml


@pytest.fixture
def inside(root: Path, tmp_path: Path) -> Path:
    """The root of the node as the init container sees it; what is not mounted cannot be written."""
    inside = tmp_path / "host"
    mounts_of_it = [(root / folder, inside / folder) for folder in SEEN]
    for there, here in mounts_of_it:
        there.mkdir(parents=True, exist_ok=True)  # hostPath: DirectoryOrCreate
        here.mkdir(parents=True)
    mounts.bind(inside, inside)
    mounts.mount("none", inside, "", flags=0x1000 | 0x20 | 1)  # MS_BIND, MS_REMOUNT, MS_RDONLY
    for there, here in mounts_of_it:
        mounts.bind(there, here)
    return inside


def link_in(inside: Path, bundle: Path) -> None:
    assert cli.install(["cni", "--beside", "--node-root", str(inside), "--from", str(bundle)]) == 0


def test_a_bare_node_gets_the_plugin_and_follows_the_chart(root: Path, inside: Path, bundle: Bundle) -> None:
    for version in ("1.0.0", "1.1.0"):
        link_in(inside, bundle(version))
        assert str((root / "opt/ub-node/current").readlink()) == version
    assert str((root / "opt/cni/bin/ub-cni").readlink()) == "/opt/ub-node/current/ub-cni"


def test_a_node_with_an_installation_of_its_own_keeps_its_release(root: Path, inside: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "csi")
    before = listing(root)
    link_in(inside, bundle("1.1.0"))
    now = listing(root)
    assert now.keys() - before.keys() == {"opt/cni/bin/ub-cni"}
    assert {path for path in before if before[path] != now[path]} == {RECORD[1:]}
    uninstall(root, "cni")  # as the chart's cleanup does
    assert listing(root) == before
