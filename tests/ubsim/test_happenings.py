"""What can happen to a super-node while it runs, and what its nodes then show: hot plug, flaps, lost EIDs, memory."""

import re
import subprocess
import time

import pytest

from tests.ubsim.node import SHARED, NewPod
from tests.waiting import wait_for
from ubhost.errors import Conflict, InvalidRequest, NotFound, UbError
from ubhost.kernel.rtnl import Rtnl
from ubhost.providers import choose
from ubhost.sysfs import read_host
from ubhost.ubse.client import Down, Ubse
from ubhost.uevents import Uevent, Uevents
from ubsim.handles import NodeHandle, SuperNodeHandle

pytestmark = pytest.mark.kernel
TWO = {"name": "two", "super_node_id": 7, "nodes": [{"name": "node", "count": 2}]}


def healthy(node: NodeHandle) -> dict[str, bool]:
    return {device.name: device.is_healthy for device in Ubse(node.roots.ubse_socket).urma_devices()}


def carrier(name: str) -> bool:
    shown = subprocess.run(["ip", "-o", "link", "show", name], capture_output=True, text=True, check=True).stdout
    return "LOWER_UP" in shown


def events_of(uevents: Uevents, seconds: float = 1.0) -> list[Uevent]:
    found: list[Uevent] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found += uevents.read().events
        time.sleep(0.02)
    return found


# Hot plug


def test_an_unplugged_device_is_gone_everywhere_even_from_the_pod_that_has_it(
    supernode: SuperNodeHandle, ub_node: NodeHandle, new_pod: NewPod
) -> None:
    provider = choose(ub_node.roots, "sim")
    pod, device = new_pod("pod"), provider.devices()[0]
    for member in device.members:
        provider.expose(member, pod)
    assert provider.exposed(pod) != ()
    with Uevents(ub_node.roots) as uevents:
        uevents.read()
        supernode.happen("unplug", node="node0", device="urma_1")
        told = {(e.action, e.name) for e in events_of(uevents)}
    assert {("remove", "bonding_dev_1"), ("remove", "udma2"), ("remove", "udma3")} <= told
    assert [d.id for d in provider.devices()] == ["urma_2"]
    assert provider.exposed(pod) == ()
    assert not (ub_node.root / "dev/uburma/udma2").exists()
    assert not (ub_node.root / "sys/devices/virtual/ubcore/udma2").exists()
    assert "udma2" not in {d.name for d in read_host(ub_node.roots).devices}
    with pytest.raises(NotFound):
        Ubse(ub_node.roots.ubse_socket).allocate("urma_1")
    with Rtnl() as links:
        assert links.link(device.netdev or "") is None


def test_a_plugged_device_is_as_good_as_one_from_the_start(
    supernode: SuperNodeHandle, ub_node: NodeHandle, new_pod: NewPod
) -> None:
    with Uevents(ub_node.roots) as uevents:
        uevents.read()
        supernode.happen("plug", node="node0", device="urma_3")
        told = {(e.action, e.subsystem, e.name) for e in events_of(uevents)}
    assert {("add", "ubcore", "bonding_dev_3"), ("add", "ubcore", "udma6"), ("add", "ub", "00009")} <= told
    provider = choose(ub_node.roots, "sim")
    new = provider.devices()[-1]
    assert (new.id, len(new.eids)) == ("urma_3", 21)
    pod = new_pod("pod")
    for member in new.members:
        provider.expose(member, pod)
    provider.move_eids(new.eids, pod)
    assert len(provider.visible(pod)) == 21
    with Rtnl() as links:
        assert new.netdev is not None
        link = links.link(new.netdev)
        assert link is not None
        assert links.addresses(link.index)[0].ip.packed == new.eids[0].eid.packed
    supernode.happen("unplug", node="node0", device="urma_3")
    supernode.happen("plug", node="node0", device="urma_3")
    assert choose(ub_node.roots, "sim").devices()[-1].id == "urma_3"


