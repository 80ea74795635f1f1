"""What kind of cgroup hierarchy this node has.

Source: Linux Documentation/admin-guide/cgroup-v2.rst; reference/nri.md section 3.2.
"""

from enum import Enum
from pathlib import Path

from ubhost.kernel.statfs import CGROUP2_SUPER_MAGIC, magic
from ubhost.roots import Roots


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
            return Mode.V2 if magic(path) == CGROUP2_SUPER_MAGIC else Mode.OTHER
        if (path / "cgroup.controllers").exists():
            return Mode.V2
        return Mode.OTHER if any(path.iterdir()) else Mode.ABSENT
    except OSError:
        return Mode.ABSENT
