"""The in-memory provider keeps the promises of ubhost.provider, and fails on order."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.provider import Bandwidth, EidSlot, Kind, Provider, Sharing
from ubsim.fakes import FakeProvider, fake_devices
from ubsim.faults import When


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[int]:
    """A descriptor that stands for a pod's namespace."""
    with (tmp_path / "pod").open("w") as file:
        yield file.fileno()


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(fake_devices(2))


def attach(provider: Provider, pod: int, number: int = 0) -> None:
    device = provider.devices()[number]
    for member in device.members:
        provider.expose(member, pod)
    for slot in device.eids:
        provider.move_eid(slot, pod)


def test_it_is_a_provider(provider: Provider) -> None:
    assert provider.kind is Kind.SIM
    assert [device.id for device in provider.devices()] == ["urma_1", "urma_2"]
    assert [len(device.eids) for device in provider.devices()] == [21, 21]


def test_an_attached_device_shows_its_eids_in_the_pod_and_nowhere_else(provider: FakeProvider, pod: int) -> None:
    eids = {slot.eid for slot in provider.devices()[0].eids}
    attach(provider, pod)
    assert provider.exposed(pod) == ("bonding_dev_1", "udma2", "udma3")
    assert {slot.eid for slot in provider.visible(pod)} == eids
    assert provider.devices()[0].eids == ()


def test_unexpose_brings_the_eids_back_and_may_be_repeated(provider: FakeProvider, pod: int) -> None:
    before = provider.devices()
    attach(provider, pod)
    for _ in range(2):
        for member in before[0].members:
            provider.unexpose(member, pod)
    assert provider.devices() == before
    assert provider.exposed(pod) == ()


def test_an_eid_cannot_move_before_its_device(provider: FakeProvider, pod: int) -> None:
    with pytest.raises(Conflict, match="expose it first") as caught:
        provider.move_eid(provider.devices()[0].eids[0], pod)
    assert isinstance(caught.value.__cause__, PermissionError | OSError)


def test_unknown_devices_and_empty_slots_are_not_found(provider: FakeProvider, pod: int) -> None:
    slot = provider.devices()[0].eids[0]
    provider.expose(slot.device, pod)
    for wrong in (EidSlot(slot.device, 7, slot.eid), EidSlot("udma99", 0, slot.eid)):
        with pytest.raises(NotFound):
            provider.move_eid(wrong, pod)
    with pytest.raises(NotFound):
        provider.expose("udma99", pod)


def test_a_host_that_shares_devices_refuses_to_expose_one(pod: int) -> None:
    provider = FakeProvider(sharing=Sharing.SHARED)
    with pytest.raises(Unsupported, match="dev_sharing"):
        provider.expose("udma2", pod)
    assert "udma2" in provider.exposed(pod)


def test_the_mode_cannot_change_while_a_pod_lives(provider: FakeProvider, pod: int) -> None:
    provider.expose("udma2", pod)
    with pytest.raises(HostFault, match="existing ns"):
        provider.set_sharing(Sharing.SHARED)


def test_one_holder_at_a_time(provider: FakeProvider) -> None:
    provider.allocate("urma_1")
    with pytest.raises(Busy):
        provider.allocate("urma_1")
    provider.free("urma_1")
    provider.allocate("urma_1")
    with pytest.raises(NotFound):
        provider.allocate("urma_9")


def test_limits_are_checked_and_read_back(provider: FakeProvider) -> None:
    provider.set_bandwidth("urma_1", Bandwidth(800, 1600))
    assert provider.bandwidth("urma_1") == Bandwidth(800, 1600)
    with pytest.raises(InvalidRequest, match="steps of 8"):
        provider.set_bandwidth("urma_1", Bandwidth(801, 1600))
    provider.set_bandwidth("urma_1", Bandwidth())
    assert provider.bandwidth("urma_1") == Bandwidth()
    provider.set_sharing_kind("urma_1", unique=False)
    with pytest.raises(Unsupported):
        provider.set_bandwidth("urma_1", Bandwidth(800, 1600))


def test_a_service_level_is_kept_and_checked(provider: FakeProvider) -> None:
    provider.set_service_level("udma2", 3, 7)
    assert provider.service_levels("udma2")[7] == 3
    with pytest.raises(InvalidRequest):
        provider.set_service_level("udma2", 3, 16)


def test_the_ordered_call_fails_and_only_that_one(provider: FakeProvider, pod: int) -> None:
    provider.fail("expose", errno.EPERM, skip=1)
    provider.expose("bonding_dev_1", pod)
    with pytest.raises(HostFault, match="EPERM") as caught:
        provider.expose("udma2", pod)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EPERM
    provider.expose("udma2", pod)
    assert [call.outcome for call in provider.calls] == ["ok", "HostFault", "ok"]
    assert provider.exposed(pod) == ("bonding_dev_1", "udma2")


def test_a_failure_after_the_work_leaves_the_work_done(provider: FakeProvider, pod: int) -> None:
    provider.fail("expose", errno.EIO, when=When.AFTER)
    with pytest.raises(HostFault):
        provider.expose("udma2", pod)
    assert provider.exposed(pod) == ("udma2",)


def test_a_delay_takes_the_time_it_was_ordered_for(provider: FakeProvider) -> None:
    slept: list[float] = []
    provider.faults.sleep = slept.append
    provider.delay("allocate", 0.25, device="urma_2")
    provider.allocate("urma_1")
    assert slept == []
    provider.allocate("urma_2")
    assert slept == [0.25]


def test_when_the_pods_namespace_dies_the_device_is_whole_again(
    provider: FakeProvider, pod: int, tmp_path: Path
) -> None:
    before = provider.devices()
    attach(provider, pod)
    provider.netns_gone((tmp_path / "pod").stat().st_ino)
    assert provider.devices() == before


def test_a_plugged_device_appears_and_an_unplugged_one_is_gone(provider: FakeProvider, pod: int) -> None:
    attach(provider, pod)
    provider.unplug("urma_1")
    assert [device.id for device in provider.devices()] == ["urma_2"]
    assert provider.exposed(pod) == ()
    provider.unexpose("udma2", pod)
    provider.plug(fake_devices(3)[2])
    assert [device.id for device in provider.devices()] == ["urma_2", "urma_3"]


def test_a_closed_descriptor_is_a_host_fault(provider: FakeProvider) -> None:
    with pytest.raises(HostFault, match="not an open namespace"):
        provider.expose("udma2", 9999)