@pytest.mark.scenario(SHARED)
def test_in_shared_mode_a_plugged_device_appears_in_every_pod(
    supernode: SuperNodeHandle, ub_node: NodeHandle, new_pod: NewPod
) -> None:
    provider = choose(ub_node.roots, "sim")
    pod = new_pod("pod")
    provider.exposed(pod)
    supernode.happen("plug", node="node0", device="urma_3")
    assert "udma6" in provider.exposed(pod)


@pytest.mark.parametrize(
    ("do", "what"),
    [
        ("plug", {"node": "node0", "device": "urma_1"}),
        ("plug", {"node": "node0", "device": "eth0"}),
        ("plug", {"node": "node9", "device": "urma_3"}),
        ("unplug", {"node": "node0", "device": "urma_9"}),
        ("port", {"port": "node0/0/0/99", "state": "DOWN"}),
        ("port", {"port": "node0/0/0/0", "state": "SIDEWAYS"}),
        ("link", {"end": "node0/0/0/0", "up": False}),
        ("borrow", {"borrower": "node0", "lender": "node0", "size": "1GiB"}),
        ("return", {"borrower": "node0", "numa": 0}),
        ("explode", {}),
    ],
)
def test_what_cannot_happen_does_not_happen(
    supernode: SuperNodeHandle, ub_node: NodeHandle, do: str, what: dict[str, object]
) -> None:
    before = read_host(ub_node.roots)
    with pytest.raises(InvalidRequest):
        supernode.happen(do, **what)
    assert read_host(ub_node.roots) == before


# Ports and links


@pytest.mark.scenario(TWO)
def test_a_flapping_port_is_seen_at_both_ends_and_makes_the_device_unhealthy(supernode: SuperNodeHandle) -> None:
    first, second = supernode["node0"], supernode["node1"]
    name = choose(first.roots, "sim").devices()[0].netdev or ""
    wait_for(lambda: carrier(name))
    with Uevents(first.roots) as uevents:
        uevents.read()
        supernode.happen("port", port="node0/0/0/0", state="DOWN")
        events = {e.properties.get("UB_EVENT") for e in events_of(uevents) if e.name == "udma2"}
    assert events == {"PORT_DOWN"}
    assert healthy(first) == {"urma_1": False, "urma_2": False}
    assert healthy(second) == {"urma_1": False, "urma_2": False}
    for node in (first, second):
        host = read_host(node.roots)
        port = host.entities[0].ports[0]
        assert (port.linkup, port.neighbor) == (False, None)
        assert host.entities[0].direct_links == ()
        assert {d.name: d.ports[0].state for d in host.devices if d.name in ("udma2", "udma3")} == {
            "udma2": 1,
            "udma3": 4,
        }
    wait_for(lambda: not carrier(name))
    supernode.happen("port", port="node0/0/0/0", state="ACTIVE")
    assert healthy(first) == {"urma_1": True, "urma_2": True}
    wait_for(lambda: carrier(name))


@pytest.mark.scenario(TWO)
def test_a_pulled_cable_is_seen_in_the_topology_of_ubse(supernode: SuperNodeHandle) -> None:
    ubse = Ubse(supernode["node1"].roots.ubse_socket)
    before = ubse.cpu_links()
    supernode.happen("link", end="node0/0/1/0", up=False)
    assert len(ubse.cpu_links()) == len(before) - 1
    supernode.happen("link", end="node0/0/1/0", up=True)
    assert ubse.cpu_links() == before


@pytest.mark.scenario(TWO)
def test_a_labelled_link_limits_the_netdevs_behind_it(supernode: SuperNodeHandle) -> None:
    supernode.happen("link", end="node0/0/0/0", mbps=100)
    supernode.happen("link", end="node0/0/1/0", mbps=100)
    limits = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"tbf .* rate 200Mbit", limits)) == 6, limits
    supernode.happen("link", end="node0/0/0/0", mbps=0)
    supernode.happen("link", end="node0/0/1/0", mbps=0)
    assert "tbf" not in subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout


