"""The provider against a driver that is played here and may lie, a played UBSE, and a tree on disk.

What provider and simulator do together is tested in tests/ubsim.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.ubhost.ubse_server import Server
from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, NotFound, Unsupported
from ubhost.kernel.netns import OWN, inode, own_inode
from ubhost.model import Eid
from ubhost.netlink import Frame, acknowledgement, frames
from ubhost.provider import Bandwidth, EidSlot, Kind, Sharing
from ubhost.providers import choose
from ubhost.providers.ubcore import UbcoreProvider
from ubhost.roots import Roots
from ubhost.ubcore.client import Ubcore
from ubhost.ubcore.message import Attribute, Command, Message, decode
from ubhost.ubse import bodies, wire
from ubhost.ubse.wire import UrmaOp

EID, ZERO = Eid.from_words(0x42454944, 1, 2, 0), Eid(0)
OTHER, BONDING = Eid.from_words(0x42454944, 1, 3, 0), Eid.from_words(7, 1, 2, 3)


class Driver:
    """Two trees of devices: the host's and one pod's. ``lies`` makes it acknowledge and do nothing."""

    family, port = 1, 2

    def __init__(self, host: Path, pod: Path) -> None:
        self.host, self.pod = host, pod
        self.is_shared = False
        self.is_old = False
        self.lies = False
        self.refuses = 0
        self.heard: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def ask(self, request: bytes, netns: int | None = None) -> list[Frame]:
        message = decode(next(frames(request)))
        if message.command is Command.SHOW_SYSTEM and self.is_old:
            return list(frames(acknowledgement(request, errno.EOPNOTSUPP)))
        if message.command is Command.SHOW_SYSTEM:
            mode: dict[Attribute, int | str | bytes] = {Attribute.DEV_NS_MODE: int(self.is_shared)}
            return list(frames(Message(Command.SHOW_SYSTEM, mode).encode()))
        self.heard.append(message.command)
        if not self.lies and not self.refuses:
            self._do(message)
        return list(frames(acknowledgement(request, self.refuses)))

    def _do(self, message: Message) -> None:
        name = str(message.attributes[Attribute.DEV_NAME])
        if message.command is Command.EXPOSE_DEV_NS:
            put_device(self.pod, name, [ZERO] * len(list((self.host / name / "eids").iterdir())))
        elif message.command is Command.UNEXPOSE_DEV_NS:
            shutil.rmtree(self.pod / name)
        elif message.command is Command.SET_DEV_EID_NS:
            slot = f"eids/eid{message.attributes[Attribute.EID_IDX]!r}"
            is_home = inode(int(str(message.attributes[Attribute.NS_FD]))) == own_inode()
            source, target = (self.pod, self.host) if is_home else (self.host, self.pod)
            (target / name / slot).write_text((source / name / slot).read_text())
            (source / name / slot).write_text(f"{ZERO}\n")
        elif message.command is Command.SET_SL:
            folder = self.host / name / f"priority/priority{message.attributes[Attribute.PRIORITY]!r}"
            folder.mkdir(parents=True)
            (folder / "sl").write_text(f"{message.attributes[Attribute.SL]!r}\n")


def put_device(folder: Path, name: str, eids: list[Eid]) -> None:
    (folder / name / "eids").mkdir(parents=True)
    for index, eid in enumerate(eids):
        (folder / name / "eids" / f"eid{index}").write_text(f"{eid}\n")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path / "root")


@pytest.fixture
def driver(roots: Roots, tmp_path: Path) -> Driver:
    host = roots.sys / "class/ubcore"
    put_device(host, "bonding_dev_1", [BONDING])
    put_device(host, "udma2", [EID, ZERO])
    put_device(host, "udma3", [OTHER])
    return Driver(host, tmp_path / "pod")


@pytest.fixture
def provider(roots: Roots, driver: Driver) -> UbcoreProvider:
    @contextmanager
    def view(_: Ubcore, netns: int) -> Iterator[Path]:
        yield driver.host if inode(netns) == own_inode() else driver.pod

    return UbcoreProvider(Kind.UBCORE, roots, Ubcore(lambda: driver), view)


@pytest.fixture
def netns(tmp_path: Path) -> Iterator[int]:
    """The pod's namespace; for a driver that is played any file will do."""
    with (tmp_path / "netns").open("w") as file:
        yield file.fileno()


@pytest.fixture
def home() -> Iterator[int]:
    with OWN.open() as file:
        yield file.fileno()


