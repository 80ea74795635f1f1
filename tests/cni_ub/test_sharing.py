"""isolation: shared. Several pods on one device, each with EIDs of its own; nobody's release touches another's."""

from pathlib import Path
from typing import Any

import pytest

from cni_ub import reconcile
from cni_ub.reconcile import Condition
from tests.cni_ub.machine import Answer, Machine

pytestmark = pytest.mark.kernel

PREVIOUS = {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}]}
MEMBERS = ("bonding_dev_1", "udma2", "udma3")
PLACES = 10  # EIDs of each entity of a fake device


def shared(machine: Machine, **keys: Any) -> dict[str, Any]:
    return machine.conf(isolation="shared", netdev="none", **keys)


def add(machine: Machine, number: int) -> Answer:
    pod = machine.new_pod(f"pod-{number}")
    return machine.call("ADD", shared(machine), pod=pod, container=f"c{number}")


def delete(machine: Machine, number: int) -> Answer:
    return machine.call("DEL", shared(machine), pod=f"/run/netns/pod-{number}", container=f"c{number}")


def eids(machine: Machine, number: int) -> set[str]:
    """The EIDs that a program in the pod can use."""
    with Path(f"/run/netns/pod-{number}").open("rb") as netns:
        return {str(slot.eid) for slot in machine.provider.visible(netns.fileno()) if slot.device in MEMBERS}


def test_each_pod_has_eids_of_its_own_and_gives_back_those(host: Machine) -> None:
    before = host.state()
    for number in (1, 2, 3):
        assert add(host, number).code == 0
    seen = {number: eids(host, number) for number in (1, 2, 3)}
    assert [len(seen[number]) for number in (1, 2, 3)] == [3, 2, 2]  # there is one of the bonding device
    assert len(set.union(*seen.values())) == 7
    assert [r.container for r in host.host.ledger.of_device("urma_1")] == ["c1", "c2", "c3"]
    assert delete(host, 2).code == 0
    assert (eids(host, 1), eids(host, 2), eids(host, 3)) == (seen[1], set(), seen[3])
    assert add(host, 4).code == 0
    assert eids(host, 4) == seen[2]
    for number in (4, 3, 1):
        assert delete(host, number).code == 0
    assert host.state() == before


def test_the_pod_after_the_last_place_is_told_who_has_them(host: Machine) -> None:
    for number in range(PLACES):
        assert add(host, number).code == 0
    assert host.call("STATUS", shared(host)).code == 0  # urma_2 is free
    during = host.state()
    code, message = add(host, PLACES).error
    assert (code, "urma_1 has no EID left" in message, "c0" in message, "c9" in message) == (11, True, True, True)
    assert host.state() == during
    assert delete(host, 5).code == 0
    assert host.call("ADD", shared(host), pod="/run/netns/pod-10", container="c10").code == 0


def test_who_wants_it_alone_waits_for_the_last_and_who_would_share_it_for_the_only_one(machine: Machine) -> None:
    assert add(machine, 1).code == 0
    pod = machine.new_pod("pod-2")
    alone = machine.conf(netdev="none", mode="chained", prevResult=PREVIOUS)
    code, message = machine.call("ADD", alone, pod=pod, container="c2").error
    assert (code, "isolation shared" in message) == (101, True)
    assert delete(machine, 1).code == 0
    assert machine.call("ADD", alone, pod=pod, container="c2").code == 0
    assert machine.call("ADD", shared(machine), pod="/run/netns/pod-1", container="c1").error[0] == 101


def test_a_pod_has_a_device_once(host: Machine) -> None:
    assert add(host, 1).code == 0
    again = host.call("ADD", shared(host), pod="/run/netns/pod-1", container="c1", ifname="net2")
    assert again.error[0] == 101


@pytest.mark.parametrize("qos", [{"maxMbps": 800}, {"minMbps": 8, "maxMbps": 8}, {"serviceLevel": 3}])
def test_what_is_of_the_whole_device_is_refused(host: Machine, qos: dict[str, int]) -> None:
    before = host.state()
    answer = host.call("ADD", shared(host, qos=qos), pod=host.new_pod("pod-1"))
    assert (answer.error[0], "shared" in answer.error[1]) == (7, True)
    assert host.state() == before


def test_the_netdev_is_the_first_ones_that_wants_it(host: Machine) -> None:
    before = host.state()
    assert add(host, 1).code == 0
    conf = host.conf(isolation="shared")
    assert host.call("ADD", conf, pod=host.new_pod("pod-2"), container="c2").code == 0
    code, message = host.call("ADD", conf, pod=host.new_pod("pod-3"), container="c3").error
    assert (code, "c2" in message) == (7, True)
    chained = {**conf, "prevResult": PREVIOUS}
    assert host.call("ADD", chained, pod="/run/netns/pod-3", container="c3").document == PREVIOUS
    for number in (3, 2, 1):
        assert delete(host, number).code == 0
    assert host.state() == before


def test_the_manager_has_it_back_with_the_last(machine: Machine) -> None:
    for number in (1, 2):
        assert add(machine, number).code == 0
    assert delete(machine, 1).code == 0
    assert machine.provider.holder("urma_1") is not None
    assert delete(machine, 2).code == 0
    assert machine.provider.holder("urma_1") is None


def test_a_dead_pod_among_living_ones_is_healed_and_no_other(machine: Machine) -> None:
    for number in (1, 2):
        assert add(machine, number).code == 0
    kept, given = eids(machine, 1), eids(machine, 2)
    machine.kill_pod("pod-2")
    assert add(machine, 3).code == 0
    assert (eids(machine, 1), eids(machine, 3)) == (kept, given)
    assert [r.container for r in machine.host.ledger.of_device("urma_1")] == ["c1", "c3"]
    (first, second) = reconcile.repair(machine.host)
    assert {first.condition, second.condition} == {Condition.HEALTHY}


def test_status_counts_places(machine: Machine) -> None:
    for number in (1, 2):
        conf = shared(machine, deviceID=f"urma_{number}")
        assert machine.call("ADD", conf, pod=machine.new_pod(f"pod-{number}"), container=f"c{number}").code == 0
    assert machine.call("STATUS", shared(machine)).code == 0
    assert machine.call("STATUS", machine.conf()).error[0] == 50
