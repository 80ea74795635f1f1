"""What is true of every provider: one list of tests.

All run in memory and on a simulated node, which speaks with the provider of UB hardware in the driver's messages. Those
that say nothing of EIDs, of UBSE or of service levels run on the provider of RDMA servers, too.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ubsim.subjects import Daemon, InMemory, RdmaServer, Subject
from tests.waiting import wait_for
from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, UbError, Unsupported
from ubhost.provider import Bandwidth, EidSlot, Kind, Sharing


@pytest.fixture(params=["memory", pytest.param("daemon", marks=pytest.mark.kernel)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Sharing], Subject]]:
    yield from _maker(request.param, tmp_path)


@pytest.fixture(params=["memory", "rdma", pytest.param("daemon", marks=pytest.mark.kernel)])
def make_any(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Sharing], Subject]]:
    yield from _maker(request.param, tmp_path)


def _maker(kind: str, folder: Path) -> Iterator[Callable[[Sharing], Subject]]:
    made: list[Daemon] = []

    def build(sharing: Sharing) -> Subject:
        if kind == "memory":
            return InMemory(folder, sharing)
        if kind == "rdma":
            return RdmaServer(folder, sharing)
        made.append(Daemon(folder, sharing))
        return made[-1]

    yield build
    for daemon in made:
        daemon.close()


@pytest.fixture
def subject(make: Callable[[Sharing], Subject]) -> Subject:
    return make(Sharing.EXCLUSIVE)


@pytest.fixture
def any_subject(make_any: Callable[[Sharing], Subject]) -> Subject:
    return make_any(Sharing.EXCLUSIVE)


# Every provider


def test_a_device_is_called_by_its_name_and_by_its_members(any_subject: Subject) -> None:
    provider = any_subject.provider
    device = provider.devices()[0]
    assert {provider.device(name) for name in (device.id, *device.members)} == {device}
    with pytest.raises(NotFound, match="no_such_device"):
        provider.device("no_such_device")


def test_exposing_and_taking_back_may_each_be_repeated(any_subject: Subject) -> None:
    provider, pod = any_subject.provider, any_subject.pod("pod")
    members = provider.devices()[0].members
    assert provider.sharing() is Sharing.EXCLUSIVE
    for _ in range(2):
        provider.expose_all(members, pod)
        assert provider.exposed(pod) == tuple(sorted(members))
    for _ in range(2):
        provider.unexpose_all(members, pod)
        assert provider.exposed(pod) == ()


def test_what_is_not_there_is_not_exposed_and_need_not_be_taken_back(any_subject: Subject) -> None:
    provider, pod = any_subject.provider, any_subject.pod("pod")
    with pytest.raises(NotFound, match="nothing_at_all"):
        provider.expose("nothing_at_all", pod)
    with pytest.raises(NotFound, match="nothing_at_all"):
        provider.allocate("nothing_at_all")
    provider.unexpose("nothing_at_all", pod)


def test_freeing_what_is_free_is_no_error(any_subject: Subject) -> None:
    name = any_subject.provider.devices()[0].id
    any_subject.provider.allocate(name)
    for _ in range(2):
        any_subject.provider.free(name)


def test_a_device_without_a_limit_has_none_and_lifting_it_is_no_error(any_subject: Subject) -> None:
    name = any_subject.provider.devices()[0].id
    any_subject.provider.set_bandwidth(name, Bandwidth())
    assert any_subject.provider.bandwidth(name) == Bandwidth()


def test_a_host_that_shares_devices_says_how_to_switch(make_any: Callable[[Sharing], Subject]) -> None:
    subject = make_any(Sharing.SHARED)
    provider, pod = subject.provider, subject.pod("pod")
    member = provider.devices()[0].members[0]
    assert provider.sharing() is Sharing.SHARED
    with pytest.raises(Unsupported, match="system set"):
        provider.expose(member, pod)
    assert member in provider.exposed(pod)


# What UB has besides


def test_both_are_simulated_and_name_the_same_devices(subject: Subject) -> None:
    assert subject.provider.kind is Kind.SIM
    found = [(d.id, d.members, len(d.eids), d.nodes) for d in subject.provider.devices()]
    assert found == [
        ("urma_1", ("bonding_dev_1", "udma2", "udma3"), 21, _nodes(1)),
        ("urma_2", ("bonding_dev_2", "udma4", "udma5"), 21, _nodes(2)),
    ]


def _nodes(number: int) -> tuple[str, ...]:
    kernel = (f"bonding_dev_{number}", f"udma{2 * number}", f"udma{2 * number + 1}")
    return (*(f"uburma/{name}" for name in kernel), "ummu")


def test_attach_and_detach(subject: Subject) -> None:
    provider, pod = subject.provider, subject.pod("pod")
    before = provider.devices()
    device = before[0]
    for _ in range(2):  # each may be repeated
        provider.expose_all(device.members, pod)
    provider.move_eids(device.eids, pod)
    assert set(provider.exposed(pod)) == set(device.members)
    assert {s.eid for s in provider.visible(pod)} == {s.eid for s in device.eids}
    assert provider.devices()[0].eids == ()
    for _ in range(2):
        provider.unexpose_all(device.members, pod)
    assert provider.devices() == before
    assert (provider.exposed(pod), provider.visible(pod)) == ((), ())


def test_an_eid_before_its_device_is_a_conflict_and_moves_nothing(subject: Subject) -> None:
    provider, pod = subject.provider, subject.pod("pod")
    device = provider.devices()[0]
    with pytest.raises(Conflict):
        provider.move_eid(device.eids[0], pod)
    assert provider.devices()[0].eids == device.eids


def test_what_does_not_exist_is_not_found(subject: Subject) -> None:
    provider, pod = subject.provider, subject.pod("pod")
    slot = provider.devices()[0].eids[0]
    provider.expose(slot.device, pod)
    for call in (
        lambda: provider.expose("udma99", pod),
        lambda: provider.move_eid(EidSlot("udma99", 0, slot.eid), pod),
        lambda: provider.move_eid(EidSlot(slot.device, 900, slot.eid), pod),
        lambda: provider.allocate("urma_99"),
        lambda: provider.device("urma_99"),
    ):
        with pytest.raises(NotFound):
            call()
    provider.unexpose("udma99", pod)


def test_two_pods_have_what_each_was_given(subject: Subject) -> None:
    provider, pods = subject.provider, [subject.pod("one"), subject.pod("two")]
    devices = provider.devices()
    for device, pod in zip(devices, pods, strict=True):
        provider.expose_all(device.members, pod)
        provider.move_eids(device.eids, pod)
    for device, pod in zip(devices, pods, strict=True):
        assert {s.eid for s in provider.visible(pod)} == {s.eid for s in device.eids}


def test_a_device_is_whole_again_when_its_pod_dies(subject: Subject) -> None:
    provider, pod = subject.provider, subject.pod("pod")
    before = provider.devices()
    provider.expose_all(before[0].members, pod)
    provider.move_eids(before[0].eids, pod)
    subject.kill("pod")
    wait_for(lambda: provider.devices() == before)


def test_one_holder_at_a_time_and_freeing_twice_is_no_error(subject: Subject) -> None:
    provider = subject.provider
    provider.allocate("urma_1")
    with pytest.raises(Busy):
        provider.allocate("urma_1")
    provider.free("urma_1")
    provider.free("urma_1")
    provider.allocate("urma_1")


@pytest.mark.parametrize("limits", [Bandwidth(4, 8), Bandwidth(16, 8), Bandwidth(8, 12)])
def test_a_limit_that_makes_no_sense_is_refused(subject: Subject, limits: Bandwidth) -> None:
    with pytest.raises(InvalidRequest):
        subject.provider.set_bandwidth("urma_1", limits)


def test_a_limit_is_read_back_and_lifted(subject: Subject) -> None:
    subject.provider.set_bandwidth("urma_1", Bandwidth(800, 1600))
    assert subject.provider.bandwidth("urma_1") == Bandwidth(800, 1600)
    subject.provider.set_bandwidth("urma_1", Bandwidth())
    assert subject.provider.bandwidth("urma_1") == Bandwidth()


@pytest.mark.parametrize(("level", "priority"), [(3, 16), (3, -1)])
def test_a_priority_out_of_range_is_refused(subject: Subject, level: int, priority: int) -> None:
    with pytest.raises(UbError):
        subject.provider.set_service_level("udma2", level, priority)


def test_an_ordered_failure_of_the_driver_is_a_host_fault_with_its_cause(subject: Subject) -> None:
    provider, pod = subject.provider, subject.pod("pod")
    subject.fail("expose", "EBUSY", "udma2")
    with pytest.raises(HostFault) as caught:
        provider.expose("udma2", pod)
    assert isinstance(caught.value.__cause__, OSError)
    provider.expose("udma2", pod)


def test_a_host_that_shares_devices_exposes_none_and_shows_all(make: Callable[[Sharing], Subject]) -> None:
    subject = make(Sharing.SHARED)
    provider, pod = subject.provider, subject.pod("pod")
    assert provider.sharing() is Sharing.SHARED
    with pytest.raises(Unsupported):
        provider.expose("udma2", pod)
    assert "udma2" in provider.exposed(pod)
    assert provider.visible(pod) == ()
