"""Pods that share a device, and the record of one of them is damaged: it may live, and nobody's release touches it.

On a host of either kind: one that shows its devices to every namespace, and one that does not.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from cni_ub import reconcile
from cni_ub.reconcile import Condition
from tests.cni_ub.machine import Machine
from tests.cni_ub.test_sharing import PREVIOUS, add, delete, eids, shared
from ubhost.provider import Kind, Sharing
from ubsim.fakes import FakeProvider, fake_devices

pytestmark = pytest.mark.kernel

ALONE = {"isolation": "exclusive", "netdev": "none", "mode": "chained", "prevResult": PREVIOUS}
VALID = "cni.dev/valid-attachments"


def tear(machine: Machine, *numbers: int) -> None:
    """Damage the records of these pods, and the copies of them."""
    ledger = machine.host.ledger
    for number in numbers:
        for folder in (ledger.folder, ledger.copies):
            (folder / f"urma_1@c{number}@net1.json").write_text('{"version": 1, "dev')


def delete_unnamed(machine: Machine, number: int) -> int:
    """DEL as a runtime calls it that closed the namespace before."""
    return machine.call("DEL", shared(machine), pod="", container=f"c{number}").code


def held(machine: Machine) -> list[str]:
    return [record.container for record in machine.host.ledger.of_device("urma_1")]


def collect(machine: Machine, *living: int) -> int:
    valid = [{"containerID": f"c{number}", "ifname": "net1"} for number in living]
    return machine.call("GC", shared(machine, **{VALID: valid}), pod="").code


@pytest.mark.parametrize("isolation", ["shared", "exclusive"])
def test_nothing_of_a_living_pod_goes_to_another(host: Machine, isolation: str) -> None:
    for number in (1, 2):
        assert add(host, number).code == 0
    tear(host, 2)
    before = eids(host, 1), eids(host, 2), held(host)
    conf = shared(host) if isolation == "shared" else host.conf(**ALONE)
    for _ in range(2):
        code, message = host.call("ADD", conf, pod=host.new_pod(f"pod-{len(host.pods) + 1}"), container="c3").error
        assert (code, "c2" in message, "DEL" in message, "--repair" in message) == (101, True, True, True)
    conditions = {found.record.container: found.condition for found in reconcile.repair(host.host)}
    assert conditions == {"c1": Condition.HEALTHY, "c2": Condition.UNCLEAR}
    assert collect(host, 1) == 0  # of a network that c2 may not be of
    assert (eids(host, 1), eids(host, 2), held(host)) == before


@pytest.mark.parametrize("is_named", [True, False])
def test_its_del_gives_back_its_own_eids_and_nothing_else(host: Machine, is_named: bool) -> None:
    before = host.state()
    for number in (1, 2):
        assert add(host, number).code == 0
    kept, shown = eids(host, 1), host.members_in("/run/netns/pod-1")
    tear(host, 2)
    assert (delete(host, 2).code if is_named else delete_unnamed(host, 2)) == 0
    assert (eids(host, 1), eids(host, 2), held(host)) == (kept, set(), ["c1"])
    assert host.members_in("/run/netns/pod-1") == shown
    if host.provider.sharing() is Sharing.SHARED:  # every namespace has the devices, and they are not ours to take
        assert host.members_in("/run/netns/pod-2") == shown
    assert add(host, 3).code == 0
    for number in (3, 1):
        assert delete(host, number).code == 0
    assert host.state() == before


@pytest.mark.parametrize("freed_by", ["ADD", "repair", "GC", "DEL"])
def test_once_its_pod_is_gone_it_is_free(host: Machine, freed_by: str) -> None:
    for number in (1, 2):
        assert add(host, number).code == 0
    kept = eids(host, 1)
    tear(host, 2)
    host.kill_pod("pod-2")
    if freed_by == "ADD":
        assert add(host, 3).code == 0
        assert held(host) == ["c1", "c3"]
        assert delete(host, 3).code == 0
    elif freed_by == "repair":
        assert [found.problems for found in reconcile.repair(host.host)] == [(), ()]
    else:
        assert (collect(host, 1) if freed_by == "GC" else delete_unnamed(host, 2)) == 0
    assert (eids(host, 1), held(host)) == (kept, ["c1"])


def test_after_a_reboot_no_damaged_record_holds_anything(host: Machine) -> None:
    """Nor does one that is whole hide a pod because a namespace of this boot has the number of one of the last."""
    for number in (1, 2, 3):
        assert add(host, number).code == 0
    ledger = host.host.ledger
    (first, *_) = ledger.of_device("urma_1")
    stranger = Path(host.new_pod("another")).stat().st_ino
    for pod in ("pod-1", "pod-2", "pod-3"):
        host.kill_pod(pod)
    tear(host, 2, 3)
    for copy in ledger.copies.iterdir():
        copy.unlink()
    ledger.write(replace(first, boot_id="of another boot", netns_inode=stranger))
    assert [found.problems for found in reconcile.repair(host.host)] == [(), (), ()]
    assert held(host) == []


def test_of_several_damaged_ones_the_dead_are_released_and_the_living_stay(host: Machine) -> None:
    for number in (1, 2, 3):
        assert add(host, number).code == 0
    kept = eids(host, 1), eids(host, 3)
    tear(host, 2, 3)
    host.kill_pod("pod-2")
    assert delete_unnamed(host, 2) == 0
    assert (eids(host, 1), eids(host, 3), held(host)) == (*kept, ["c1", "c3"])
    assert delete(host, 3).code == 0
    assert (eids(host, 1), eids(host, 3), held(host)) == (kept[0], set(), ["c1"])


def test_all_of_them_damaged_and_dead_are_free(host: Machine) -> None:
    for number in (1, 2):
        assert add(host, number).code == 0
    tear(host, 1, 2)
    for pod in ("pod-1", "pod-2"):
        host.kill_pod(pod)
    assert [found.condition for found in reconcile.repair(host.host)] == [Condition.DAMAGED, Condition.DAMAGED]
    assert held(host) == []


@pytest.mark.parametrize("order", [(1, 2, 3), (2, 1, 3), (1, 3, 2), (3, 1, 2)])
def test_the_manager_has_the_device_back_with_the_last_damaged_or_not(machine: Machine, order: tuple[int, ...]) -> None:
    for number in (1, 2, 3):
        assert add(machine, number).code == 0
    tear(machine, 2)
    for number in order:
        assert machine.provider.holder("urma_1") is not None
        assert delete(machine, number).code == 0
    assert machine.provider.holder("urma_1") is None


@pytest.fixture
def traceless(machine: Machine) -> Machine:
    """An RDMA server that shows its devices to every namespace: a pod that has one looks like one that has none."""
    machine.provider = FakeProvider(replace(device, eids=(), netdev=None) for device in fake_devices(2))
    machine.provider.set_sharing(Sharing.SHARED)
    machine.provider.kind = Kind.RDMA
    return machine


def test_who_leaves_no_trace_is_taken_to_be_alive_while_any_pod_is(traceless: Machine) -> None:
    for number in (1, 2):
        assert add(traceless, number).code == 0
    tear(traceless, 2)
    assert add(traceless, 3).error[0] == 101
    assert [found.condition for found in reconcile.repair(traceless.host)] == [Condition.HEALTHY, Condition.UNCLEAR]
    assert held(traceless) == ["c1", "c2"]
    assert delete_unnamed(traceless, 2) == 0
    assert held(traceless) == ["c1"]


def test_who_leaves_no_trace_is_released_when_somebody_says_that_it_is_gone(traceless: Machine) -> None:
    for number in (1, 2):
        assert add(traceless, number).code == 0
    tear(traceless, 2)
    traceless.kill_pod("pod-2")
    traceless.new_pod("unrelated")
    for said in ("", "c1"):  # a record that is whole knows better
        assert not any(found.is_tried for found in reconcile.repair(traceless.host, said))
    assert held(traceless) == ["c1", "c2"]
    assert [found.is_tried for found in reconcile.repair(traceless.host, "c2")] == [False, True]
    assert held(traceless) == ["c1"]


def test_who_leaves_no_trace_is_free_when_no_other_pod_lives(traceless: Machine) -> None:
    for number in (1, 2):
        assert add(traceless, number).code == 0
    tear(traceless, 2)
    traceless.kill_pod("pod-2")
    assert [found.problems for found in reconcile.repair(traceless.host)] == [(), ()]
    assert held(traceless) == ["c1"]
