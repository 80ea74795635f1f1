"""Volumes of type block on this node: the disk of a staged volume as a loop device, for as long as pods have it.

A volume has at most two devices here, one to write and one to read only: read-only mounts do not keep a program from
writing to a device. Each has a device node of our own in ``folder``, which is what mounts at targets show; the number
of the device is part of its name, so a mount of an earlier device is told from one of the present. Devices are found
again by the name that the kernel keeps with them, so a killed driver leaks none.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from csi_ub import disk
from csi_ub.engines.base import Reach
from csi_ub.model import owner_tag
from csi_ub.reasons import InUse
from ubhost.errors import HostFault, Unsupported
from ubhost.kernel import loop, mountinfo
from ubhost.kernel.mountinfo import Origin

_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a mount at a target shows: ``origin``, bound from what ``open`` opens; ``dead`` is what it showed before."""

    origin: Origin
    dead: frozenset[Origin]
    open: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The devices of node ``node``. The caller holds the lock of the volume."""

    node: str
    folder: Path
    has_loops: Callable[[], bool] = loop.is_there

    def attach(self, volume_id: str, data: int, size: int, *, is_read_only: bool) -> Shown:
        """Make the disk in the open folder ``data`` a device of at least ``size`` bytes, if it is none yet.

        Raises:
            Unsupported: the kernel has no loop devices.
            HostFault: it refused.
        """
        if not self.has_loops():
            raise Unsupported(f"node {self.node} has no /dev/loop-control, so no devices for volumes: modprobe loop")
        file = disk.open_disk(data, size, is_read_only=is_read_only)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = self._number(volume_id, file, is_read_only=is_read_only)
            if loop.size(number) != os.fstat(file).st_size:
                loop.refresh(number)
            node = self._node(volume_id, number, is_read_only=is_read_only)
            self._drop_stale(volume_id)
            origin = self._origins([node])[node]
        except OSError as error:
            raise HostFault(f"cannot make volume {volume_id} a device: {error.strerror}") from error
        finally:
            os.close(file)
        dead = self.origins(volume_id) - {origin}
        return Shown(origin, dead, lambda: os.open(node, os.O_PATH | os.O_CLOEXEC))

    def origins(self, volume_id: str) -> frozenset[Origin]:
        """Return what mounts of the volume's devices show, also of devices that are gone."""
        return frozenset(self._origins(self._nodes(volume_id)).values())

    def release(self, volume_id: str) -> None:
        """Give up the devices that no pod has any more.

        Raises:
            InUse: something still has one open. It goes with its last close, if nobody publishes it before.
            HostFault: the kernel refused.
        """
        mounted = {mount.origin for mount in mountinfo.read()}
        used = {node for node, origin in self._origins(self._nodes(volume_id)).items() if origin in mounted}
        numbers = {_number(node) for node in used}
        try:
            for each in self._idle(volume_id, numbers):
                loop.detach(each.number)
            self._wait_for_close(volume_id, numbers)
            for node in self._nodes(volume_id):
                if node not in used:
                    node.unlink(missing_ok=True)
        except OSError as error:
            raise HostFault(f"cannot give up a device of volume {volume_id}: {error.strerror}") from error

    def grow(self, volume_id: str, data: int, size: int) -> None:
        """Let the disk in the open folder ``data``, and its devices, have at least ``size`` bytes."""
        os.close(disk.open_disk(data, size, is_read_only=False))
        try:
            for each in self._loops(volume_id):
                loop.refresh(each.number)
        except OSError as error:
            raise HostFault(f"cannot tell a device of volume {volume_id} its size: {error.strerror}") from error

    def size(self, volume_id: str) -> int:
        """Return the bytes of the volume's devices; 0 if there is none, or one lost its disk."""
        attached = {each.number for each in self._loops(volume_id)}
        numbers = [_number(node) for node in self._nodes(volume_id)]
        return min((loop.size(number) if number in attached else 0 for number in numbers), default=0)

    def _number(self, volume_id: str, file: int, *, is_read_only: bool) -> int:
        state = os.fstat(file)
        for each in self._loops(volume_id):
            is_same = (each.device, each.inode) == (state.st_dev, state.st_ino)  # else its file system was mounted anew
            if is_same and each.is_read_only is is_read_only and loop.keep(each.number):
                return each.number
        return loop.attach(file, self._name(volume_id), is_read_only=is_read_only)

    def _node(self, volume_id: str, number: int, *, is_read_only: bool) -> Path:
        node = self.folder / f"{volume_id}.{number}.{'ro' if is_read_only else 'rw'}"
        if not node.exists():
            os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(loop.MAJOR, number))
        return node

    def _drop_stale(self, volume_id: str) -> None:
        """Remove nodes of devices that are gone and that no pod has: a driver was killed before it came to that."""
        attached = {each.number for each in self._loops(volume_id)}
        stale = [node for node in self._nodes(volume_id) if _number(node) not in attached]
        mounted = {mount.origin for mount in mountinfo.read()} if stale else set()
        for node, origin in self._origins(stale).items():
            if origin not in mounted:
                node.unlink(missing_ok=True)

    def _idle(self, volume_id: str, used: Collection[int]) -> list[loop.Loop]:
        return [each for each in self._loops(volume_id) if each.number not in used]

    def _wait_for_close(self, volume_id: str, used: Collection[int]) -> None:
        """Wait a moment for devices to go that were detached: udev looks into each for some milliseconds.

        Raises:
            InUse: see ``release``.
        """
        until = time.monotonic() + _CLOSE_S
        while idle := self._idle(volume_id, used):
            if time.monotonic() > until:
                raise InUse(f"/dev/loop{idle[0].number}, a device of volume {volume_id}, is still open in a process")
            time.sleep(_CLOSE_S / 50)

    def _loops(self, volume_id: str) -> Iterator[loop.Loop]:
        return (each for each in loop.all_attached() if each.name == self._name(volume_id))

    def _nodes(self, volume_id: str) -> list[Path]:
        if not self.folder.is_dir():
            return []
        ours = re.compile(rf"{re.escape(volume_id)}\.[0-9]+\.r[ow]")  # the id may be anything that a caller says
        return sorted(path for path in self.folder.iterdir() if ours.fullmatch(path.name))

    def _origins(self, nodes: Sequence[Path]) -> dict[Path, Origin]:
        if not nodes:
            return {}
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            here = mountinfo.origin(mountinfo.read(), folder)
        finally:
            os.close(folder)
        return {node: Origin(here.device, f"{here.root.rstrip('/')}/{node.name}") for node in nodes}

    def _name(self, volume_id: str) -> str:
        return f"{volume_id}@{owner_tag(self.node)}"


def size_of(reach: Reach) -> int:
    """Return the bytes of a volume of type block: by its record if that is here, else by what its owner told."""
    volume = reach.pool.volumes.find(reach.volume) if reach.pool else None
    told = reach.context.get("size", "")
    return volume.size if volume else int(told) if told.isascii() and told.isdecimal() else 0


def _number(node: Path) -> int:
    return int(node.name.split(".")[1])
