"""A record that cannot be read says nothing about its pod: whoever finds one looks for the pod first."""

import errno
from pathlib import Path
from typing import Any

import pytest

from cni_ub import reconcile
from cni_ub.reconcile import Condition
from tests.cni_ub.machine import Machine, ip

pytestmark = pytest.mark.kernel

WAYS = [{"netdev": "auto"}, {"netdev": "none"}]


@pytest.fixture(params=WAYS, ids=["with its netdev", "without a netdev"])
def conf(request: pytest.FixtureRequest, machine: Machine, pod: str) -> dict[str, object]:
    """The configuration with which a living pod got its device; its record is torn now."""
    conf = machine.conf(**request.param)
    if request.param["netdev"] == "none":
        conf["mode"] = "chained"
        conf["prevResult"] = {"cniVersion": "1.1.0"}
    assert machine.call("ADD", conf, pod=pod).code == 0
    tear(machine)
    return conf


def tear(machine: Machine, *, copy: bool = True) -> None:
    """Empty the record of the only attachment, and the copy of it."""
    ledger = machine.host.ledger
    for folder in (ledger.folder, ledger.copies) if copy else (ledger.folder,):
        (record,) = folder.iterdir()
        record.write_text("")


def test_a_record_that_is_damaged_is_read_from_its_copy(machine: Machine, pod: str) -> None:
    ip("link property add dev ipourma1 altname enp7")
    machine.provider.set_service_level("udma2", 7, 3)
    before = whole(machine)
    qos = {"minMbps": 80, "maxMbps": 800, "serviceLevel": 5, "priority": 3}
    assert machine.call("ADD", machine.conf(mtu=1400, qos=qos, ipam={"type": "obedient"}), pod=pod).code == 0
    tear(machine, copy=False)
    assert "c1" in machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").error[1]
    assert [found.condition for found in reconcile.repair(machine.host)] == [Condition.HEALTHY]
    ip("-n pod-1 link set net1 address 02:00:00:00:00:77")
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0
    assert whole(machine) == before
    assert machine.ipam.calls == ["ADD", "DEL"]
    assert list(machine.host.ledger.copies.iterdir()) == []


def test_a_copy_that_cannot_be_written_is_none_rather_than_an_old_one(machine: Machine, pod: str) -> None:
    copies = machine.host.ledger.copies
    copies.mkdir(parents=True)
    (copies / "urma_1@c1@net1.json").mkdir()
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    assert machine.call("DEL", machine.conf(), pod=pod).code == 0


def whole(machine: Machine) -> tuple[Any, ...]:
    members = ("bonding_dev_1", "udma2", "udma3")
    levels = [machine.provider.service_levels(member) for member in members]
    return machine.state(), levels, machine.provider.bandwidth("urma_1")


def test_the_device_of_a_living_pod_is_not_given_to_another(
    machine: Machine, pod: str, conf: dict[str, object]
) -> None:
    during = machine.state()
    code, message = machine.call("ADD", conf, pod=machine.new_pod("pod-2"), container="c2").error
    assert (code, "c1" in message) == (101, True)
    assert machine.state() == during
    assert machine.members_in(pod) == ("bonding_dev_1", "udma2", "udma3")


def test_repair_says_so_and_keeps_it(machine: Machine, pod: str, conf: dict[str, object]) -> None:
    during = machine.state()
    (found,) = reconcile.repair(machine.host)
    assert (found.condition, found.problems) == (Condition.UNCLEAR, ())
    assert machine.state() == during
    assert machine.members_in(pod) == ("bonding_dev_1", "udma2", "udma3")


@pytest.mark.parametrize("is_named", [True, False])
def test_del_of_its_own_container_releases_it(
    machine: Machine, pod: str, conf: dict[str, object], is_named: bool
) -> None:
    assert machine.call("DEL", conf, pod=pod if is_named else "").code == 0
    assert machine.ledger == []
    assert machine.members_in(pod) == ()
    assert machine.names_in(pod) == {"lo"}
    assert [link.name for link in machine.state()[0]] == ["ipourma1", "ipourma2"]


def test_a_netdev_that_a_pod_still_has_is_enough(machine: Machine, pod: str) -> None:
    assert machine.call("ADD", machine.conf(), pod=pod).code == 0
    tear(machine)
    with Path(pod).open("rb") as netns:
        machine.provider.unexpose_all(machine.members_in(pod), netns.fileno())
    assert machine.call("ADD", machine.conf(), pod=machine.new_pod("pod-2"), container="c2").error[0] == 101
    assert [found.condition for found in reconcile.repair(machine.host)] == [Condition.UNCLEAR]


def test_who_cannot_look_frees_nothing(machine: Machine, pod: str, conf: dict[str, object]) -> None:
    machine.provider.fail("exposed", errno.EIO)
    assert machine.call("ADD", conf, pod=machine.new_pod("pod-2"), container="c2").code == 1
    assert [found.condition for found in reconcile.repair(machine.host)] == [Condition.UNCLEAR]
    assert len(machine.ledger) == 1


def test_a_del_that_fails_leaves_the_damage_known(machine: Machine, pod: str, conf: dict[str, object]) -> None:
    machine.provider.fail("unexpose", errno.EIO, count=1)
    assert machine.call("DEL", conf, pod=pod).code == 1
    assert machine.call("ADD", conf, pod=machine.new_pod("pod-2"), container="c2").error[0] == 101
    assert machine.call("DEL", conf, pod=pod).code == 0
    assert machine.members_in(pod) == ()


def test_the_device_of_a_dead_pod_is_free(machine: Machine, pod: str, conf: dict[str, object]) -> None:
    if "net1" in machine.names_in(pod):
        machine.bring_home("pod-1", "net1")
        ip("link set net1 name ipourma1")
    machine.kill_pod("pod-1")
    (found,) = reconcile.inspect(machine.host)
    assert found.condition is Condition.DAMAGED
    assert machine.call("ADD", conf, pod=machine.new_pod("pod-2"), container="c2").code == 0
    assert machine.ledger == ["urma_1@c2@net1.json"]
