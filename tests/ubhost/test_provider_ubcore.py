"""The provider against a driver that is played and may lie, and a tree on disk.

What provider and simulator do together is tested in tests/ubsim.
"""

import errno
import shutil

import pytest

from tests.ubhost.ubcore_driver import BONDING, EID, OTHER, ZERO, Driver, put_device
from tests.ubhost.ubse_server import Server
from ubhost.errors import Conflict, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.provider import EidSlot, Sharing
from ubhost.providers.ubcore import UbcoreProvider
from ubhost.roots import Roots
from ubhost.ubcore.message import Command

SLOT = EidSlot("udma2", 0, EID)


def test_a_device_is_exposed_once_and_taken_back_once(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    provider.expose("udma2", netns)
    provider.expose("udma2", netns)
    assert provider.exposed(netns) == ("udma2",)
    assert provider.visible(netns) == ()
    provider.unexpose("udma2", netns)
    provider.unexpose("udma2", netns)
    assert provider.exposed(netns) == ()
    assert driver.heard == [Command.EXPOSE_DEV_NS, Command.UNEXPOSE_DEV_NS]


def test_an_eid_moves_to_where_its_device_is(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    provider.expose("udma2", netns)
    provider.move_eid(SLOT, netns)
    provider.move_eid(SLOT, netns)
    assert provider.visible(netns) == (SLOT,)
    assert driver.heard == [Command.EXPOSE_DEV_NS, Command.SET_DEV_EID_NS]


def test_an_eid_cannot_go_where_its_device_is_not(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    with pytest.raises(Conflict, match=r"udma2 is not exposed in net:\["):
        provider.move_eid(SLOT, netns)
    assert driver.heard == []


@pytest.mark.parametrize("slot", [EidSlot("udma2", 1, EID), EidSlot("udma2", 9, EID), EidSlot("udma9", 0, EID)])
def test_an_empty_slot_or_an_absent_device_is_not_found(provider: UbcoreProvider, netns: int, slot: EidSlot) -> None:
    provider.expose("udma2", netns)
    with pytest.raises(NotFound, match="udma"):
        provider.move_eid(slot, netns)


def test_many_devices_are_exposed_and_taken_back_together(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    with pytest.raises(NotFound, match="udma9"):
        provider.expose_all(("udma2", "udma9"), netns)
    assert driver.heard == []
    provider.expose_all(("udma2", "udma3"), netns)
    provider.expose_all(("udma2", "udma3"), netns)
    assert provider.exposed(netns) == ("udma2", "udma3")
    provider.unexpose_all(("udma3", "udma2", "udma9"), netns)
    assert provider.exposed(netns) == ()
    assert len(driver.heard) == 4


@pytest.mark.parametrize("name", ["urma_1", "bonding_dev_1", "udma3"])
def test_a_device_is_found_by_each_of_its_names_as_it_is_listed(
    provider: UbcoreProvider, ubse: Server, name: str
) -> None:
    assert provider.device(name) == provider.devices()[0]
    with pytest.raises(NotFound, match="'urma_7'"):
        provider.device("urma_7")


def test_without_ubse_a_kernel_device_is_found_by_its_name(provider: UbcoreProvider) -> None:
    assert provider.device("udma2") == provider.devices()[1]


def test_many_eids_move_together_or_not_at_all(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    other = EidSlot("udma3", 0, OTHER)
    provider.expose("udma2", netns)
    with pytest.raises(Conflict, match="udma3 is not exposed"):
        provider.move_eids((SLOT, other), netns)
    provider.expose("udma3", netns)
    with pytest.raises(NotFound, match="udma3 eid5"):
        provider.move_eids((SLOT, EidSlot("udma3", 5, other.eid)), netns)
    assert provider.visible(netns) == ()
    provider.move_eids((SLOT, other), netns)
    assert provider.visible(netns) == (SLOT, other)
    provider.move_eids((SLOT, other), netns)
    assert driver.heard.count(Command.SET_DEV_EID_NS) == 2


def test_an_eid_comes_home_but_not_into_a_slot_that_holds_another(
    provider: UbcoreProvider, driver: Driver, netns: int, home: int
) -> None:
    provider.expose("udma2", netns)
    provider.move_eid(SLOT, netns)
    with pytest.raises(NotFound, match="somebody else's"):
        provider.move_eid(EidSlot("udma3", 0, EID), home)
    provider.move_eid(SLOT, home)
    provider.move_eid(SLOT, home)
    assert provider.visible(netns) == ()
    assert SLOT in provider.visible(home)
    with pytest.raises(HostFault, match="does not appear"):  # the slot was empty
        provider.move_eid(EidSlot("udma2", 1, EID), home)


def test_a_device_plugged_in_the_place_of_another_is_not_taken_for_it(
    provider: UbcoreProvider, ubse: Server, roots: Roots
) -> None:
    folder = roots.sys / "class/ubcore"
    for name, eid in (("bonding_dev_1", BONDING), ("udma2", EID), ("udma3", OTHER)):
        (folder / name / "guid").write_text(f"{eid}\n")
    assert provider.device("udma2").members == ("bonding_dev_1", "udma2", "udma3")
    for name, eid in (("udma2", OTHER), ("udma3", EID)):
        (folder / name / "guid").write_text(f"{eid}\n")
        (folder / name / "eids/eid0").write_text(f"{eid}\n")
    assert provider.device("udma2") == provider.devices()[0]
    assert provider.device("udma2").members == ("bonding_dev_1", "udma3", "udma2")
    shutil.rmtree(folder / "udma3")
    assert provider.device("urma_1").members == ()


def test_a_device_that_cannot_be_read_is_ill_and_the_others_are_not(provider: UbcoreProvider, roots: Roots) -> None:
    (roots.sys / "class/ubcore/udma2/eids/eid0").write_text("nonsense\n")
    assert {device.id: device.is_healthy for device in provider.devices()} == {
        "bonding_dev_1": True,
        "udma2": False,
        "udma3": True,
    }
    assert not provider.device("udma2").is_healthy


def test_an_absent_device_cannot_be_exposed(provider: UbcoreProvider, netns: int) -> None:
    with pytest.raises(NotFound, match="no URMA device 'udma9'"):
        provider.expose("udma9", netns)


def test_a_shared_host_says_how_to_switch_it(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    driver.is_shared = True
    assert provider.sharing() is Sharing.SHARED
    with pytest.raises(Unsupported, match="urma_admin system set dev_sharing off"):
        provider.expose("udma2", netns)
    assert driver.heard == []


@pytest.mark.kernel
def test_a_driver_too_old_to_be_asked_is_found_out_by_a_look_from_a_new_namespace(
    provider: UbcoreProvider, driver: Driver
) -> None:
    driver.is_old = True
    assert provider.sharing() is Sharing.EXCLUSIVE
    put_device(driver.pod, "udma2", [ZERO])
    assert provider.sharing() is Sharing.SHARED


def test_a_driver_that_acknowledges_and_does_nothing_is_found_out(
    provider: UbcoreProvider, driver: Driver, netns: int
) -> None:
    driver.lies = True
    with pytest.raises(HostFault, match="does not appear"):
        provider.expose("udma2", netns)
    driver.lies = False
    provider.expose("udma2", netns)
    driver.lies = True
    with pytest.raises(HostFault, match="eid0, but it does not appear"):
        provider.move_eid(SLOT, netns)
    with pytest.raises(HostFault, match="still appears"):
        provider.unexpose("udma2", netns)


def test_a_refusal_is_a_fault_with_the_drivers_reason(provider: UbcoreProvider, driver: Driver, netns: int) -> None:
    driver.refuses = errno.EBUSY
    with pytest.raises(HostFault, match="EXPOSE_DEV_NS of udma2: EBUSY"):
        provider.expose("udma2", netns)


def test_a_service_level_is_read_back(provider: UbcoreProvider) -> None:
    provider.set_service_level("udma2", 3, 5)
    with pytest.raises(InvalidRequest, match="must be below 16"):
        provider.set_service_level("udma2", 3, 16)
    with pytest.raises(NotFound):
        provider.set_service_level("udma9", 3, 5)


@pytest.mark.parametrize(("said", "numa"), [("0x0", 0), ("77", None), ("banana", None), ("-1", None)])
def test_a_numa_node_that_the_machine_does_not_have_is_none(
    roots: Roots, driver: Driver, provider: UbcoreProvider, said: str, numa: int | None
) -> None:
    entity = roots.sys / "devices/ub/00002"
    entity.mkdir(parents=True)
    (entity / "numa").write_text(f"{said}\n")
    (roots.sys / "bus/ub/devices").mkdir(parents=True)
    (roots.sys / "bus/ub/devices/00002").symlink_to(entity)
    (roots.sys / "devices/system/node/node0").mkdir(parents=True)
    (driver.host / "udma2/device").symlink_to(entity)
    assert provider.device("udma2").numa == numa
