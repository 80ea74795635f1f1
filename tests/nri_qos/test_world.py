"""The model: no CPU is handed out twice, whatever comes in which order and whoever restarts."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nri_qos import census, claims, cpulist, desired, reservations
from nri_qos.config import Config
from nri_qos.desired import Squeezed
from nri_qos.model import NUMA_KEY, OWN_KEY, Container, NumaPolicy, Placement, Pod, Resources, State
from nri_qos.world import World
from tests.nri_qos import nodes
from ubhost.errors import Busy, Exhausted

MACHINE = nodes.machine("0-5", "6-11", threads=2)


class Lives(RuleBasedStateMachine):
    """A runtime with pods, and a plugin that forgets everything but what it saved when it is killed."""

    @initialize()
    def start(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Container] = {}
        self.pinned: dict[str, frozenset[int]] = {}  # container -> CPUs that kubelet chose
        self.saved: dict[tuple[str, str], Placement] = {}
        self.made = 0
        self.online = MACHINE.online
        self.restart_plugin()

    @rule(qos=st.sampled_from(["HLS", "HLS", "LS", "BE"]), numa=st.sampled_from([None, *NumaPolicy]))
    def run_pod(self, qos: str, numa: NumaPolicy | None) -> None:
        self._run_pod({OWN_KEY: qos} | ({} if numa is None else {NUMA_KEY: numa.value}))

    def _run_pod(self, annotations: dict[str, str]) -> Pod:
        self.made += 1
        pod = Pod(f"s{self.made}", "web", f"u{self.made}", "shop", {}, annotations, f"/kubepods/podu{self.made}")
        self.pods[pod.id] = pod
        with self.world.locked() as world:
            world.add_pod(pod)
        return pod

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), cpus=st.integers(1, 4), name=st.sampled_from("ab"))
    def create(self, data: st.DataObject, cpus: int, name: str) -> None:
        pod = data.draw(st.sampled_from(list(self.pods.values())))
        if any(c.name == name and c.pod_id == pod.id and c.is_alive for c in self.containers.values()):
            return  # kubelet ends a container before it starts its successor
        self._create(pod, name, cpus)

    @rule(data=st.data(), count=st.integers(1, 3))
    def create_pinned_by_kubelet(self, data: st.DataObject, count: int) -> None:
        """A container of a class that we leave alone, with CPUs that somebody else chose for it among the free ones."""
        node = self.world.node()
        free = sorted(node.pool - node.exclusive)
        if len(free) > count + 2:
            cpus = data.draw(st.sets(st.sampled_from(free), min_size=count, max_size=count))
            self._create(self._run_pod({}), "a", count, cpulist.render(cpus))

    def _create(self, pod: Pod, name: str, cpus: int, given: str = "") -> None:
        self.made += 1
        path = f"{pod.cgroup_parent}/c{self.made}"
        resources = Resources(cpus * 1024, cpus * 100_000, 100_000, given)
        asked = Container(f"c{self.made}", pod.id, name, resources=resources, cgroups_path=path)
        with self.world.locked() as world:
            try:
                decision = world.create(pod, asked)
            except Exhausted:
                return  # its NUMA policy demands what there is not
        if decision.cpus is not None:
            assert decision.cpus
            assert decision.cpus <= self.online
            assert world.members[asked.id].own_cpus or not decision.cpus & world.node().exclusive
            resources = replace(resources, cpus=cpulist.render(decision.cpus), mems=cpulist.render(decision.mems or ()))
        if given:
            self.pinned[asked.id] = cpulist.parse(given)
        self.containers[asked.id] = replace(asked, state=State.RUNNING, resources=resources)

    @precondition(lambda self: any(c.is_alive for c in self.containers.values()))
    @rule(data=st.data(), is_told=st.booleans())
    def stop(self, data: st.DataObject, is_told: bool) -> None:
        """A container ends; the plugin hears of it, or not."""
        gone = data.draw(st.sampled_from([c for c in self.containers.values() if c.is_alive]))
        del self.containers[gone.id]
        if is_told:
            with self.world.locked() as world:
                world.stopped(gone)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), is_told=st.booleans())
    def end_pod(self, data: st.DataObject, is_told: bool) -> None:
        """A pod ends; the plugin hears of it, or finds it missing when it is back."""
        pod = data.draw(st.sampled_from(list(self.pods.values())))
        del self.pods[pod.id]
        self.containers = {key: c for key, c in self.containers.items() if c.pod_id != pod.id}
        if not is_told:
            self.restart_runtime()
            return
        with self.world.locked() as world:
            world.stop_pod(pod.id)
            world.remove_pod(pod.id)

    @rule(counts=st.fixed_dictionaries({0: st.integers(0, 6), 1: st.integers(0, 6)}))
    def come_round(self, counts: dict[int, int]) -> None:
        """The loop has come round: it saved what is reserved, and holds offline work on so many CPUs."""
        self.saved = dict(self.world.placements)
        self.world.offline = desired.choose_offline(self.world.node(), counts, self.world.offline or frozenset())

    @rule()
    def restart_plugin(self) -> None:
        self.world = World(Config())
        self.world.machine = replace(MACHINE, online=self.online)
        self.world.placements = dict(self.saved)
        self.restart_runtime()

    @rule(cpus=st.sets(st.sampled_from(sorted(MACHINE.online)), max_size=3))
    def plug(self, cpus: set[int]) -> None:
        """CPUs go offline, and those that were come back. The runtime hears nothing of who moves."""
        self.online = MACHINE.online - cpus
        self.world.machine = replace(MACHINE, online=self.online)
        with self.world.locked() as world:
            world.rehome()

    @rule()
    def restart_runtime(self) -> None:
        with self.world.locked() as world:
            world.synchronize(self.pods.values(), self.containers.values())

    @invariant()
    def no_cpu_has_two_owners(self) -> None:
        owners: dict[int, str] = {}
        for container in self.containers.values():
            member = self.world.members[container.id]
            place = self.world.placements.get((self.pods[container.pod_id].key, container.name), Placement())
            assert place.exclusive == member.own_cpus
            for cpu in place.exclusive | self.pinned.get(container.id, frozenset()):
                assert owners.setdefault(cpu, container.id) == container.id

    @invariant()
    def what_is_reserved_is_for_one_pod_that_lives(self) -> None:
        """Its containers that run, stopped, or are just being restarted."""
        pods = {pod.key for pod in self.pods.values()}
        owners: dict[int, str] = {}
        for (pod, _), place in self.world.placements.items():
            assert pod in pods
            for cpu in place.exclusive:
                assert owners.setdefault(cpu, pod) == pod

    @invariant()
    def the_loop_lets_nobody_on_somebodys_own(self) -> None:
        node = self.world.node()
        people = census.take(self.world.sandboxes, self.world.members.values(), node)
        own = {
            tenant.folder: claims.own(tenant.member, house.sandbox.pod)
            for house in people.households
            for tenant in house.tenants
        }
        wanted = desired.settings(people, Squeezed(node.offline_room, {}), ())
        for (folder, file), setting in wanted.items():
            if file == "cpuset.cpus":
                cpus = cpulist.parse(setting.value or "")
                assert cpus
                assert cpus <= self.online
                assert not cpus & (node.exclusive - own[folder])

    @invariant()
    def what_the_loop_saved_last_outlives_a_restart(self) -> None:
        """Whoever has CPUs of its own has the same after a restart, if all that is reserved was saved."""
        again = World(Config())
        again.machine = self.world.machine
        again.placements = dict(self.world.placements)
        again.synchronize(self.pods.values(), self.containers.values())
        for key in self.containers:
            before = self.world.members[key].own_cpus
            if before and before <= self.online:
                assert again.members[key].own_cpus == before

    @invariant()
    def something_is_left_for_everybody_else(self) -> None:
        node = self.world.node()
        assert node.offline_room
        assert len(node.pool - node.exclusive) >= 1


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLives = Lives.TestCase


def test_who_cannot_have_the_model_in_time_is_told_so() -> None:
    world = World(Config())
    with world.locked(), pytest.raises(Busy, match="held for more than"), world.locked(timeout_s=0.01):
        pass


def test_reservations_read_back_as_they_were_saved(tmp_path: Path) -> None:
    placements = {
        ("u1", "app"): Placement(frozenset({1, 2}), frozenset({0}), 1 << 30, 2000),
        ("u2", "app"): Placement(cpus=500),
    }
    reservations.save(tmp_path / "x.json", placements)
    assert reservations.load(tmp_path / "x.json") == placements


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1, "reservations": [{"pod": 1}]}'])
def test_reservations_that_cannot_be_read_are_told_and_done_without(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """(B8, B9)"""
    (tmp_path / "x.json").write_text(text)
    assert reservations.load(tmp_path / "x.json") == {}
    assert "reservations of an earlier run are lost" in caplog.text


def test_reservations_that_cannot_be_saved_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """(B9)"""
    reservations.save(tmp_path / "missing/x.json", {})
    assert "reservations cannot be saved" in caplog.text


def test_a_sandbox_that_is_made_again_does_not_lose_what_its_successor_holds() -> None:
    world = World(Config())
    world.machine = MACHINE
    old, new = (Pod(i, "web", "uid", "shop", {}, {OWN_KEY: "HLS"}, "/kubepods/poduid") for i in ("s1", "s2"))
    resources = Resources(2048, 200_000, 100_000)
    world.add_pod(old)
    world.create(old, Container("c1", "s1", "app", resources=resources))
    world.add_pod(new)
    decision = world.create(new, Container("c2", "s2", "app", resources=resources))
    world.stop_pod("s1")
    world.remove_pod("s1")
    assert decision.cpus
    assert world.node().exclusive == decision.cpus


def _hls(uid: str) -> Pod:
    return Pod(f"s-{uid}", uid, uid, "shop", {}, {OWN_KEY: "HLS"}, f"/kubepods/pod{uid}")


def _running(uid: str, count: int, cpus: str = "") -> Container:
    resources = Resources(1024 * count, 100_000 * count, 100_000, cpus)
    return Container(f"c-{uid}", f"s-{uid}", "app", State.RUNNING, resources)


def test_where_a_container_was_moved_outlives_a_restart() -> None:
    """The runtime still tells the CPUs of its creation, one of which is another's by now."""
    machine = nodes.machine("0-5")
    world = World(Config())
    world.machine = machine
    world.create(_hls("a"), _running("a", 2))
    world.machine = replace(machine, online=machine.online - {0})
    assert [cpulist.render(member.own_cpus) for member in world.rehome()] == ["1-2"]
    world.machine = machine
    assert world.create(_hls("b"), _running("b", 3)).cpus == frozenset({0, 3, 4})

    again = World(Config())
    again.machine = machine
    again.placements = dict(world.placements)
    again.synchronize([_hls("a"), _hls("b")], [_running("a", 2, "0-1"), _running("b", 3, "0,3-4")])
    assert again.placements == world.placements
    assert again.members["c-a"].own_cpus == {1, 2}
    assert not again.counts["displaced",]