@pytest.fixture
def ubse(roots: Roots) -> Iterator[Server]:
    """UBSE with urma_1, which it gives out once."""
    roots.ubse_socket.parent.mkdir(parents=True)
    server = Server(roots.ubse_socket)
    held: dict[str, tuple[int, int] | None] = {}

    def handle(module: int, op: int, body: bytes) -> bytes:
        device = "urma_1" if op == UrmaOp.DEV_GET else body.partition(b"\0")[0].decode()
        if device != "urma_1":
            return wire.Reply(1007).encode()
        match UrmaOp(op):
            case UrmaOp.DEV_GET:
                return wire.Reply(0, bodies.encode_urma_list([bodies.UrmaInfo("urma_1")])).encode()
            case UrmaOp.DEV_ALLOC:
                if device in held:
                    return wire.Reply(1006).encode()
                held[device] = None
                paths = bodies.UrmaPaths("bonding_dev_1", ("udma3", "udma2"), Eid(5))
                return wire.Reply(0, paths.encode()).encode()
            case UrmaOp.DEV_FREE:
                return wire.Reply(0 if held.pop(device, 1) is None else 1007).encode()
            case UrmaOp.QOS_SET:
                request = bodies.QosSet.decode(body)
                held["limit"] = (request.min_mbps, request.max_mbps)
                return wire.Reply(0).encode()
            case UrmaOp.QOS_GET:
                limit = held.get("limit")
                return wire.Reply(0, bodies.encode_limits(*limit)).encode() if limit else wire.Reply(1007).encode()
            case _:
                held.pop("limit", None)
                return wire.Reply(0).encode()

    server.handler = handle
    yield server
    server.close()


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


def test_without_ubse_every_device_stands_alone_and_needs_no_allocation(provider: UbcoreProvider) -> None:
    assert [device.id for device in provider.devices()] == ["bonding_dev_1", "udma2", "udma3"]
    provider.allocate("udma2")
    provider.free("udma2")
    with pytest.raises(NotFound, match="'udma9'"):
        provider.allocate("udma9")
    assert provider.bandwidth("udma2") == Bandwidth()
    with pytest.raises(Unsupported, match="only UBSE can limit"):
        provider.set_bandwidth("udma2", Bandwidth(8, 80))


def test_while_ubse_is_down_devices_are_not_mistaken_for_others(provider: UbcoreProvider, roots: Roots) -> None:
    roots.ubse_socket.parent.mkdir(parents=True)
    for refused in (provider.devices, lambda: provider.allocate("urma_1"), lambda: provider.free("urma_1")):
        with pytest.raises(Busy, match="UBSE is not running"):
            refused()


def test_an_allocation_is_known_to_other_programs_until_it_is_freed(
    provider: UbcoreProvider, roots: Roots, ubse: Server
) -> None:
    assert provider.devices()[0].members == ("bonding_dev_1", "udma2", "udma3")
    provider.allocate("urma_1")
    assert provider.devices()[0].members == ("bonding_dev_1", "udma3", "udma2")  # what UBSE said
    assert (roots.run / "urma.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Busy, match="urma_1 is allocated already"):
        provider.allocate("urma_1")
    provider.free("urma_1")
    provider.free("urma_1")
    assert provider.devices()[0].members == ("bonding_dev_1", "udma2", "udma3")


def test_a_damaged_record_of_allocations_is_ignored(provider: UbcoreProvider, roots: Roots, ubse: Server) -> None:
    provider.allocate("urma_1")
    for damage in ("{", '{"version": 1, "devices": [1]}', '{"version": 1, "devices": {"urma_1": {"bonding": 1}}}'):
        (roots.run / "urma.json").write_text(damage)
        assert provider.devices()[0].members == ("bonding_dev_1", "udma2", "udma3")


def test_a_limit_is_set_read_back_and_lifted(provider: UbcoreProvider, ubse: Server) -> None:
    assert provider.bandwidth("urma_1") == Bandwidth()
    provider.set_bandwidth("urma_1", Bandwidth(8, 80))
    assert provider.bandwidth("urma_1") == Bandwidth(8, 80)
    provider.set_bandwidth("urma_1", Bandwidth())
    assert provider.bandwidth("urma_1") == Bandwidth()
    with pytest.raises(InvalidRequest, match="multiples of 8"):
        provider.set_bandwidth("urma_1", Bandwidth(8, 81))
    with pytest.raises(NotFound, match="urma_9"):
        provider.bandwidth("urma_9")


def test_without_anything_each_kind_that_was_looked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        choose(Roots(tmp_path))
    for part in ("run/ubsim/kernel.sock", "UBCORE_GENL", "sys/class/infiniband"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("wanted", "part"), [("sim", "kernel.sock"), ("ubcore", "UBCORE_GENL"), ("rdma", "RDMA")])
def test_a_kind_that_is_not_here_says_why(tmp_path: Path, wanted: str, part: str) -> None:
    with pytest.raises(Unsupported, match=part):
        choose(Roots(tmp_path), wanted)


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'verbs' is unknown, expected one of auto, sim, ubcore, rdma"):
        choose(Roots(tmp_path), "verbs")


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
