"""How much shared memory a volume gets, and how much the claims of one namespace may have together. Pure."""

import hashlib
from collections.abc import Iterable, Mapping

from csi_ub.reasons import OutOfRange
from ubhost.errors import Exhausted
from ubhost.ubse.memory import MAX_SIZE
from ubhost.ubse.shm import BLOCK, Shm

EVERY_OTHER = "*"
_INFO = 32  # bytes that UBSE keeps for us with each region


def rounded(size: int, limit: int) -> int:
    """Return the bytes of a volume that must have ``size``: whole blocks, at least one.

    Raises:
        OutOfRange: that is more than ``limit`` (0: none), or than UBSE gives.
    """
    whole = max(1, -(-size // BLOCK)) * BLOCK
    if limit and whole > limit:
        raise OutOfRange(f"shared memory comes in blocks of {BLOCK} bytes: {whole} are needed, the limit is {limit}")
    if whole > MAX_SIZE:
        raise OutOfRange(f"{whole} bytes of shared memory are more than the {MAX_SIZE} of UBSE")
    return whole


def tag(namespace: str) -> str:
    """Return the name of a namespace as UBSE keeps it beside a region, where longer ones do not fit."""
    return namespace if len(namespace.encode()) <= _INFO else hashlib.sha256(namespace.encode()).hexdigest()[:_INFO]


def refuse_over_quota(namespace: str, size: int, regions: Iterable[Shm], quotas: Mapping[str, int]) -> None:
    """Raise ``Exhausted`` if ``size`` bytes more than ``regions`` have are more than the namespace may have."""
    quota = quotas.get(namespace, quotas.get(EVERY_OTHER))
    if quota is None:
        return
    used = sum(region.size for region in regions if region.info == tag(namespace))
    if used + size > quota:
        raise Exhausted(
            f"namespace {namespace!r} has {used} bytes of shared memory, {size} more are over its quota of {quota}"
        )
