"""Each network namespace sees the devices and EIDs that were given to it, and a dying one gives them back."""

import errno
import os
from pathlib import Path

import pytest

from tests.ubsim.node import SHARED, NewPod
from tests.waiting import wait_for
from ubhost.errors import Conflict
from ubhost.kernel.netns import inode
from ubhost.provider import Provider
from ubhost.ubcore.client import Refused, Ubcore
from ubsim import named_netns
from ubsim.handles import NodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_thread_is_left")]


def test_a_device_and_its_eids_are_seen_where_they_were_given_and_nowhere_else(
    provider: Provider, new_pod: NewPod
) -> None:
    pod, other = new_pod("pod"), new_pod("other")
    device = provider.devices()[0]
    assert len(device.eids) == 21
    for member in device.members:
        provider.expose(member, pod)
    for slot in device.eids:
        provider.move_eid(slot, pod)
    assert set(provider.exposed(pod)) == set(device.members)
    assert {slot.eid for slot in provider.visible(pod)} == {slot.eid for slot in device.eids}
    assert provider.exposed(other) == ()
    assert provider.visible(other) == ()
    assert provider.devices()[0].eids == ()
    for member in device.members:
        provider.unexpose(member, pod)
    assert provider.devices()[0].eids == device.eids
    assert provider.exposed(pod) == ()


def test_an_eid_before_its_device_is_a_conflict(provider: Provider, new_pod: NewPod) -> None:
    with pytest.raises(Conflict):
        provider.move_eid(provider.devices()[0].eids[0], new_pod("pod"))


def test_when_a_pods_namespace_dies_its_device_is_whole_again(provider: Provider, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    device = provider.devices()[0]
    for member in device.members:
        provider.expose(member, pod)
    for slot in device.eids:
        provider.move_eid(slot, pod)
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: provider.devices()[0].eids == device.eids)


def test_the_simulator_does_not_keep_a_namespace_alive(ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    number = inode(pod)
    ubcore.expose("udma2", pod)
    view = ub_node.roots.simulator / "netns" / str(number)
    assert view.is_dir()
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: not view.exists())


@pytest.mark.scenario(SHARED)
def test_in_shared_mode_every_namespace_sees_every_device(provider: Provider, ubcore: Ubcore, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    assert "udma2" in provider.exposed(pod)
    assert provider.visible(pod) == ()
    with pytest.raises(Refused) as caught:
        ubcore.move_device("udma2", pod)
    assert caught.value.code == errno.EPERM


@pytest.mark.scenario(SHARED)
def test_in_shared_mode_a_dying_namespace_takes_its_eids_with_it(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    slot0 = ub_node.root / "sys/class/ubcore/udma2/eids/eid0"
    before = slot0.read_text()
    ubcore.move_eid("udma2", 0, pod)
    os.close(pod)
    named_netns.remove(Path("/run/netns/pod"))
    wait_for(lambda: any(event["operation"] == "netns_exit" for event in ub_node.log()))
    assert slot0.read_text() == "0000:0000:0000:0000:0000:0000:0000:0000\n" != before


def test_a_physical_device_that_moved_is_gone_from_the_host(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    ubcore.move_device("udma2", pod)
    assert not (ub_node.root / "sys/class/ubcore/udma2").exists()
    view = ub_node.roots.simulator / "netns" / str(inode(pod)) / "class/ubcore/udma2"
    assert (view / "eids/eid0").read_text().startswith("4245:4944:")
    assert (view / "port0/state").read_text() == "4\n"


def test_a_service_level_is_written_where_the_driver_shows_it(ub_node: NodeHandle, ubcore: Ubcore) -> None:
    ubcore.set_service_level("udma2", service_level=3, priority=7)
    assert (ub_node.root / "sys/class/ubcore/udma2/priority/priority7/sl").read_text() == "3\n"
