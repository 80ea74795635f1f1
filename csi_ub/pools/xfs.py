"""A pool on XFS: a project quota for each volume; files of snapshots and clones share their blocks with the original.

The size of a volume is the hard limit of its project: a write over it fails with ENOSPC, and statvfs(3) inside the
volume shows the limit, so ``df`` in a pod is right. A copy shares blocks file by file (reflink): it takes no space and
no time for data, but time for each file, and is not of one moment. So a volume that somebody writes to is not copied.
The copy's own quota counts all it refers to, as the original's does.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

from csi_ub.pools.base import Usage
from csi_ub.pools.copy import copy_tree, remove_tree
from ubhost.errors import Exhausted, HostFault, Unsupported
from ubhost.kernel import xfs

_OVERHEAD = 64 << 10  # bytes: the driver's folders, not the user's


class XfsSpace:
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
        try:
            share.mkdir(mode=0o700)
            self._begin(share, size)
        except OSError as error:
            raise _fault("make", share, error) from error

    def copy(self, source: Path, share: Path, size: int) -> None:
        self.make(share, size)
        copy_tree(source, share)

    def resize(self, share: Path, size: int) -> None:
        try:
            xfs.limit(share, xfs.project(share), _with_overhead(size))
        except OSError as error:
            raise _fault("resize", share, error) from error

    def usage(self, share: Path, size: int) -> Usage:
        try:
            used, found = xfs.used(share, xfs.project(share)), os.statvfs(share)
        except OSError as error:
            raise _fault("ask for the space of", share, error) from error
        total = size or found.f_blocks * found.f_frsize
        return Usage(min(used, total), total)

    def available(self, pool: Path) -> int:
        try:
            found = os.statvfs(pool)
        except OSError as error:
            raise _fault("ask for the space of", pool, error) from error
        return found.f_bavail * found.f_frsize

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


def _fault(what: str, path: Path, error: OSError) -> HostFault | Exhausted:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Exhausted(f"no space to {what} {path}")
    return HostFault(f"cannot {what} {path}: {error.strerror}")
