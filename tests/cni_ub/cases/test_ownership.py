"""C. Two calls at a time, and attachments of the dead: a device has one owner at any time."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cni_ub.machine import ip
from tests.cni_ub.node import SimulatedNode, attach
from tests.waiting import wait_for
from ubhost.ledger import Ledger
from ubhost.roots import Roots

pytestmark = pytest.mark.kernel


def test_h26_two_adds_for_one_device(node: SimulatedNode, pod: str) -> None:
    node.ipam.order("sleep", "ADD", "0.5")
    first = node.start("ADD", node.conf(), pod=pod)
    wait_for(lambda: node.ipam.calls == ["ADD"])
    second = node.call("ADD", node.conf(), pod=node.new_pod("pod-2"), container="c2")
    assert first.wait().code == 0
    assert second.error[0] in (11, 101)
    assert node.ledger == ["urma_1@c1@net1.json"]
    assert node.call("DEL", node.conf(), pod=pod).code == 0
    node.ipam.obey_no_more()
    attach(node, "/run/netns/pod-2", container="c2")


def test_h27_a_late_del_does_not_touch_the_next_owner(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.kill_pod("pod-1")
    second = node.new_pod("pod-2")
    wait_for(lambda: node.call("ADD", node.conf(), pod=second, container="c2").code == 0)
    during = node.state()
    assert node.call("DEL", node.conf(), pod=pod, container="c1").code == 0
    assert node.state() == during
    assert node.link_in(second, "net1")


def test_pods_that_share_a_device_have_eids_of_their_own(node: SimulatedNode) -> None:
    before = node.state()
    conf = node.conf(isolation="shared", netdev="none")
    del conf["ipam"]
    pods = {f"c{number}": node.new_pod(f"pod-{number}") for number in (1, 2)}
    seen = []
    for container, pod in pods.items():
        assert node.call("ADD", conf, pod=pod, container=container).code == 0
        seen.append(node.eids_in(pod))
    assert all(seen)
    assert seen[0].isdisjoint(seen[1])
    assert node.call("DEL", conf, pod=pods["c1"], container="c1").code == 0
    assert (node.eids_in(pods["c1"]), node.eids_in(pods["c2"])) == (set(), seen[1])
    assert node.call("DEL", conf, pod=pods["c2"], container="c2").code == 0
    assert node.state() == before


def test_h30_a_record_of_another_boot_is_reclaimed(node: SimulatedNode, pod: str) -> None:
    address = node.netdevs()["ipourma1"][1]
    attach(node, pod)
    ledger = Ledger(Roots(node.root))
    (record,) = ledger.records()
    ledger.write(replace(record, boot_id="11111111-2222-3333-4444-555555555555"))
    node.kill_pod("pod-1")
    wait_for(lambda: "ipourma1" in node.netdevs())
    ip(f"link set ipourma1 address {address}")  # as hardware has it after a boot; no record may say so
    attach(node, node.new_pod("pod-2"), container="c2")
    assert node.ledger == ["urma_1@c2@net1.json"]


def test_h32_gc_releases_the_stale_of_its_own_network_only(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    node.ipam.order("answer", "ADD", '{"cniVersion": "1.0.0", "ips": [{"address": "10.78.0.5/24"}]}')
    attach(node, pod, device="urma_2", name="other", ifname="net2")
    stale: dict[str, Any] = {"cni.dev/valid-attachments": []}
    legacy: dict[str, Any] = {"cni.dev/attachments": []}
    unsaid = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
    assert node.call("GC", node.conf(), **unsaid).code == 0
    assert len(node.ledger) == 2
    collected = node.call("GC", node.conf(**stale), **unsaid)
    assert (collected.code, collected.stdout) == (0, b"")
    assert node.ledger == ["urma_2@c1@net2.json"]
    assert node.ipam.calls.count("GC") == 1
    assert node.call("GC", node.conf(**stale), **unsaid).code == 0
    assert node.call("GC", node.conf(name="other", **legacy), **unsaid).code == 0
    assert node.ledger == []


def test_h32_what_is_not_a_list_of_attachments_releases_nothing(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    before = node.state()
    good = {"containerID": "c1", "ifname": "net1"}
    odd: tuple[Any, ...] = (None, True, 5, 0.5, "", [], ["net1"], {}, {"name": "net1"})
    entries: list[Any] = [*({**good, key: value} for key in good for value in odd), *odd, {"containerID": "c1"}, [good]]
    lists: list[Any] = [*([good, entry] for entry in entries), good, {}, "", "c1", 0, 5, True, False, {"0": good}]
    for key in ("cni.dev/valid-attachments", "cni.dev/attachments"):
        for wrong in lists:
            code, message = node.call("GC", node.conf() | {key: wrong}).error
            assert (code, key in message) == (7, True), wrong
    assert (node.state(), node.ipam.calls) == (before, ["ADD"])


def test_h32_what_either_list_names_is_kept(node: SimulatedNode, pod: str) -> None:
    attach(node, pod)
    before = node.state()
    new, legacy = "cni.dev/valid-attachments", "cni.dev/attachments"
    named = [{"containerID": "c1", "ifname": "net1", "more": 1}] * 2
    said: list[dict[str, Any]] = [{new: named, legacy: []}, {new: [], legacy: named}, {legacy: named}, {new: None}]
    for lists in said:
        assert node.call("GC", node.conf(**lists)).code == 0
        assert node.state() == before
    nothing: dict[str, Any] = {new: [], legacy: None}
    assert node.call("GC", node.conf(**nothing)).code == 0
    assert node.ledger == []


def test_h32_a_delegate_without_gc_is_left_alone(node: SimulatedNode) -> None:
    node.ipam.order("answer", "VERSION", '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}')
    node.ipam.renew()
    stale: dict[str, Any] = {"cni.dev/valid-attachments": []}
    assert node.call("GC", node.conf(**stale)).code == 0
    assert "GC" not in node.ipam.calls
