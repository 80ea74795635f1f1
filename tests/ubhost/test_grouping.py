"""Which kernel devices make up a device that a pod is given."""

from ubhost.model import Eid, PortState, UrmaDevice, UrmaPort
from ubhost.providers.grouping import Found, alone, managed
from ubhost.ubse.bodies import UrmaInfo, UrmaPaths

UP, DOWN = (UrmaPort(0, state=PortState.ACTIVE),), (UrmaPort(0, state=PortState.DOWN),)


def bonding(number: int, *entity_ids: int, moved: bool = False) -> UrmaDevice:
    eid = Eid.from_words(7, 1, *entity_ids)
    return UrmaDevice(
        f"bonding_dev_{number}", net_dev=f"ipourma{number}", guid=eid, eids=(Eid(0),) if moved else (eid,)
    )


def udma(number: int, ports: tuple[UrmaPort, ...] = UP, *, moved: bool = False) -> UrmaDevice:
    eids = tuple(Eid.from_words(0x42454944, 1, number, at) for at in range(2))
    return UrmaDevice(
        f"udma{number}",
        guid=eids[0],
        eids=(Eid(0), Eid(0)) if moved else eids,
        ports=ports,
        entity=f"{number:05x}",
    )


FOUND = Found.of(
    [bonding(0, 0, 1), udma(0), udma(1), bonding(1, 2, 3), udma(2), udma(3), bonding(10, 4, 5), udma(4), udma(5)],
    {"00002": None, "00003": 1},
)
INFOS = [UrmaInfo("urma_10"), UrmaInfo("urma_1")]


def test_a_device_is_a_bonding_device_and_its_two_entities() -> None:
    first, second = managed(FOUND, INFOS, {})
    assert (first.id, first.members) == ("urma_1", ("bonding_dev_1", "udma2", "udma3"))
    assert (second.id, second.members) == ("urma_10", ("bonding_dev_10", "udma4", "udma5"))
    assert first.netdev == "ipourma1"
    assert first.address == "00002"
    assert first.nodes == ("uburma/bonding_dev_1", "uburma/udma2", "uburma/udma3", "ummu")
    assert [(slot.device, slot.index) for slot in first.eids] == [
        ("bonding_dev_1", 0), ("udma2", 0), ("udma2", 1), ("udma3", 0), ("udma3", 1),
    ]  # fmt: skip


def test_the_numa_node_is_that_of_the_first_entity_that_knows_it() -> None:
    assert managed(FOUND, INFOS, {})[0].numa == 1


def test_what_ubse_said_at_allocation_wins_over_the_rule() -> None:
    allocated = {"urma_1": UrmaPaths("bonding_dev_10", ("udma4", "udma5"), Eid(1))}
    assert managed(FOUND, INFOS, allocated)[0].members == ("bonding_dev_10", "udma4", "udma5")


def test_a_device_keeps_its_members_while_a_pod_has_its_eids() -> None:
    found = Found.of([bonding(1, 2, 3, moved=True), udma(2, moved=True), udma(3, moved=True)], {})
    (device,) = managed(found, INFOS[1:], {})
    assert device.members == ("bonding_dev_1", "udma2", "udma3")
    assert device.eids == ()
    assert device.is_healthy


def test_a_device_that_ubse_has_not_yet_made_has_no_members() -> None:
    (device,) = managed(FOUND, [UrmaInfo("urma_77")], {})
    assert device.members == ()


def test_health_needs_ubse_every_member_and_a_port_that_is_up() -> None:
    def healthy(*devices: UrmaDevice, info: bool = True) -> bool:
        found = Found.of([bonding(1, 2, 3), *devices], {})
        allocated = {"urma_1": UrmaPaths("bonding_dev_1", ("udma2", "udma3"), Eid(1))}
        return managed(found, [UrmaInfo("urma_1", is_healthy=info)], allocated)[0].is_healthy

    assert healthy(udma(2), udma(3))
    assert healthy(udma(2, DOWN), udma(3))
    assert healthy(udma(2, ()), udma(3, ()))
    assert not healthy(udma(2, DOWN), udma(3, DOWN))
    assert not healthy(udma(2))
    assert not healthy(udma(2), udma(3), info=False)


def test_without_ubse_each_kernel_device_stands_alone_but_the_hosts_own() -> None:
    devices = alone(FOUND)
    assert [device.id for device in devices] == [
        "bonding_dev_1", "bonding_dev_10", "udma2", "udma3", "udma4", "udma5",
    ]  # fmt: skip
    assert devices[2].members == ("udma2",)
