"""Containers that nobody announced, told apart from those that are just being created or have just ended."""

from pathlib import Path

import pytest

from nri_qos import messages, paths
from nri_qos.config import Config
from nri_qos.files import Hierarchy
from nri_qos.loop import Loop
from nri_qos.sampler import FEW
from nri_qos.world import World
from nri_qos.writer import Writer
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import container, pod


class Node:
    """A model, a tree of cgroups, and the loop between them, which goes round when it is told to."""

    def __init__(self, root: Path) -> None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        self.tree = Tree(root)
        self.world = World(Config())
        self.world.machine = nodes.machine("0-3")
        files = Files(self)
        self._loop = Loop(self.world, files, Writer(files, None), {})
        self._periods = 0
        self.creates: list[str] = []  # containers of the pod that are created while the loop lists its cgroups

    def go_round(self, periods: int = 1) -> None:
        for _ in range(periods):
            self._periods += 1
            self._loop.turn(float(self._periods))

    def run_pod(self, name: str = "batch") -> None:
        with self.world.locked():
            self.world.add_pod(messages.pod(pod(name, "BE")))
        self.tree.pod(pod(name, "BE"))

    def create(self, name: str, of: str = "batch") -> None:
        """The runtime asks first, and makes the cgroup then."""
        asked = container(pod(of, "BE"), name)
        with self.world.locked():
            self.world.create(None, messages.container(asked))
        self.tree.container(asked)

    def remove(self, name: str) -> None:
        gone = messages.container(container(pod("batch", "BE"), name))
        self.tree.remove(paths.of_container(gone.cgroups_path) or "")
        with self.world.locked():
            self.world.stopped(gone)
            self.world.removed(gone.id)

    @property
    def strangers(self) -> int:
        return self.world.counts["unknown_containers",]


class Files(Hierarchy):
    def __init__(self, node: Node) -> None:
        super().__init__(node.tree.root)
        self._node = node

    def children(self, cgroup: str) -> list[str]:
        creates, self._node.creates = self._node.creates, []
        for name in creates:
            self._node.create(name)
        return super().children(cgroup)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_container_that_is_created_while_the_loop_looks_is_nobody_unannounced(node: Node) -> None:
    node.run_pod()
    node.create("first")
    node.go_round()
    for name in ("second", "third"):
        node.creates = [name]
        node.create(f"{name}-beside")  # so that the loop looks
        node.go_round()
        assert not node.creates
    node.go_round(2)
    assert node.strangers == 0


def test_one_that_nobody_announced_counts_at_the_second_look_and_once(node: Node) -> None:
    node.run_pod()
    node.create("first")
    node.tree.container(container(pod("batch", "BE"), "hidden"))
    node.go_round()
    assert node.strangers == 0
    node.go_round(3)
    assert node.strangers == 1


def test_one_that_has_ended_is_nobody_unannounced_where_cgroups_are_listed_rarely(node: Node) -> None:
    for number in range(FEW + 1):
        node.run_pod(f"p{number}")
        node.create("app", f"p{number}")
    node.run_pod()
    node.create("first")
    node.create("second")
    node.go_round(2)
    node.remove("first")
    node.go_round(3)
    assert node.strangers == 0
