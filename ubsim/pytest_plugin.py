"""Fixtures that give a test a simulated super-node: ``pytest -p ubsim.pytest_plugin``.

    @pytest.mark.scenario("my/two-nodes.yaml")       # or the YAML itself as a dict; default: one node, two devices
    def test_my_driver(supernode, ub_node):
        run_my_driver(env=ub_node.environ)

They need root. What the plugin gives is a stand-in: see docs/simulator.md for what it refuses and what it is not.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ubsim.handles import NodeHandle, SuperNodeHandle, running

DEFAULT: dict[str, Any] = {"name": "pytest", "nodes": [{"name": "node0"}]}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(path_or_dict): the simulated super-node of this test (ubsim)")


@pytest.fixture
def supernode(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SuperNodeHandle]:
    """A super-node of its own for the test, taken down after it.

    It lies outside of ``tmp_path``, whose names are often too long for sockets (107 bytes).
    """
    marker = request.node.get_closest_marker("scenario")
    asked = marker.args[0] if marker else DEFAULT
    if isinstance(asked, dict):
        path = tmp_path / "scenario.yaml"
        path.write_text(yaml.safe_dump(asked))
    else:
        path = Path(asked)
    with tempfile.TemporaryDirectory(prefix="ubsim-") as short, running(path, Path(short) / "sim") as found:
        yield found


@pytest.fixture
def ub_node(supernode: SuperNodeHandle) -> NodeHandle:
    """The first node of the super-node."""
    return next(iter(supernode.nodes.values()))
