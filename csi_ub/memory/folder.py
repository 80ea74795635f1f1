"""What a pod sees of shared memory: a folder with the device nodes and a manifest that says how to use them.

    manifest.json               see ``csi_ub.memory.view``
    obmm_shmdev<memid>, dax0.0  a copy of the node's own device node; on a simulated node, that very file

A bind mount does not open a device: the container's device cgroup must allow it too, which nri-qos sees to
(``csi_ub.memory.handover``).

Root in a pod can change the folder as it likes. So nothing is learnt from it, and nothing is written in it: what comes
in is made beside it and renamed, which follows no link.
"""

import json
import os
import re
import stat
from pathlib import Path

from csi_ub.memory.view import Memory, manifest
from csi_ub.pools.copy import remove_tree
from ubhost.errors import HostFault

_OURS = re.compile(r"obmm_shmdev.*|dax[0-9]+\.[0-9]+")


def make(folder: Path, volume: str, memory: Memory, dev: Path) -> None:
    """Fill ``folder`` with what pods are to see; what is there already and right is left alone.

    Raises:
        HostFault: a device node of ``memory`` is missing in ``dev``, or cannot be copied.
    """
    wanted = {each.node for each in memory.devices}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # pods get a bind mount, and nobody else comes in
        folder.mkdir(exist_ok=True, mode=0o755)
        for stale in [path for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.name not in wanted]:
            stale.unlink()
        draft = folder.with_name(f".{folder.name}.draft")
        for name in wanted:
            _copy(dev / name, folder / name, draft)
        draft.unlink(missing_ok=True)
        draft.write_text(json.dumps(manifest(volume, memory), indent=1) + "\n", encoding="utf-8")
        draft.replace(folder / "manifest.json")
    except OSError as error:
        raise HostFault(f"cannot show memory {memory.name} in {folder}: {error.strerror} ({error.filename})") from error


def remove(folder: Path) -> None:
    """Remove what ``make`` made; it may be gone."""
    remove_tree(folder)


def devices(memory: Memory, dev: Path) -> tuple[str, ...]:
    """Return the names of the character devices of ``memory`` in ``dev``; the files of a simulated node are none.

    Raises:
        HostFault: one is missing.
    """
    names = sorted(each.node for each in memory.devices)
    try:
        return tuple(name for name in names if stat.S_ISCHR((dev / name).lstat().st_mode))
    except OSError as error:
        raise HostFault(f"cannot see a device of memory {memory.name}: {error.strerror} ({error.filename})") from error


def _copy(device: Path, copy: Path, draft: Path) -> None:
    """Make ``copy`` name what ``device`` names, open for the users of every pod that gets the volume."""
    found = device.lstat()
    there = copy.lstat() if copy.exists() else None
    is_device = stat.S_ISCHR(found.st_mode)
    if there and (there.st_rdev == found.st_rdev if is_device else os.path.samestat(there, found)):
        return
    draft.unlink(missing_ok=True)
    if is_device:
        os.mknod(draft, stat.S_IFCHR | 0o666, found.st_rdev)
    else:
        draft.hardlink_to(device)
    draft.chmod(0o666)
    draft.replace(copy)
