"""How much shared memory a volume gets, and how much the claims of one namespace may have together. Pure."""

import hashlib
from collections.abc import Mapping

from csi_ub.reasons import OutOfRange
from ubhost.errors import Exhausted
from ubhost.ubse.memory import MAX_SIZE
from ubhost.ubse.shm import BLOCK

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


def quota(namespace: str, quotas: Mapping[str, int]) -> int | None:
    """Return the bytes that the claims of a namespace may have; ``None`` if nobody bounds them."""
    return quotas.get(namespace, quotas.get(EVERY_OTHER))


def refuse_over_quota(namespace: str, size: int, used: int, quotas: Mapping[str, int]) -> None:
    """Raise ``Exhausted`` if ``size`` bytes more than the ``used`` are more than the namespace may have."""
    most = quota(namespace, quotas)
    if most is not None and used + size > most:
        raise Exhausted(
            f"namespace {namespace!r} has {used} bytes of shared memory, {size} more are over its quota of {most}"
        )
