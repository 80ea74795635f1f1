"""What each network namespace sees of a simulated node's devices: the state machine's answer, as files.

The host's own namespace reads ``<root>/sys/class/ubcore``. For every other one that sees a device there is
``<root>/run/ubsim/netns/<inode>/class/ubcore/<dev>/``: its own ``eids/``, everything else the same files as the host's.
A device appears in a view and goes from it by one rename, so that nobody sees half of one.
"""

import os
import shutil
from itertools import count
from pathlib import Path

from ubhost.model import Eid
from ubsim.sysfs import CLASS, VIRTUAL
from ubsim.tree import Link, poke, write
from ubsim.ubcore import Device, Ubcore

ABSENT = Device("", -1)


class Views:
    """The views of one node, below ``root``. The devices' own files in ``VIRTUAL`` are somebody else's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._netns = root / "run" / "ubsim" / "netns"
        self._count = count()

    def follow(self, before: Ubcore, after: Ubcore) -> None:
        """Bring the files from the state ``before`` to the state ``after``.

        Raises:
            HostFault: the file system refused.
        """
        for name in sorted(before.devices.keys() | after.devices.keys()):
            old, new = before.devices.get(name, ABSENT), after.devices.get(name, ABSENT)
            if old is new:
                continue
            for netns in (old.logical | new.logical | {old.home, new.home}) - {ABSENT.home}:
                self._follow_device(name, old, new, netns, after.init)
            self._follow_attributes(name, old, new)
        for netns in before.others - after.others:
            self._discard(self._netns / str(netns))

    def _follow_device(self, name: str, old: Device, new: Device, netns: int, init: int) -> None:
        was, now = old.is_in(netns), new.is_in(netns)
        if netns == init:
            folder = self._root / VIRTUAL / name
            if now and not was:
                write(self._root, [Link(f"{CLASS}/{name}", f"{VIRTUAL}/{name}")])
            elif was and not now:
                (self._root / CLASS / name).unlink(missing_ok=True)
        else:
            folder = self._netns / str(netns) / "class" / "ubcore" / name
            if now and not was:
                self._build(folder, name, new.seen_from(netns))
            elif was and not now:
                self._discard(folder)
        if now:
            _write_eids(str(folder), old.seen_from(netns) if was else (), new.seen_from(netns))

    def _follow_attributes(self, name: str, old: Device, new: Device) -> None:
        folder = self._root / VIRTUAL / name
        if new is ABSENT or old is ABSENT:
            return
        if old.is_dynamic != new.is_dynamic:
            poke(folder / "dynamic_eid", f"{int(new.is_dynamic)}\n")
        for priority, (was, now) in enumerate(zip(old.service_levels, new.service_levels, strict=True)):
            if was != now:
                poke(folder / f"priority/priority{priority}/sl", f"{now}\n")

    def _build(self, folder: Path, name: str, eids: tuple[Eid, ...]) -> None:
        """Attributes are other names of the host's files, because a link in the place of one is not trusted."""
        draft = f"{self._netns}/.{next(self._count)}"  # plain text, for this is on the way of every attachment
        os.makedirs(f"{draft}/eids")  # noqa: PTH103
        target = os.path.relpath(self._root / VIRTUAL / name, folder)
        with os.scandir(self._root / VIRTUAL / name) as found:
            for entry in found:
                if entry.name == "eids":
                    continue
                if entry.is_file(follow_symlinks=False):
                    os.link(entry.path, f"{draft}/{entry.name}")
                else:
                    os.symlink(f"{target}/{entry.name}", f"{draft}/{entry.name}")  # noqa: PTH211
        _write_eids(draft, (), eids)
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.rename(draft, folder)  # noqa: PTH104

    def _discard(self, folder: Path) -> None:
        grave = self._netns / f".{next(self._count)}"
        try:
            folder.rename(grave)
        except FileNotFoundError:
            return
        shutil.rmtree(grave)


def _write_eids(folder: str, old: tuple[Eid, ...], new: tuple[Eid, ...]) -> None:
    """Bring the slots that differ to ``new``, each in one write and in place; all lines are of one length."""
    for index, eid in enumerate(new):
        if index < len(old) and old[index] == eid:
            continue
        descriptor = os.open(f"{folder}/eids/eid{index}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444)
        try:
            os.pwrite(descriptor, f"{eid}\n".encode(), 0)
        finally:
            os.close(descriptor)