@pytest.mark.parametrize("qos", ["LS", "HLS", "BE"])
def test_who_happens_to_share_as_many_cpus_as_it_asks_for_does_not_own_them_after_a_restart(qos: str) -> None:
    world = World(Config())
    world.machine = nodes.machine("0-5")
    for uid in ("a", "b"):
        world.add_pod(_hls(uid))
        world.create(_hls(uid), _running(uid, 2))
    pod = Pod("s-c", "c", "c", "shop", {}, {OWN_KEY: qos}, "/kubepods/podc")
    world.add_pod(pod)
    shared = world.create(pod, _running("c", 2)).cpus
    assert shared == frozenset({4, 5})
    for placements in (dict(world.placements), {}):
        again = World(Config())
        again.machine, again.placements = world.machine, placements
        running = [_running("a", 2, "0-1"), _running("b", 2, "2-3"), _running("c", 2, "4-5")]
        again.synchronize([_hls("a"), _hls("b"), pod], running)
        assert again.node().shared == shared
        assert not again.members["c-c"].own_cpus


def test_of_two_claims_the_reserved_one_wins_and_the_other_is_placed_anew() -> None:
    world = World(Config())
    world.machine = nodes.machine("0-5")
    world.placements = {("a", "app"): Placement(frozenset({1, 2}), cpus=2000)}
    world.synchronize([_hls("a"), _hls("b")], [_running("b", 2, "0-1"), _running("a", 2, "0-1")])
    assert world.members["c-a"].own_cpus == {1, 2}
    own = world.members["c-b"].own_cpus
    assert len(own) == 2
    assert not own & {1, 2}
    assert world.counts["displaced",] == 1
    assert world.displaced == [world.members["c-b"]]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_reservations_of_the_same_cpus_the_one_that_the_runtime_confirms_counts(order: tuple[str, str]) -> None:
    """A file of reservations that somebody has put together by hand."""
    world = World(Config())
    world.machine = nodes.machine("0-5")
    world.placements = {(uid, "app"): Placement(frozenset({1, 2}), cpus=2000) for uid in order}
    running = {"a": _running("a", 2, "3-4"), "b": _running("b", 2, "1-2")}
    world.synchronize([_hls("a"), _hls("b")], [running[uid] for uid in order])
    assert world.members["c-b"].own_cpus == {1, 2}
    assert not world.members["c-a"].own_cpus & {1, 2}


