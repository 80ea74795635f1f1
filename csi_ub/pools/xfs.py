"""A pool on XFS: a project quota for each volume; files of snapshots and clones share their blocks with the original.

The size of a volume is the hard limit of its project: a write over it fails with ENOSPC, and statvfs(3) inside the
volume shows the limit, so ``df`` in a pod is right. A copy shares blocks file by file (reflink): it takes no space and
no time for data, but time for each file, and is not of one moment. So a volume that somebody writes to is not copied.
The copy's own quota counts all it refers to, as the original's does.
"""

from contextlib import suppress
from pathlib import Path

from csi_ub.pools.base import Folders, Usage, doing, free, usage_by_quota
from csi_ub.pools.copy import copy_tree, remove_tree
from ubhost.errors import Unsupported
from ubhost.kernel import xfs

_OVERHEAD = 64 << 10  # bytes: the driver's folders, not the user's


class XfsSpace(Folders):
    has_quota = True
    is_atomic = False

    def check(self, pool: Path) -> None:
        if not xfs.is_xfs(pool):
            raise Unsupported(f"{pool} is not on xfs: make it there, or use a pool of type dir")
        if not xfs.enforces_projects(pool):
            raise Unsupported(
                f"the xfs of {pool} enforces no project quotas: mount it with -o prjquota (and the kernel needs "
                "CONFIG_XFS_QUOTA), or use a pool of type dir, whose volumes have no size"
            )

    def make(self, share: Path, size: int) -> None:
        with doing("make", share):
            share.mkdir(mode=0o700)
            self._begin(share, size)

    def copy(self, source: Path, share: Path, size: int) -> None:
        self.make(share, size)
        copy_tree(source, share)

    def resize(self, share: Path, size: int) -> None:
        with doing("resize", share):
            xfs.limit(share, xfs.project(share), _with_overhead(size))

    def usage(self, share: Path, size: int) -> Usage:
        with doing("ask for the space of", share):
            used = xfs.used(share, xfs.project(share))
        return usage_by_quota(share, size, used)

    def available(self, pool: Path) -> int:
        return free(pool)

    def remove(self, share: Path) -> None:
        number = 0
        with suppress(OSError):  # it may be gone in part or whole
            number = xfs.project(share)
        remove_tree(share)
        if number:
            with suppress(OSError):  # a limit of nothing hurts nobody
                xfs.limit(share.parent, number, 0)

    def _begin(self, share: Path, size: int) -> None:
        xfs.make_project(share)
        if size:
            xfs.limit(share, xfs.project(share), _with_overhead(size))


def _with_overhead(size: int) -> int:
    return size + _OVERHEAD if size else 0
