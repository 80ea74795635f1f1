"""What the space of a pool can do: one module for each kind of pool."""

from pathlib import Path

from csi_ub.config import PoolType
from csi_ub.pools.base import Space
from csi_ub.pools.btrfs import BtrfsSpace
from csi_ub.pools.directory import DirectorySpace
from csi_ub.pools.lvm import LvmSpace
from csi_ub.pools.thin import Thin
from csi_ub.pools.xfs import XfsSpace
from ubhost.kernel import btrfs, xfs


def space(kind: PoolType, thin_pool: str | None = None) -> Space:
    """Return the operations for pools of ``kind``; ``thin_pool`` (GROUP/POOL) is what those of type lvm are made of."""
    match kind:
        case PoolType.DIR:
            return DirectorySpace()
        case PoolType.BTRFS:
            return BtrfsSpace()
        case PoolType.XFS:
            return XfsSpace()
        case PoolType.LVM:
            group, _, pool = (thin_pool or "").partition("/")
            return LvmSpace(Thin(group, pool))


def kind_of(path: Path) -> PoolType:
    """Return the kind of a pool whose configuration we do not have, from what it lies on.

    The shares of one of type lvm are mounted by its own node; to others they are directories.
    """
    if btrfs.is_btrfs(path):
        return PoolType.BTRFS
    return PoolType.XFS if xfs.enforces_projects(path) else PoolType.DIR
