"""What the space of a pool can do: one module for each kind of pool."""

from csi_ub.config import PoolType
from csi_ub.pools.base import Space
from csi_ub.pools.btrfs import BtrfsSpace
from csi_ub.pools.directory import DirectorySpace


def space(kind: PoolType) -> Space:
    """Return the operations for pools of ``kind``."""
    match kind:
        case PoolType.DIR:
            return DirectorySpace()
        case PoolType.BTRFS:
            return BtrfsSpace()