def test_a_broken_device_is_unhealthy_for_ubse_and_recovers(supernode: SuperNodeHandle, ub_node: NodeHandle) -> None:
    supernode.happen("health", node="node0", device="urma_2", healthy=False)
    assert healthy(ub_node) == {"urma_1": True, "urma_2": False}
    supernode.happen("health", node="node0", device="urma_2", healthy=True)
    assert healthy(ub_node) == {"urma_1": True, "urma_2": True}


# EIDs and UBSE


def test_a_lost_eid_is_gone_from_the_pod_that_had_it_and_comes_back_to_the_host(
    ub_node: NodeHandle, new_pod: NewPod
) -> None:
    provider = choose(ub_node.roots, "sim")
    pod, device = new_pod("pod"), provider.devices()[0]
    for member in device.members:
        provider.expose(member, pod)
    provider.move_eids(device.eids, pod)
    with Uevents(ub_node.roots) as uevents:
        uevents.read()
        ub_node.lose_eid("udma2", 0)
        assert [(e.action, e.properties["UB_EVENT"]) for e in events_of(uevents)] == [("change", "EID_CHANGE")]
    assert len(provider.visible(pod)) == 20
    ub_node.restore_eid("udma2", 0)
    assert len(provider.visible(pod)) == 20
    assert [slot.device for slot in provider.devices()[0].eids] == ["udma2"]


def test_ubse_that_is_down_is_absent_and_remembers_who_holds_what(ub_node: NodeHandle) -> None:
    ubse = Ubse(ub_node.roots.ubse_socket)
    ubse.allocate("urma_1")
    ub_node.stop_ubse()
    with pytest.raises(Down):
        ubse.urma_devices()
    ub_node.start_ubse()
    with pytest.raises(UbError, match="1006"):
        ubse.allocate("urma_1")
    ub_node.start_ubse()


# Memory


@pytest.mark.scenario(TWO)
def test_borrowed_memory_appears_as_a_numa_node_and_goes_again(supernode: SuperNodeHandle) -> None:
    borrower, lender = supernode["node0"], supernode["node1"]
    before = (read_host(borrower.roots), read_host(lender.roots))
    with Uevents(borrower.roots) as uevents:
        uevents.read()
        supernode.happen("borrow", borrower="node0", lender="node1", size="1GiB")
        told = {(e.action, e.subsystem, e.name) for e in events_of(uevents)}
    assert told == {("add", "node", "node2"), ("add", "obmm", "obmm_shmdev1")}
    numa = read_host(borrower.roots).numa[2]
    assert (numa.is_cpuless, numa.memory_total, numa.distances) == (True, 1 << 30, {0: 100, 1: 100, 2: 10})
    (imported,) = read_host(borrower.roots).shared_memory
    (exported,) = read_host(lender.roots).shared_memory
    assert (imported.type, imported.numa, exported.type) == ("import", 2, "export")
    assert sum(n.is_remote for n in Ubse(lender.roots.ubse_socket).numa_memory(0)) == 1
    supernode.happen("return", borrower="node0", numa=2)
    assert (read_host(borrower.roots), read_host(lender.roots)) == before


@pytest.mark.scenario(TWO)
def test_a_node_cannot_lend_more_than_it_has(supernode: SuperNodeHandle) -> None:
    with pytest.raises(InvalidRequest, match="lends"):
        supernode.happen("borrow", borrower="node0", lender="node1", size="64GiB")


def test_a_device_held_elsewhere_is_busy_or_in_conflict(ub_node: NodeHandle) -> None:
    provider = choose(ub_node.roots, "sim")
    provider.allocate("urma_1")
    with pytest.raises(UbError) as caught:
        Ubse(ub_node.roots.ubse_socket).allocate("urma_1")
    assert isinstance(caught.value, Conflict)
