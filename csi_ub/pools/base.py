"""The operations that differ between kinds of pools, and what they have in common."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ubhost.errors import Exhausted, HostFault


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a volume; ``total`` is its quota, or the size of the file system where there is none."""

    used: int
    total: int

    @property
    def available(self) -> int:
        return max(0, self.total - self.used)


class Space(Protocol):
    """Makes and removes the ``share`` of a volume or a snapshot: the folder that holds its bytes.

    ``has_quota``: volumes cannot grow over their size. ``is_atomic``: a copy shows one moment, even while somebody
    writes. Every method may raise ``HostFault``.
    """

    has_quota: bool
    is_atomic: bool
    has_mounts: bool
    """A share is a file system of its own, mounted at its folder."""

    def rounded(self, size: int, limit: int) -> int:
        """Return the bytes that a volume of ``size`` bytes (0: not said) gets, at most ``limit`` (0: none).

        Raises:
            OutOfRange: none of the sizes that can be had is in that range.
        """

    def room_for_device(self, size: int) -> int:
        """Return the bytes that a share must have for a device of ``size`` bytes; 0 if it needs no limit."""

    def bring(self, share: Path) -> bool:
        """See that the bytes of ``share`` are there; return whether they had to be brought, after a reboot."""

    def check(self, pool: Path) -> None:
        """Raise ``Unsupported`` if the file system of ``pool`` cannot do what this kind of pool needs."""

    def make(self, share: Path, size: int) -> None:
        """Make an empty ``share`` for at most ``size`` bytes (0: no limit)."""

    def copy(self, source: Path, share: Path, size: int) -> None:
        """Make ``share`` hold what ``source`` holds, for at most ``size`` bytes (0: no limit).

        Raises:
            Exhausted: no space for the copy.
        """

    def resize(self, share: Path, size: int) -> None:
        """Let ``share`` grow to ``size`` bytes."""

    def usage(self, share: Path, size: int) -> Usage:
        """Return how much of ``share``, made for ``size`` bytes, is used."""

    def available(self, pool: Path) -> int:
        """Return the bytes that new volumes of ``pool`` may have in all; never negative."""

    def remove(self, share: Path) -> None:
        """Remove ``share`` with all it holds; it may be gone in part or whole."""


class Folders:
    """What is common to spaces whose shares are folders of one file system."""

    has_mounts = False

    def rounded(self, size: int, limit: int) -> int:
        return size

    def room_for_device(self, size: int) -> int:
        """A file never grows by itself."""
        return 0

    def bring(self, share: Path) -> bool:
        return False


@contextmanager
def doing(what: str, path: Path) -> Iterator[None]:
    """Name what was done to ``path`` in what the kernel refuses.

    Raises:
        Exhausted: the disk or a quota is full.
        HostFault: anything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Exhausted(f"no space to {what} {path}") from error
        raise HostFault(f"cannot {what} {path}: {error.strerror}") from error


def disk(path: Path) -> os.statvfs_result:
    """Return the space of the file system that ``path`` lies on."""
    with doing("ask for the space of", path):
        return os.statvfs(path)


def free(pool: Path) -> int:
    """Return the bytes that are left on the file system of ``pool``."""
    found = disk(pool)
    return found.f_bavail * found.f_frsize


def usage_by_quota(share: Path, size: int, used: int) -> Usage:
    """Return the usage of a ``share`` for at most ``size`` bytes (0: no limit), of which its quota counts ``used``."""
    found = disk(share)
    total = size or found.f_blocks * found.f_frsize
    return Usage(min(used, total), total)
