"""A pool of LVM: a thin volume with an ext4 of its own for each volume, snapshots and clones in no time and no space.

The pool's directory has the records, as that of every pool, and the mount points: a ``share`` is where its file system
is mounted. A thin volume is called like what it is for, which the path of the share tells, so there is no second list
of them: a driver that was killed finds its own, and what is swept out takes its thin volume along. After a reboot a
share is brought when it is first asked for; until then nobody finds anything in its folder.

The size of a volume is that of its thin volume, and a write over it fails with ENOSPC; the tables of ext4 count
against it. A snapshot that is taken of a volume in use is of one moment: the kernel holds its file system still.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from csi_ub.pools import thin
from csi_ub.pools.base import Usage, disk, doing
from csi_ub.pools.thin import Disk, Remove, Thin, ThinStep
from csi_ub.reasons import OutOfRange
from ubhost.errors import HostFault, NotFound
from ubhost.kernel import mounts

_USUAL, _SMALLEST = 1 << 30, 16 << 20  # bytes: of a volume whose claim names no size; what ext4 needs to be of use
_FULL = 0.95  # of the thin pool's metadata: without any left it is read-only until somebody repairs it
_CLOSE_S = 3.0  # for which a folder may be open that somebody just looks at
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class LvmSpace:
    thin: Thin
    has_quota = True
    is_atomic = True
    has_mounts = True

    def check(self, pool: Path) -> None:
        self.thin.check()

    def rounded(self, size: int, limit: int) -> int:
        extent = self.thin.state().extent
        whole = -(-max(size or min(_USUAL, limit or _USUAL), _SMALLEST) // extent) * extent
        if limit and whole > limit:
            raise OutOfRange(
                f"a volume in {self.thin.group} has whole extents of {extent} bytes and at least {_SMALLEST}: {whole} "
                f"is over {limit}"
            )
        return whole

    def room_for_device(self, size: int) -> int:
        """The tables of ext4 have room beside the device; blocks that nobody writes take no space."""
        return size + size // 16 + (64 << 20)

    def make(self, share: Path, size: int) -> None:
        with doing("make", share):
            share.mkdir(mode=0o700)
        name = name_of(share)
        with _alone(share) as lock:
            self._reach(name, lock, lambda seen: thin.plan_new(name, size or _USUAL, seen))
        self.bring(share)

    def copy(self, source: Path, share: Path, size: int) -> None:
        with doing("make", share):
            share.mkdir(mode=0o700)
        name, origin = name_of(share), self._known(source)
        with _alone(share) as lock:
            self._reach(name, lock, lambda seen: thin.plan_copy(name, size, origin, seen))

    def bring(self, share: Path) -> bool:
        if not share.is_dir() or _is_mounted(share):
            return False
        with _alone(share) as lock:
            if _is_mounted(share):
                return False
            name = name_of(share)

            def plan(seen: Disk | None) -> tuple[ThinStep, ...]:
                return thin.plan_mounted(_there(seen, name, self.thin), str(share), is_mounted=_is_mounted(share))

            self._reach(name, lock, plan)
        return True

    def resize(self, share: Path, size: int) -> None:
        self.bring(share)
        name = name_of(share)
        with _alone(share) as lock:
            self._reach(name, lock, lambda seen: thin.plan_larger(size, _there(seen, name, self.thin)))

    def usage(self, share: Path, size: int) -> Usage:
        """Return what a pod cannot have any more as used: the tables of ext4 too."""
        found = disk(share)
        total = size or found.f_blocks * found.f_frsize
        return Usage(max(0, total - found.f_bavail * found.f_frsize), total)

    def available(self, pool: Path) -> int:
        state = self.thin.state()
        return 0 if state.metadata >= _FULL else max(0, int(state.size * (1 - state.data)))

    def remove(self, share: Path) -> None:
        if not share.is_dir():
            return  # its folder goes last
        _unmount(share)
        name = name_of(share)
        with _alone(share) as lock:  # which a program holds that a killed driver left at work on it
            self._reach(name, lock, lambda seen: (Remove(name),) if seen else ())
        with doing("remove", share):
            share.rmdir()

    def _known(self, share: Path) -> Disk:
        name = name_of(share)
        return _there(self.thin.find(name), name, self.thin)

    def _reach(self, name: str, lock: int, plan: Callable[[Disk | None], tuple[ThinStep, ...]]) -> None:
        """Look, plan and do, until there is nothing to be done."""
        for _ in range(_ROUNDS):
            steps = plan(self.thin.find(name))
            if not steps:
                return
            for step in steps:
                self.thin.do(step, lock)
        raise HostFault(f"thin volume {self.thin.group}/{name} did not become what it should be in {_ROUNDS} tries")


def name_of(share: Path) -> str:
    """Return the name of the thin volume for a share: the id of what it belongs to.

    In the trash a random suffix follows the id; the members of a group are called by their own ids.
    """
    owner = share.parent.name.partition(".")[0]
    match share.name:
        case "share":
            return owner
        case "seed":
            return f"{owner}.seed"
        case member:
            return member


def _there(seen: Disk | None, name: str, of: Thin) -> Disk:
    if seen is None:
        raise NotFound(f"thin volume {of.group}/{name} has gone, and the bytes with it")
    return seen


def _is_mounted(share: Path) -> bool:
    with doing("look at", share):
        return share.stat().st_dev != share.parent.stat().st_dev


@contextmanager
def _alone(share: Path) -> Iterator[int]:
    """Hold a share: the folder below its mount, or its mounted root. Give the descriptor that does it."""
    with doing("lock", share):
        folder = os.open(share, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
        except BaseException:
            os.close(folder)
            raise
    try:
        yield folder
    finally:
        os.close(folder)


def _unmount(share: Path) -> None:
    """Unmount a share, which nobody uses, but somebody may look at just now.

    Raises:
        HostFault: a program keeps something open in it.
    """
    until = time.monotonic() + _CLOSE_S
    while _is_mounted(share):
        try:
            mounts.unmount(share)
        except OSError as error:
            if time.monotonic() > until:
                raise HostFault(f"{share} is still open in a process: {error.strerror}") from error
            time.sleep(_CLOSE_S / 50)
