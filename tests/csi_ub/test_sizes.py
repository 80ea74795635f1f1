"""A pool of any kind says one thing about sizes: what does not fit is refused, by whichever call asks for it."""

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import Driver, refused

Code = grpc.StatusCode
MiB = 1 << 20
HUGE = (1 << 62, (1 << 63) - 1)  # bytes


def expand(driver: Driver, volume: csi.Volume, size: int) -> int:
    sizes = csi.CapacityRange(required_bytes=size)
    request = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id, capacity_range=sizes)
    return driver.controller.ControllerExpandVolume(request).capacity_bytes


@pytest.mark.parametrize("size", HUGE)
def test_a_pool_without_quotas_promises_no_more_than_it_has(driver: Driver, size: int) -> None:
    with refused(Code.RESOURCE_EXHAUSTED, naming=str(size)):
        driver.create("huge", size)
    volume = driver.create("a", 10 * MiB)
    with refused(Code.OUT_OF_RANGE, naming=str(size)):
        expand(driver, volume, size)
    assert volume.capacity_bytes == 0  # unknown: nobody holds the volume to its size
    assert driver.create("a", 10 * MiB) == volume


def test_what_is_said_to_be_the_most_can_be_had_and_no_more(driver: Driver) -> None:
    most = driver.controller.GetCapacity(csi.GetCapacityRequest()).maximum_volume_size.value
    with refused(Code.RESOURCE_EXHAUSTED, naming="default"):
        driver.create("more", most * 2)
    assert driver.create("half", most // 2).volume_id
    assert expand(driver, driver.create("grows", 1), most // 2) == most // 2


def test_a_name_keeps_its_size_where_nobody_holds_it_to_it_too(driver: Driver) -> None:
    volume = driver.create("a", 10 * MiB)
    for required, limit in ((20 * MiB, 0), (5 * MiB, 5 * MiB), (0, 9 * MiB), (11 * MiB, 11 * MiB)):
        with refused(Code.ALREADY_EXISTS, naming=str(10 * MiB)):
            driver.create("a", required, limit)
    for required, limit in ((10 * MiB, 10 * MiB), (5 * MiB, 0), (0, 10 * MiB), (5 * MiB, 20 * MiB), (0, 0)):
        assert driver.create("a", required, limit) == volume
    assert expand(driver, volume, 20 * MiB) == 20 * MiB
    with refused(Code.ALREADY_EXISTS, naming=str(20 * MiB)):
        driver.create("a", 10 * MiB, 10 * MiB)
    assert driver.create("a", 20 * MiB, 20 * MiB) == volume
