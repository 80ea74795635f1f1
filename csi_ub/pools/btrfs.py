"""A pool on btrfs: a subvolume for each volume, a quota that holds, snapshots and clones in no time and no space.

The size of a volume is enforced by a quota group: a write over it fails with EDQUOT. What is used is read from the
quota group too, because statvfs(3) of a subvolume shows the whole pool.
"""

from pathlib import Path

from csi_ub.pools.base import Folders, Usage, doing, free, usage_by_quota
from csi_ub.pools.copy import remove_tree
from ubhost.errors import Unsupported
from ubhost.kernel import btrfs

_OVERHEAD = 64 << 10  # bytes: the subvolume's own tree and the driver's folders, not the user's


class BtrfsSpace(Folders):
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
        with doing("make", share):
            btrfs.make_subvolume(share)
            self._limit(share, size)

    def copy(self, source: Path, share: Path, size: int) -> None:
        with doing("copy to", share):
            btrfs.snapshot(source, share)
            self._limit(share, size)

    def resize(self, share: Path, size: int) -> None:
        with doing("resize", share):
            self._limit(share, size)

    def usage(self, share: Path, size: int) -> Usage:
        with doing("ask for the space of", share):
            used = btrfs.referenced(share)
        return usage_by_quota(share, size, used)

    def available(self, pool: Path) -> int:
        return free(pool)

    def remove(self, share: Path) -> None:
        if not btrfs.is_subvolume(share):
            remove_tree(share)  # made before the pool was one of btrfs, or not there
            return
        with doing("remove", share):
            btrfs.remove_subvolume(share)

    def _limit(self, share: Path, size: int) -> None:
        btrfs.limit(share, size + _OVERHEAD if size else 0)
