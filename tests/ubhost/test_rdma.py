"""RDMA devices: a recorded tree, netlink bytes, and the provider on a kernel that is played here."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ubhost.rdma_server import GID, Kernel, write_server
from ubhost.errors import HostFault, NotFound, Unsupported
from ubhost.kernel.netns import inode, own_inode
from ubhost.model import Eid
from ubhost.provider import Bandwidth, Device, EidSlot, Kind, Sharing
from ubhost.providers import choose
from ubhost.providers.rdma import RdmaProvider
from ubhost.rdma.model import RdmaDevice, RdmaPort
from ubhost.rdma.netlink import RdmaNetlink, message_type
from ubhost.rdma.sysfs import read_rdma
from ubhost.roots import Roots
from ubhost.sysfs import Folder, Unreadable


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return write_server(tmp_path)


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
