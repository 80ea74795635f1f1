"""One node for each file of cases, which every test finds free.

The cases are those that reference/cni.md section 4 lists: what goes wrong with others. The executable runs on a
simulated node, and the agent does the work; in test_alone.py some of them run where the executable does it itself.
"""

from collections.abc import Iterator

import pytest

from tests.cni_ub.node import SimulatedNode
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def with_agent() -> bool:
    """A file whose cases run without the agent overrides this."""
    return True


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory, *, with_agent: bool) -> Iterator[SimulatedNode]:
    node = SimulatedNode.up(tmp_path_factory.mktemp("node"), 4)
    if with_agent:
        node.start_agent()
    yield node
    node.down()


@pytest.fixture
def node(shared_node: SimulatedNode) -> Iterator[SimulatedNode]:
    """A node whose devices are all free; whatever a test did, the next one finds them so again."""
    before = shared_node.state()
    yield shared_node
    shared_node.obey_no_more()
    for pod in list(shared_node.pods):
        shared_node.kill_pod(pod)
    shared_node.repair()
    shared_node.obey_no_more()
    wait_for(lambda: shared_node.state() == before)


@pytest.fixture
def pod(node: SimulatedNode) -> str:
    return node.new_pod("pod-1")
