"""A pool in a plain directory: works on every file system, and limits nobody."""

import os
from pathlib import Path

from csi_ub.pools.base import Usage
from csi_ub.pools.copy import copy_tree, remove_tree
from ubhost.errors import HostFault


class DirectorySpace:
    """Volumes are folders. There is no quota: the sizes of its volumes are reported as unknown."""

    has_quota = False
    is_atomic = False

    def check(self, pool: Path) -> None:
        """Any directory will do."""

    def make(self, share: Path, size: int) -> None:
        try:
            share.mkdir(mode=0o700)
        except OSError as error:
            raise HostFault(f"cannot make {share}: {error.strerror}") from error

    def copy(self, source: Path, share: Path, size: int) -> None:
        copy_tree(source, share)

    def resize(self, share: Path, size: int) -> None:
        """There is no limit to lift."""

    def usage(self, share: Path, size: int) -> Usage:
        """Return the numbers of the whole file system: nobody counts what one folder holds."""
        try:
            found = os.statvfs(share)
        except OSError as error:
            raise HostFault(f"cannot ask for the space of {share}: {error.strerror}") from error
        return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize)

    def available(self, pool: Path) -> int:
        try:
            found = os.statvfs(pool)
        except OSError as error:
            raise HostFault(f"cannot ask for the space of {pool}: {error.strerror}") from error
        return found.f_bavail * found.f_frsize

    def remove(self, share: Path) -> None:
        remove_tree(share)
