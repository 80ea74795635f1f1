"""RDMA devices: a recorded tree, netlink bytes, and the provider on a kernel that is played here."""

import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ubhost.errors import HostFault, NotFound, Unsupported
from ubhost.kernel.netns import inode, own_inode
from ubhost.model import Eid
from ubhost.netlink import NLM_F_DUMP, NLMSG_DONE, Frame, acknowledgement, attribute, attributes, frames
from ubhost.provider import Bandwidth, Device, EidSlot, Kind, Sharing
from ubhost.providers import choose
from ubhost.providers.rdma import RdmaProvider
from ubhost.rdma.model import RdmaDevice, RdmaPort
from ubhost.rdma.netlink import Channel, RdmaNetlink, message_type
from ubhost.rdma.sysfs import read_rdma
from ubhost.roots import Roots
from ubhost.sysfs import Folder, Unreadable

GID = "fe80:0000:0000:0000:5054:00ff:fe12:3456"

RECORDED = {
    "devices/virtual/infiniband/rxe0/node_guid": "5054:00ff:fe12:3456",
    "devices/virtual/infiniband/rxe0/parent": "eth1",
    "devices/virtual/infiniband/rxe0/ports/1/state": "4: ACTIVE",
    "devices/virtual/infiniband/rxe0/ports/1/link_layer": "Ethernet",
    "devices/virtual/infiniband/rxe0/ports/1/rate": "2.5 Gb/sec (1X SDR)",
    "devices/virtual/infiniband/rxe0/ports/1/gids/0": GID,
    "devices/virtual/infiniband/rxe0/ports/1/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
    "devices/virtual/infiniband/rxe0/ports/1/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001",
    "devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "eth1",
    "devices/virtual/infiniband_verbs/uverbs1/ibdev": "rxe0",
    "devices/pci0000:3a/0000:3b:00.0/numa_node": "1",
    "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/fw_ver": "16.35.3006",
    "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/state": "1: DOWN",
    "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)",
    "devices/pci0000:3a/0000:3b:00.0/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
    "bus/pci/drivers/mlx5_core/bind": "",
}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    sys_ = tmp_path / "sys"
    for name, content in RECORDED.items():
        path = sys_ / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    pci = sys_ / "devices/pci0000:3a/0000:3b:00.0"
    (sys_ / "class/infiniband").mkdir(parents=True)
    (sys_ / "class/infiniband_verbs").mkdir()
    (sys_ / "class/infiniband/rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    (sys_ / "class/infiniband/mlx5_0").symlink_to("../../devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0")
    (pci / "infiniband/mlx5_0/device").symlink_to("../../../0000:3b:00.0")
    (pci / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    for node, at in (("uverbs0", "pci0000:3a/0000:3b:00.0"), ("uverbs1", "virtual")):
        (sys_ / "class/infiniband_verbs" / node).symlink_to(f"../../devices/{at}/infiniband_verbs/{node}")
    return Roots(tmp_path)


def test_cards_and_soft_devices_are_read(roots: Roots) -> None:
    assert read_rdma(Folder(roots.sys)) == (
        RdmaDevice(
            "mlx5_0",
            firmware="16.35.3006",
            address="0000:3b:00.0",
            numa=1,
            driver="mlx5_core",
            ports=(RdmaPort(1, "DOWN", rate_mbps=100_000),),
            nodes=("infiniband/uverbs0", "infiniband/rdma_cm"),
        ),
        RdmaDevice(
            "rxe0",
            node_guid="5054:00ff:fe12:3456",
            driver="rdma_rxe",
            is_soft=True,
            ports=(
                RdmaPort(
                    1, "ACTIVE", "Ethernet", 2500, "eth1", ((0, Eid.parse(GID)), (2, Eid.parse("::ffff:10.0.0.1")))
                ),
            ),
            nodes=("infiniband/uverbs1", "infiniband/rdma_cm"),
        ),
    )


def test_a_rate_that_makes_no_sense_is_named_by_its_path(roots: Roots) -> None:
    (roots.sys / "class/infiniband/rxe0/ports/1/rate").write_text("fast\n")
    with pytest.raises(Unreadable, match="rxe0/ports/1/rate: 'fast' makes no sense"):
        read_rdma(Folder(roots.sys))


def test_a_machine_without_rdma_has_none(tmp_path: Path) -> None:
    assert read_rdma(Folder(tmp_path)) == ()


@dataclass
class Kernel:
    """RDMA devices of one machine: where each is, by inode of the namespace. rxe cannot move, as Linux has it."""

    home: int = field(default_factory=own_inode)
    is_shared: bool = False
    at: dict[str, int] = field(default_factory=dict)
    lies: bool = False
    heard: list[bytes] = field(default_factory=list)

    @contextmanager
    def open(self, netns: int | None) -> Iterator[Channel]:
        yield _Socket(self, self.home if netns is None else inode(netns))


class _Socket:
    port = 9

    def __init__(self, kernel: Kernel, here: int) -> None:
        self._kernel, self._here = kernel, here

    def ask(self, request: bytes) -> list[Frame]:
        kernel = self._kernel
        kernel.heard.append(request)
        (frame,) = frames(request)
        values = dict(attributes(frame.body))
        match frame.kind & 0x3FF:
            case 6:
                return [Frame(frame.kind, attribute(66, bytes([kernel.is_shared])))]
            case 1:
                assert frame.flags & NLM_F_DUMP == NLM_F_DUMP
                seen = [n for n, at in sorted(kernel.at.items()) if kernel.is_shared or at == self._here]
                return [self._described(frame, name) for name in seen] + [Frame(NLMSG_DONE, bytes(4))]
            case _:
                return list(frames(acknowledgement(request, self._move(values))))

    def _described(self, frame: Frame, name: str) -> Frame:
        index = sorted(self._kernel.at).index(name)
        return Frame(frame.kind, attribute(1, struct.pack("=I", index)) + attribute(2, name.encode() + b"\0"), 2)

    def _move(self, values: dict[int, bytes]) -> int:
        name = sorted(self._kernel.at)[struct.unpack("=I", values[1])[0]]
        if name.startswith("rxe"):
            return errno.EOPNOTSUPP
        if not self._kernel.lies:
            self._kernel.at[name] = inode(struct.unpack("=I", values[68])[0])
        return 0


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(at=dict.fromkeys(("mlx5_0", "rxe0"), own_inode()))


@pytest.fixture
def provider(roots: Roots, kernel: Kernel) -> RdmaProvider:
    return RdmaProvider(roots, RdmaNetlink(kernel.open))


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[int]:
    """A descriptor that stands for a pod's namespace."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.skipif(sys.byteorder == "big", reason="bytes below are written for a little-endian host")
def test_a_move_has_these_bytes(kernel: Kernel) -> None:
    kernel.lies = True
    RdmaNetlink(kernel.open).move(0, 17)
    assert kernel.heard[-1] == bytes.fromhex(
        "20000000 0214 0500 01000000 09000000 0800 0100 00000000 0800 4400 11000000"
    )
    assert message_type(2) == 0x1402


def test_a_device_moves_into_a_pod_and_home_again(provider: RdmaProvider, kernel: Kernel, pod: int) -> None:
    provider.expose("mlx5_0", pod)
    provider.expose_all(("mlx5_0",), pod)
    assert provider.exposed(pod) == ("mlx5_0",)
    assert kernel.at["mlx5_0"] == inode(pod)
    provider.unexpose("mlx5_0", pod)
    provider.unexpose_all(("mlx5_0",), pod)
    assert provider.exposed(pod) == ()
    assert kernel.at["mlx5_0"] == kernel.home


def test_soft_roce_cannot_move_and_the_shared_mode_is_offered(provider: RdmaProvider, pod: int) -> None:
    with pytest.raises(Unsupported, match=r"rxe0: its driver cannot move .* isolation 'shared'"):
        provider.expose("rxe0", pod)


def test_a_shared_machine_says_how_to_switch(provider: RdmaProvider, kernel: Kernel, pod: int) -> None:
    kernel.is_shared = True
    assert provider.sharing() is Sharing.SHARED
    with pytest.raises(Unsupported, match="rdma system set netns exclusive"):
        provider.expose("mlx5_0", pod)
    provider.unexpose("mlx5_0", pod)
    assert provider.exposed(pod) == ("mlx5_0", "rxe0")


def test_a_device_that_is_not_here_is_not_found(provider: RdmaProvider, pod: int) -> None:
    with pytest.raises(NotFound, match="'mlx5_9'"):
        provider.expose("mlx5_9", pod)
    with pytest.raises(NotFound, match="'mlx5_9'"):
        provider.allocate("mlx5_9")
    provider.allocate("mlx5_0")
    provider.free("mlx5_0")


def test_a_move_without_effect_is_found_out(provider: RdmaProvider, kernel: Kernel, pod: int) -> None:
    kernel.lies = True
    with pytest.raises(HostFault, match="does not appear"):
        provider.expose("mlx5_0", pod)


def test_devices_have_what_a_pod_needs(provider: RdmaProvider) -> None:
    card, soft = provider.devices()
    assert card == Device(
        "mlx5_0",
        ("mlx5_0",),
        numa=1,
        is_healthy=False,
        nodes=("infiniband/uverbs0", "infiniband/rdma_cm"),
        address="0000:3b:00.0",
    )
    assert (soft.id, soft.netdev, soft.is_healthy) == ("rxe0", "eth1", True)
    assert provider.device("0000:3b:00.0") == card
    with pytest.raises(NotFound, match="'mlx5_9'"):
        provider.device("mlx5_9")


def test_what_rdma_cannot_do_is_said(provider: RdmaProvider, pod: int) -> None:
    assert provider.bandwidth("mlx5_0") == Bandwidth()
    provider.set_bandwidth("mlx5_0", Bandwidth())
    with pytest.raises(Unsupported, match="mlx5_0"):
        provider.set_bandwidth("mlx5_0", Bandwidth(8, 80))
    with pytest.raises(Unsupported, match="mlx5_0"):
        provider.set_service_level("mlx5_0", 1, 1)
    with pytest.raises(Unsupported, match="mlx5_0"):
        provider.move_eids((EidSlot("mlx5_0", 0, Eid(1)),), pod)
    assert provider.visible(pod) == ()


def test_rdma_is_chosen_where_there_is_no_ub(roots: Roots) -> None:
    assert choose(roots).kind is Kind.RDMA
