"""Online work that waits is not left waiting until the period is over."""

from pathlib import Path

import pytest

from nri_qos import messages, paths
from nri_qos.census import take
from nri_qos.config import Config
from nri_qos.files import Hierarchy
from nri_qos.lookout import MOST, Lookout
from nri_qos.world import World
from tests.nri_qos import nodes
from tests.nri_qos.cgroups import Tree
from tests.nri_qos.conftest import Plugin, container, pod, start_pod, until
from ubsim.runtime import Runtime


def test_a_step_of_online_load_ends_the_period(runtime: Runtime, plugin: Plugin, tree: Tree) -> None:
    plugin.start(config={"period": 3, "floor": 0.1})
    runtime.register()
    web, _ = start_pod(runtime, tree, "web", "LS", 1)
    batch, _ = start_pod(runtime, tree, "batch", "BE")
    plugin.wait_for("offline work squeezed")  # the first limit
    before = tree.read(batch, "cpu.max")

    def squeezed() -> bool:
        tree.spend(web, 1000, waited=500_000)  # between two of our looks: it waits all the time
        return any(line["alarm"] for line in plugin.lines("offline work squeezed"))

    until(squeezed)
    line = next(line for line in plugin.lines("offline work squeezed") if line["alarm"])
    assert line["because"] == "online work waits"
    assert line["pressure"] > 0.2
    until(lambda: tree.read(batch, "cpu.max") != before)


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    made = World(Config())
    made.machine = nodes.machine("0-15")
    return made


def test_only_the_largest_online_pods_that_share_cpus_are_looked_at(world: World, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    folders = {}
    for number in range(MOST + 3):
        for qos in ("LS", "BE", "HLS", None):
            made = pod(f"{qos}-{number}", qos, guaranteed=qos == "HLS")
            folders[f"{qos}-{number}"] = tree.pod(made)
            asked = messages.container(container(made, cpus=1 if qos == "HLS" else 0.1 * (number + 1)))
            with world.locked():
                world.add_pod(messages.pod(made))
                world.create(None, asked)
                world.started(asked)
    people = take(world.sandboxes, world.members.values(), world.node())
    lookout = Lookout(Hierarchy(tree.root))
    assert lookout.waiting(people, 1.0) == 0.0  # the first look shows no rate
    for name in ("LS-0", "LS-2", "BE-9", "None-9", "HLS-0"):
        tree.spend(folders[name], 0, waited=900_000)
    assert lookout.waiting(people, 2.0) == 0.0
    tree.spend(folders["LS-3"], 0, waited=250_000)
    assert lookout.waiting(people, 3.0) == pytest.approx(0.25)
    tree.stat(folders["LS-4"], 0, throttles=9, throttled=800_000, waited=900_000)  # for its own limit, but for a tenth
    assert lookout.waiting(people, 4.0) == pytest.approx(0.1)
    lookout.rest()
    tree.spend(folders["LS-3"], 0, waited=250_000)
    assert lookout.waiting(people, 5.0) == 0.0


def test_a_pod_that_has_gone_waits_for_nothing(world: World, tmp_path: Path) -> None:
    made = pod("web", "LS")
    with world.locked():
        world.add_pod(messages.pod(made))
        world.create(None, messages.container(container(made, cpus=1)))
    people = take(world.sandboxes, world.members.values(), world.node())
    assert paths.of_pod(made.linux.cgroup_parent)
    assert Lookout(Hierarchy(tmp_path)).waiting(people, 1.0) == 0.0
