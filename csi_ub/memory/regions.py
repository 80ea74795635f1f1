"""Which shared memory a new volume gets: the smallest region that fits, whole. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from csi_ub.model import Consistency
from csi_ub.reasons import OutOfRange
from ubhost.errors import Exhausted, Unsupported


@dataclass(frozen=True, slots=True)
class Region:
    """``size`` in bytes, ``None`` if that cannot be told here; ``holder`` says why it is not to be had, or is ""."""

    name: str
    size: int | None
    is_coherent: bool
    holder: str = ""

    def __str__(self) -> str:
        size = "a size unknown here" if self.size is None else f"{self.size} bytes"
        return f"{self.name} ({size}{', ' if self.holder else ''}{self.holder})"

    def fits(self, least: int, most: int) -> bool:
        return self.size is None or (self.size >= least and (most == 0 or self.size <= most))

    def keeps(self, consistency: Consistency) -> bool:
        """Whether it can be what is promised: no driver makes memory coherent that the hardware does not."""
        return self.is_coherent or consistency is Consistency.EVENTUAL


def choose(regions: Sequence[Region], least: int, most: int, consistency: Consistency) -> Region:
    """Return the region for a volume of ``least`` to ``most`` bytes (0: no bound).

    Raises:
        Unsupported: none keeps that promise.
        OutOfRange: none is of such a size.
        Exhausted: those that are have others, or are another node's to give.
    """
    known = ", ".join(map(str, regions)) or "none"
    keeping = [region for region in regions if region.keeps(consistency)]
    if regions and not keeping:
        raise Unsupported(
            f"consistency strong needs memory that the hardware keeps alike on all nodes (coherent: true); of this "
            f"super-node's none is said to be so: {known}"
        )
    fitting = [region for region in keeping if region.fits(least, most)]
    free = [region for region in fitting if region.size is not None and not region.holder]
    if free:  # coherent memory is kept for those that need it
        return min(free, key=lambda region: (region.size, region.is_coherent, region.name))
    wanted = f"{least} bytes{f' to {most}' if most else ''}"
    if fitting:
        raise Exhausted(f"no shared memory of {wanted} is free on this node, which gives a region whole: {known}")
    raise OutOfRange(f"no shared memory has {wanted}, and a volume is a region, whole: {known}")