@pytest.mark.parametrize("asks", [2, 3, 5])
def test_offline_work_that_begins_before_the_loop_comes_round_is_not_put_on_somebodys_own(asks: int) -> None:
    world = World(Config())
    world.machine = nodes.machine("0-7")
    world.offline = frozenset({1, 2})  # where the loop holds offline work
    world.add_pod(_hls("a"))
    own = world.create(_hls("a"), _running("a", asks)).cpus
    batch = Pod("s-b", "b", "b", "shop", {}, {OWN_KEY: "BE"}, "/kubepods/besteffort/podb")
    world.add_pod(batch)
    given = world.create(batch, Container("c-b", "s-b", "app")).cpus
    assert own
    assert given
    assert not given & own


def test_without_room_or_a_known_machine_the_weaker_claim_shares() -> None:
    for machine in (nodes.machine("0-3"), None):
        world = World(Config())
        world.machine = machine
        world.placements = {("a", "app"): Placement(frozenset({1, 2}), cpus=2000)}
        world.synchronize([_hls("a"), _hls("b")], [_running("b", 2, "0-1"), _running("a", 2, "0-1")])
        assert world.placements["a", "app"].exclusive == {1, 2}
        assert not world.placements["b", "app"].exclusive
        assert not world.members["c-b"].own_cpus


def test_where_nothing_is_reserved_the_runtimes_cpus_count() -> None:
    world = World(Config())
    world.machine = nodes.machine("0-5")
    world.synchronize([_hls("a")], [_running("a", 2, "3-4")])
    assert world.members["c-a"].own_cpus == {3, 4}
