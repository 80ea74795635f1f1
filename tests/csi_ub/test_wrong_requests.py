"""Requests that say nothing, or what cannot be: refused before anything is done."""

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.model import new_id
from tests.csi_ub.driver import Driver, capability, refused

Code = grpc.StatusCode


def create(driver: Driver, **fields: object) -> csi.Volume:
    request = csi.CreateVolumeRequest(name="a", volume_capabilities=[capability()], **fields)  # type: ignore[arg-type]
    return driver.controller.CreateVolume(request).volume


def test_a_source_that_is_none_makes_no_empty_volume(driver: Driver) -> None:
    sources = csi.VolumeContentSource
    for source, missing in (
        (sources(), "volume_content_source"),
        (sources(snapshot=sources.SnapshotSource()), "snapshot_id"),
        (sources(volume=sources.VolumeSource()), "volume_id"),
    ):
        with refused(Code.INVALID_ARGUMENT, naming=missing):
            create(driver, volume_content_source=source)
    assert not driver.controller.ListVolumes(csi.ListVolumesRequest()).entries


def test_a_range_of_sizes_without_a_size_is_no_range(driver: Driver) -> None:
    with refused(Code.INVALID_ARGUMENT, naming="capacity_range"):
        create(driver, capacity_range=csi.CapacityRange())
    volume, nothing = driver.create(), csi.CapacityRange()
    expand = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id, capacity_range=nothing)
    with refused(Code.INVALID_ARGUMENT, naming="capacity_range"):
        driver.controller.ControllerExpandVolume(expand)
    node = csi.NodeExpandVolumeRequest(volume_id=volume.volume_id, volume_path="/x", capacity_range=nothing)
    with refused(Code.INVALID_ARGUMENT, naming="capacity_range"):
        driver.rpc.NodeExpandVolume(node)


def test_a_context_that_somebody_wrote_wrongly_is_named(driver: Driver) -> None:
    wrong = {"type": ("x", ""), "consistency": ("x",), "switchPolicy": ("x",), "writers": ("x",)}
    for engine in ("bind", "glusterfs", "syncthing", "ub-shm"):
        for key, values in {**wrong, "maxStaleness": ("x", "nan", "")}.items():
            for value in values:
                context = {"owner": "node1", "engine": engine, "path": "/", "port": "1", key: value}
                with refused(Code.INVALID_ARGUMENT, naming=key):
                    driver.stage(csi.Volume(volume_id=new_id("ub", "node1"), volume_context=context))


@pytest.mark.kernel
def test_no_path_but_where_a_volume_is_has_statistics_or_grows(driver: Driver) -> None:
    volume = driver.create()
    driver.stage(volume)
    asks: list[Callable[[str, str], object]] = [
        lambda id_, path: driver.rpc.NodeGetVolumeStats(csi.NodeGetVolumeStatsRequest(volume_id=id_, volume_path=path)),
        lambda id_, path: driver.rpc.NodeExpandVolume(csi.NodeExpandVolumeRequest(volume_id=id_, volume_path=path)),
    ]
    for path in ("/", "/..", "/tmp/.", "some/path", "//", "/" + "x" * 300, "/nowhere/at/all", "/proc"):
        for id_ in (volume.volume_id, "unknown"):
            for ask in asks:
                with refused(Code.NOT_FOUND, naming=path):
                    ask(id_, path)


def _file(path: Path) -> None:
    path.write_text("mine")


def _link(path: Path) -> None:
    path.symlink_to("elsewhere")


def _link_to_folder(path: Path) -> None:
    path.with_name("folder").mkdir()
    path.symlink_to("folder")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("mine")


@pytest.mark.kernel
@pytest.mark.parametrize("make", [_file, _link, _link_to_folder, _pipe, _full_folder], ids=lambda make: make.__name__)
def test_what_somebody_else_put_at_a_target_stays_and_nobody_is_told_that_it_went(
    driver: Driver, make: Callable[[Path], None]
) -> None:
    for volume in (driver.create(), csi.Volume(volume_id="a-volume-of-nobody")):
        target = driver.target(volume)
        target.parent.mkdir(parents=True)
        make(target)
        before = target.lstat()
        for _ in range(2):
            with refused(Code.FAILED_PRECONDITION, naming=str(target)):
                driver.unpublish(volume)
            assert target.lstat().st_ino == before.st_ino
        target.rename(target.with_name("away"))
        driver.unpublish(volume)
