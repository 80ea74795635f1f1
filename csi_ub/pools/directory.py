"""A pool in a plain directory: works on every file system, and limits nobody."""

from pathlib import Path

from csi_ub.pools.base import Folders, Usage, disk, doing, free
from csi_ub.pools.copy import copy_tree, remove_tree


class DirectorySpace(Folders):
    """Volumes are folders. There is no quota: the sizes of its volumes are reported as unknown."""

    has_quota = False
    is_atomic = False

    def check(self, pool: Path) -> None:
        """Any directory will do."""

    def make(self, share: Path, size: int) -> None:
        with doing("make", share):
            share.mkdir(mode=0o700)

    def copy(self, source: Path, share: Path, size: int) -> None:
        copy_tree(source, share)

    def resize(self, share: Path, size: int) -> None:
        """There is no limit to lift."""

    def usage(self, share: Path, size: int) -> Usage:
        """Return the numbers of the whole file system: nobody counts what one folder holds."""
        found = disk(share)
        return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize)

    def available(self, pool: Path) -> int:
        return free(pool)

    def remove(self, share: Path) -> None:
        remove_tree(share)
