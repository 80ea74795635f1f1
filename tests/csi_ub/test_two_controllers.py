"""Two drivers of one pool, as in a rolling update: they take turns at each thing, and a dead one holds nothing."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub.driver import Driver, StartDriver, capability, refused

Code = grpc.StatusCode
FILES = 3000


def copy(driver: Driver, source: csi.Volume) -> csi.Volume:
    request = csi.CreateVolumeRequest(name="copy", volume_capabilities=[capability()])
    request.volume_content_source.volume.volume_id = source.volume_id
    return driver.controller.CreateVolume(request).volume


def data(driver: Driver, volume: csi.Volume) -> Path:
    return driver.pool / "volumes" / volume.volume_id / "share/data"


def stop_in_the_middle(driver: Driver) -> None:
    """Stop the process as soon as it has begun to make something."""
    while not any((driver.pool / "new").iterdir()):
        time.sleep(0.001)
    os.kill(driver.process.pid, signal.SIGSTOP)
    assert any((driver.pool / "new").iterdir()), "it was faster: give it more files"


@pytest.fixture
def both(start: StartDriver) -> tuple[Driver, Driver, csi.Volume]:
    """Return two drivers, and a volume that takes a while to copy."""
    first, second = start(suffix="-a"), start(suffix="-b", mode="controller")
    source = first.create("source")
    for number in range(FILES):
        (data(first, source) / f"{number}").write_text("x")
    return first, second, source


def test_what_one_is_making_the_other_leaves_to_it_for_as_long_as_it_lives(
    both: tuple[Driver, Driver, csi.Volume],
) -> None:
    first, second, source = both
    with ThreadPoolExecutor() as pool:
        making = pool.submit(copy, first, source)
        stop_in_the_middle(first)
        try:
            with refused(
                Code.ABORTED, naming="copy"
            ):  # slow is not dead: there is no time after which it loses its right
                copy(second, source)
            assert second.create("another").volume_id
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        assert copy(second, source) == making.result()
    assert len(list(data(first, making.result()).iterdir())) == FILES


def test_what_a_killed_one_was_making_the_other_makes_whole_at_once(both: tuple[Driver, Driver, csi.Volume]) -> None:
    first, second, source = both
    with ThreadPoolExecutor() as pool:
        making = pool.submit(copy, first, source)
        stop_in_the_middle(first)
        first.kill()
        made = copy(second, source)
        assert making.exception() is not None
    assert len(list(data(second, made).iterdir())) == FILES
    volumes = {path.name for path in (first.pool / "volumes").iterdir()}
    assert volumes == {source.volume_id, made.volume_id}
    first.restart()
    assert copy(first, source) == made
    assert not list((first.pool / "new").iterdir())
    assert not list((first.pool / "trash").iterdir())
