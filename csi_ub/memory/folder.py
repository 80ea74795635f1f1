"""What a pod sees of shared memory: a folder with the device nodes and a manifest that says how to use them.

    manifest.json           see ``manifest``
    obmm_shmdev<memid>      a copy of the node's own device node; on a simulated node, that very file

A bind mount does not open a device: the container's device cgroup must allow it too, which nri-qos sees to
(``csi_ub.memory.handover``).

Root in a pod can change the folder as it likes. So nothing is learnt from it, and nothing is written in it: what comes
in is made beside it and renamed, which follows no link.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from csi_ub.pools.copy import remove_tree
from ubhost.errors import HostFault
from ubhost.ubse.shm import Shm

_VERSION = 1
_RULES = {
    False: "strong: open with O_SYNC and map shared; nothing is cached, what one node writes the others read. Two "
    "writers of one place agree by atomic operations or a lock of their own.",
    True: "eventual: open without O_SYNC and map shared. Own pages before you touch them (obmm_set_ownership): many "
    "nodes may READ a page, or one WRITE it. To publish give WRITE up (PROT_NONE); to refresh take READ again.",
}


def manifest(volume: str, memory: Shm) -> dict[str, Any]:
    """Return how the memory is to be used: map the devices in their order, one behind the other."""
    part = memory.size // len(memory.memids)
    return {
        "version": _VERSION,
        "volume": volume,
        "consistency": "eventual" if memory.is_cacheable else "strong",
        "size": memory.size,
        "memids": list(memory.memids),
        "devices": [{"path": _name(memid), "memid": memid, "size": part} for memid in memory.memids],
        "mode": "rw",
        "open_flags": ["O_RDWR"] if memory.is_cacheable else ["O_RDWR", "O_SYNC"],
        "mmap_flags": ["MAP_SHARED"],
        "ownership": "pages: many READ or one WRITE" if memory.is_cacheable else "none",
        "rule": _RULES[memory.is_cacheable],
    }


def make(folder: Path, volume: str, memory: Shm, dev: Path) -> None:
    """Fill ``folder`` with what pods are to see; what is there already and right is left alone.

    Raises:
        HostFault: a device node of ``memory`` is missing in ``dev``, or cannot be copied.
    """
    wanted = {_name(memid) for memid in memory.memids}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        for stale in [path for path in folder.glob("obmm_shmdev*") if path.name not in wanted]:
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


def devices(memory: Shm, dev: Path) -> tuple[str, ...]:
    """Return the names of the character devices of ``memory`` in ``dev``; the files of a simulated node are none.

    Raises:
        HostFault: one is missing.
    """
    names = sorted(map(_name, memory.memids))
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


def _name(memid: int) -> str:
    return f"obmm_shmdev{memid}"
