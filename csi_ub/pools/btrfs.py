"""A pool on btrfs: a subvolume for each volume, a quota that holds, snapshots and clones in no time and no space.

The size of a volume is enforced by a quota group: a write over it fails with EDQUOT. What is used is read from the
quota group too, because statvfs(3) of a subvolume shows the whole pool.
"""

import errno
import os
from pathlib import Path

from csi_ub.pools.base import Usage
from csi_ub.pools.copy import remove_tree
from ubhost.errors import Exhausted, HostFault, Unsupported
from ubhost.kernel import btrfs

_OVERHEAD = 64 << 10  # bytes: the subvolume's own tree and the driver's folders, not the user's


class BtrfsSpace:
    has_quota = True
    is_atomic = True

    def check(self, pool: Path) -> None:
        if not btrfs.is_btrfs(pool):
            raise Unsupported(f"{pool} is not on btrfs: make it there, or use a pool of type dir")
        try:
            btrfs.enable_quota(pool)
        except OSError as error:
            raise Unsupported(f"quotas of {pool} cannot be switched on: {error.strerror}") from error

    def make(self, share: Path, size: int) -> None:
        try:
            btrfs.make_subvolume(share)
            self._limit(share, size)
        except OSError as error:
            raise _fault("make", share, error) from error

    def copy(self, source: Path, share: Path, size: int) -> None:
        try:
            btrfs.snapshot(source, share)
            self._limit(share, size)
        except OSError as error:
            raise _fault("copy to", share, error) from error

    def resize(self, share: Path, size: int) -> None:
        try:
            self._limit(share, size)
        except OSError as error:
            raise _fault("resize", share, error) from error

    def usage(self, share: Path, size: int) -> Usage:
        try:
            used = btrfs.referenced(share)
            found = os.statvfs(share)
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
        if not btrfs.is_subvolume(share):
            remove_tree(share)  # made before the pool was one of btrfs, or not there
            return
        try:
            btrfs.remove_subvolume(share)
        except OSError as error:
            raise _fault("remove", share, error) from error

    def _limit(self, share: Path, size: int) -> None:
        btrfs.limit(share, size + _OVERHEAD if size else 0)


def _fault(what: str, path: Path, error: OSError) -> HostFault | Exhausted:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Exhausted(f"no space to {what} {path}")
    return HostFault(f"cannot {what} {path}: {error.strerror}")
