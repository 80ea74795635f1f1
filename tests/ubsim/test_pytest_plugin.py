"""The fixtures that other teams use, in a pytest of its own as they would start it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ubsim.traces import traces

pytestmark = pytest.mark.kernel

THEIRS = """
import os
import pytest

@pytest.mark.scenario({"name": "theirs", "nodes": [{"name": "node", "count": 2}]})
def test_two_nodes(supernode, ub_node):
    assert list(supernode.nodes) == ["node0", "node1"]
    assert ub_node is supernode["node0"] or ub_node == supernode["node0"]
    assert os.path.exists(ub_node.environ["UB_ROOT"] + "/sys/class/ubcore/udma2")
    supernode.happen("port", port="node0/0/0/0", state="DOWN")
    assert [d["healthy"] for d in ub_node.status()["devices"]] == [False, False]

def test_one_node_by_default(ub_node):
    ub_node.fail("expose", "EPERM")
    assert ub_node.status()["faults"][0]["operation"] == "expose"

def test_that_fails(ub_node):
    assert False
"""


def test_the_fixtures_work_in_a_foreign_project_and_clean_up_after_failures(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    before = traces(tmp_path / "none")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "ubsim.pytest_plugin", "--strict-markers", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert traces(tmp_path / "none") == before
