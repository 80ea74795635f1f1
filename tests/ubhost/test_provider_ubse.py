"""The provider where UBSE manages the devices, or does not, or is down: UBSE and the driver are played."""

import pytest

from tests.ubhost.ubse_server import Server
from ubhost.errors import Busy, InvalidRequest, NotFound, Unsupported
from ubhost.provider import Bandwidth
from ubhost.providers.ubcore import UbcoreProvider
from ubhost.roots import Roots


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
