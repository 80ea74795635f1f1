"""Which pods have which devices, and what follows from that."""

import json
import logging

import pytest

from cni_ub.agent.glance import Glance
from cni_ub.agent.holders import GRACE_S, Holders, PodDevice
from cni_ub.agent.inventory import Inventory
from cni_ub.agent.podresources import PodResources
from tests.cni_ub.agent.host import Host
from tests.cni_ub.agent.test_deviceplugin import NAME, serving
from ubhost.errors import Busy, NotFound
from ubhost.ledger import Ledger
from ubhost.model import Eid
from ubhost.record import Record
from ubhost.ubse.bodies import UrmaPaths
from ubsim.kubelet import Kubelet, Rejected

ODD = UrmaPaths("bonding_dev_1", ("udma2", "udma3"), Eid.from_words(1, 0, 2, 3))  # not as its number says


class World:
    """A host whose device ``urma_77`` tells only when allocated what it is made of."""

    def __init__(self, host: Host, kubelet: Kubelet) -> None:
        host.provider.listed[:] = ["urma_2", "urma_77"]
        host.provider.made_of["urma_77"] = ODD
        self.now = 0.0
        self.host, self.kubelet = host, kubelet
        self.ledger = Ledger(host.roots, boot_id="boot")
        self.inventory = Inventory(lambda: host.provider, host.roots, self.ledger, Glance(host.roots))
        self.inventory.look()
        kubelet.start()
        self.holders = self.restarted()

    def restarted(self) -> Holders:
        asked = PodResources(self.host.roots, [NAME])
        return Holders(
            asked, self.inventory, lambda: self.host.provider, self.ledger, self.host.roots, lambda: self.now
        )

    def members(self, device: str) -> tuple[str, ...]:
        self.inventory.look()
        return self.inventory.snapshot.by_id[device].device.members


@pytest.fixture
def world(host: Host, kubelet: Kubelet) -> World:
    return World(host, kubelet)


def test_kubelets_account_is_kept_for_the_metrics(world: World) -> None:
    world.kubelet.pods = {"default/db": {"main": {NAME: ["urma_2"], "other.org/x": ["y"]}}}
    world.holders.look()
    assert world.holders.pods == (PodDevice("urma_2", NAME, "default", "db", "main"),)


def test_pods_on_a_device_that_became_unhealthy_are_named_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.kubelet.pods = {"default/db": {"main": {NAME: ["urma_2"]}, "side": {}}}
    world.host.set_port("udma4", 1)
    world.inventory.look()
    with caplog.at_level(logging.WARNING):
        world.holders.look()
        world.holders.look()
    named = [record for record in caplog.records if record.message == "a pod is on an unhealthy device"]
    assert [vars(record)["pod"] for record in named] == ["default/db"]
    assert vars(named[0])["why"] == "port 0 of udma4 is DOWN"


def test_a_device_is_reserved_until_its_pod_is_gone(world: World) -> None:
    assert world.members("urma_77") == ()
    world.holders.reserve(["urma_77"])
    assert world.members("urma_77") == ("bonding_dev_1", "udma2", "udma3")
    world.now = GRACE_S - 1
    world.holders.look()
    assert world.members("urma_77")  # the pod may still be starting
    world.kubelet.pods = {"default/db": {"main": {NAME: ["urma_77"]}}}
    world.now = 10 * GRACE_S
    world.holders.look()
    assert world.members("urma_77")
    world.kubelet.pods = {}
    world.holders.look()
    assert world.members("urma_77") == ()


def test_a_device_that_an_attachment_still_has_is_not_freed(world: World) -> None:
    world.holders.reserve(["urma_77"])
    record = Record("urma_77", "c1", "net1")
    world.ledger.write(record)
    world.now = 10 * GRACE_S
    world.holders.look()
    assert world.members("urma_77")
    world.ledger.remove(record)
    world.holders.look()
    assert world.members("urma_77") == ()


def test_an_agent_that_was_killed_frees_what_it_had_reserved(world: World) -> None:
    world.holders.reserve(["urma_77"])
    world.now = 10 * GRACE_S
    world.restarted().look()
    assert world.members("urma_77") == ()


def test_what_somebody_else_has_is_refused_and_never_freed(world: World) -> None:
    world.host.provider.allocate("urma_77")
    with pytest.raises(Busy, match="urma_77 is allocated already"):
        world.holders.reserve(["urma_77"])
    world.now = 10 * GRACE_S
    world.holders.look()
    assert world.members("urma_77")  # still allocated


def test_a_device_may_be_reserved_again_for_a_pod_that_follows_at_once(world: World) -> None:
    world.holders.reserve(["urma_77"])
    world.now = 10 * GRACE_S
    world.holders.reserve(["urma_77"])
    world.holders.look()
    assert world.members("urma_77")


def test_while_kubelet_cannot_be_asked_nothing_is_freed(world: World) -> None:
    world.holders.reserve(["urma_77"])
    world.now = 10 * GRACE_S
    world.kubelet.stop()
    with pytest.raises(NotFound, match="kubelet is not running"):
        world.holders.look()
    assert world.members("urma_77")


def test_a_damaged_record_is_no_reason_to_stop(world: World) -> None:
    world.holders.reserve(["urma_77"])
    (world.host.roots.run / "reserved.json").write_text("{")
    world.holders.look()
    world.holders.reserve(["urma_2"])
    assert list(json.loads((world.host.roots.run / "reserved.json").read_text())["devices"]) == ["urma_2"]


def test_a_container_with_such_a_device_gets_its_device_nodes(host: Host, kubelet: Kubelet) -> None:
    host.provider.listed[:] = ["urma_77"]
    host.provider.made_of["urma_77"] = ODD
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=1)
        answer = kubelet.admit("default/web", {"main": {NAME: 1}})["main"]
        assert answer.envs["UB_NET_DEVICE_URMA"] == "bonding_dev_1,udma2,udma3"
        cdi = json.loads((host.root / "var/run/cdi/unifiedbus.com-urma.json").read_text())
        assert [device["name"] for device in cdi["devices"]] == ["urma_77"]
        paths = [node["path"] for node in cdi["devices"][0]["containerEdits"]["deviceNodes"]]
        assert paths[0] == "/dev/uburma/bonding_dev_1"


def test_a_container_is_refused_what_somebody_else_allocated(host: Host, kubelet: Kubelet) -> None:
    host.provider.listed[:] = ["urma_77"]
    kubelet.start()
    with serving(host):
        kubelet.wait_for(NAME, healthy=1)
        host.provider.taken.add("urma_77")
        with pytest.raises(Rejected, match="code = UNAVAILABLE desc = urma_77 is allocated already"):
            kubelet.admit("default/web", {"main": {NAME: 1}})
