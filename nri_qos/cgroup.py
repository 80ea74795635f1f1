"""What kind of cgroup hierarchy this node has.

Source: Linux Documentation/admin-guide/cgroup-v2.rst; reference/nri.md section 3.2.
"""

import ctypes
import os
from enum import Enum
from pathlib import Path

from ubhost.roots import Roots

CGROUP2_MAGIC = 0x63677270


class Mode(Enum):
    V2 = "v2"
    OTHER = "v1 or hybrid"  # controllers are not all on v2: we decide, and enforce nothing
    ABSENT = "absent"  # no tree to write to; what the runtime applies at creation still works


def folder(roots: Roots) -> Path:
    return roots.root / "sys/fs/cgroup"


def mode(roots: Roots) -> Mode:
    """Return the kind of hierarchy. The real root is told by its file system, another root by its files."""
    path = folder(roots)
    try:
        if roots.root == Path("/"):
            return Mode.V2 if _magic(path) == CGROUP2_MAGIC else Mode.OTHER
        if (path / "cgroup.controllers").exists():
            return Mode.V2
        return Mode.OTHER if any(path.iterdir()) else Mode.ABSENT
    except OSError:
        return Mode.ABSENT


def _magic(path: Path) -> int:
    """Return ``f_type`` of statfs(2), which Python does not offer: the first word of the answer."""
    answer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), ctypes.byref(answer)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int(answer[0]) & 0xFFFFFFFF
