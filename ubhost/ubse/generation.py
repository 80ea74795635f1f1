"""Generations of UBSE's protocol."""

from enum import Enum


class Generation(Enum):
    """Which protocol a UBSE speaks: the numbers of modules and operations changed between releases."""

    KNOWN = "known"
    NEWER = "newer"  # modules NODE 3, URMA 5
    UNKNOWN = "unknown"
