"""Records that a disk damaged, byte by byte: a call refuses with a reason or goes on, and no other volume suffers."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub import supervisor
from csi_ub.config import PoolType
from csi_ub.controller import Controller
from csi_ub.engines import Engines
from csi_ub.engines.bind import BindEngine
from csi_ub.model import AccessMode, Attachment, Spec, Volume
from csi_ub.noderecord import Debts
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.share import boot_id
from csi_ub.volumes import Volumes
from ubhost.errors import UbError

RWX = AccessMode.MULTI_NODE_MULTI_WRITER


class World:
    """A driver without its socket, with one volume that a node uses, and another one."""

    def __init__(self, folder: Path) -> None:
        (folder / "pool").mkdir()
        self.pool = Pool("default", folder / "pool", space(PoolType.DIR))
        self.pool.open()
        self.volumes = Volumes("node0", (self.pool,), Engines({"bind": BindEngine()}))
        self.controller: Any = Controller(self.volumes)
        self.node = NodeVolumes(self.volumes, folder / "run", Debts(folder / "attached"))
        self.node.open()
        self.id, self.other = (
            self.pool.create(Volume("", name, "node0", "default", Spec(), modes=frozenset({RWX}))).id
            for name in ("pvc", "other")
        )
        with self.pool.share(self.id) as share:
            share.attach(Attachment("node0", RWX, boot_id()))
        self.node.debts.add(self.id, self.volumes.reach(*self.found()).context)

    def found(self) -> tuple[Volume, Pool]:
        found: tuple[Volume, Pool] = self.controller.own(self.id)
        return found

    def files(self) -> Iterator[Path]:
        """Yield every record about the first volume."""
        folder = self.pool.volumes.home / self.id
        yield folder / "volume.json"
        yield from (folder / "share/nodes").iterdir()
        yield from self.node.debts.folder.glob("*.json")
        yield from (self.pool.path / "names").iterdir()

    def delete(self) -> None:
        self.controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=self.id), None)

    def calls(self) -> Iterator[Callable[[], object]]:
        yield lambda: self.controller.ControllerGetVolume(csi.ControllerGetVolumeRequest(volume_id=self.id), None)
        yield lambda: self.pool.users(self.id)
        yield lambda: self.pool.volumes.called("pvc")
        yield lambda: self.pool.refuse_in_use(self.found()[0])
        yield self.pool.open
        yield lambda: supervisor.look_after(self.volumes)

    def conditions(self) -> dict[str, bool]:
        listed = self.controller.ListVolumes(csi.ListVolumesRequest(), None).entries
        return {each.volume.volume_id: each.status.volume_condition.abnormal for each in listed}


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield the content with a byte changed, at every 23rd place, then cut off."""
    for place in range(0, len(content), 23):
        for byte in {content[place] ^ 1, ord("9")} - {content[place]}:
            yield content[:place] + bytes([byte]) + content[place + 1 :]
    yield from (b"", content[: len(content) // 2], b"null\n", b"[]\n", b'{"version": 1}\n')


def test_a_damaged_record_is_a_reason_to_refuse_and_no_bug_and_concerns_one_volume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    world = World(tmp_path)
    whole = {file: file.read_bytes() for file in world.files()}
    for file, content in whole.items():
        for wrong in damaged(content):
            file.write_bytes(wrong)
            for call in world.calls():
                with suppress(UbError):
                    call()
            if file.parent.name != "nodes":  # a boot that never was is an earlier one
                with pytest.raises(UbError):
                    world.delete()
            world.node.settle()  # it gives back what was left before a reboot
            assert world.conditions()[world.other] is False, f"{file} as {wrong!r}"
            for path, was in whole.items():
                path.write_bytes(was)


def test_who_uses_a_volume_is_not_taken_for_nobody_when_it_cannot_be_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    (note,) = (world.pool.volumes.home / world.id / "share/nodes").iterdir()
    for wrong in (
        b"",
        b"{",
        b'{"version": 1}\n',
        b'{"version": 1, "node": 7, "mode": 5, "boot": "x", "writes": true}\n',
    ):
        note.write_bytes(wrong)
        with pytest.raises(UbError, match=note.name):
            world.delete()
        assert world.conditions() == {world.id: True, world.other: False}
    assert (world.pool.volumes.home / world.id / "share/data").is_dir()


def test_a_driver_starts_whatever_the_list_of_what_it_had_attached_says(tmp_path: Path) -> None:
    world = World(tmp_path)
    (debt,) = world.node.debts.folder.glob("*.json")
    for wrong in (b"{", b'{"version": 1}\n', b'{"version": 1, "volume": 1, "context": []}\n'):
        debt.write_bytes(wrong)
        world.node.settle()
        assert list(world.node.debts.all()) == []
