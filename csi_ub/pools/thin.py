"""Thin volumes of LVM: what there is, which changes bring one about, and the programs that make them.

A file system is found out by the superblock of ext4, its size too: what ``resize2fs`` has done is read from the disk.

Source: lvs(8) and its JSON report, lvcreate(8), lvmthin(7); Linux Documentation/filesystems/ext4/super.rst.
"""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from csi_ub import programs
from csi_ub.pools.base import doing
from ubhost.errors import Exhausted, HostFault, Unsupported
from ubhost.kernel import mounts

TAG = "ub-csi"  # for people who look at lvs
_PROGRAMS = ("lvs", "lvcreate", "lvextend", "lvremove", "lvchange", "mkfs.ext4", "resize2fs")
_COLUMNS = "lv_name,lv_size,lv_attr,lv_active,lv_dm_path,data_percent,metadata_percent,vg_extent_size"
_SUPERBLOCK, _MAGIC = 1024, 0xEF53
# No blocks for root; no discard of what was never written; as many inodes in a small file system as in a large one.
_FORMAT = ("-m", "0", "-b", "4096", "-i", "16384", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1")
_SLACK = 4 << 20  # bytes: ext4 leaves a last group unused that has no room for its own tables
_LONG_S = 120.0  # seconds: LVM waits for its own locks, and one that is ended at work leaves them to be repaired
_DISCARD = "discard"  # what a pod deletes goes back to the pool


@dataclass(frozen=True, slots=True)
class Disk:
    """A thin volume: ``size`` in bytes; ``filled`` are those of its file system, 0 if there is none to be seen."""

    name: str
    size: int
    device: str
    is_active: bool
    filled: int = 0


@dataclass(frozen=True, slots=True)
class ThinPool:
    """The pool that thin volumes take their blocks from; sizes in bytes, shares of one."""

    size: int
    extent: int
    data: float
    metadata: float


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Clone:
    """A new thin volume that shares all blocks with ``origin``, as it is at this moment."""

    name: str
    origin: str


@dataclass(frozen=True, slots=True)
class Activate:
    name: str


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Extend:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Mount:
    device: str
    target: str


@dataclass(frozen=True, slots=True)
class Fill:
    """Let the mounted file system have all of its thin volume."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Remove:
    name: str


ThinStep = Create | Clone | Activate | Format | Extend | Mount | Fill | Remove


@dataclass(frozen=True, slots=True)
class Thin:
    """The thin pool ``pool`` of volume group ``group``."""

    group: str
    pool: str

    def check(self) -> None:
        """Raise ``Unsupported`` if this node lacks what thin volumes need."""
        for program in _PROGRAMS:
            programs.find(program)
        try:
            self.state()
        except HostFault as error:
            raise Unsupported(f"{self.group}/{self.pool} cannot give thin volumes: {error}") from error

    def state(self) -> ThinPool:
        """Return what the thin pool has.

        Raises:
            HostFault: there is none of this name, or LVM cannot say.
        """
        found = self._report(self.pool)
        if found is None or not found["lv_attr"].startswith("t"):
            raise HostFault(f"{self.group}/{self.pool} is no thin pool: make one by lvcreate --type thin-pool")
        if not found["data_percent"]:  # whether the pool's own device is there says nothing, only its volumes need be
            raise HostFault(f"thin pool {self.group}/{self.pool} is not active: lvchange -ay {self.group}/{self.pool}")
        used = _share(found["data_percent"]), _share(found["metadata_percent"])
        return ThinPool(int(found["lv_size"]), int(found["vg_extent_size"]), *used)

    def find(self, name: str) -> Disk | None:
        """Return a thin volume, or ``None``."""
        found = self._report(name)
        if found is None:
            return None
        device, is_active = found["lv_dm_path"], bool(found["lv_active"])
        return Disk(name, int(found["lv_size"]), device, is_active, filled(Path(device)) if is_active else 0)

    def do(self, step: ThinStep, lock: int) -> None:
        """Make one change. The programs that do it keep the descriptor ``lock`` open, so it is held until they end.

        Raises:
            Exhausted: the thin pool is full.
            HostFault: LVM or the kernel refused.
        """
        match step:
            case Create(name, size):
                self._lvm(
                    lock, "lvcreate", "--thinpool", self.pool, "-V", _sectors(size), "-y", *self._new(name), self.group
                )
            case Clone(name, origin):
                # Snapshots are left inactive at boot, and when they are made, unless they are told not to be.
                self._lvm(lock, "lvcreate", "-s", "-kn", "-ay", *self._new(name), f"{self.group}/{origin}")
            case Activate(name):
                self._lvm(lock, "lvchange", "-ay", "-K", f"{self.group}/{name}")
            case Format(_, device):
                programs.run(["mkfs.ext4", "-q", "-F", *_FORMAT, device], timeout_s=_LONG_S, keeps=lock)
            case Extend(name, size):
                self._lvm(lock, "lvextend", "-L", _sectors(size), f"{self.group}/{name}")
            case Mount(device, target):
                with doing(f"mount {device} at", Path(target)):
                    mounts.mount(device, Path(target), "ext4", _DISCARD)
            case Fill(_, device):
                programs.run(["resize2fs", device], timeout_s=_LONG_S, keeps=lock)
            case Remove(name):
                self._lvm(lock, "lvremove", "-y", f"{self.group}/{name}")

    def _new(self, name: str) -> tuple[str, ...]:
        return "-n", name, "--addtag", TAG

    def _lvm(self, lock: int, *command: str) -> None:
        try:
            programs.run(command, timeout_s=_LONG_S, keeps=lock)
        except HostFault as error:
            if any(word in str(error) for word in ("free space", "threshold", "out of data space")):
                raise Exhausted(f"thin pool {self.group}/{self.pool} is full: {error}") from error
            raise

    def _report(self, name: str) -> Mapping[str, str] | None:
        """Return the columns of one logical volume, as text, or ``None`` if there is no such one."""
        wanted = ("-o", _COLUMNS, "-S", f'lv_name="{name}"', self.group)
        text = programs.run(
            ("lvs", "--reportformat", "json", "--units", "b", "--nosuffix", *wanted), timeout_s=_LONG_S, is_report=True
        )
        try:
            (report,) = json.loads(text)["report"]
            rows = [{str(key): str(value) for key, value in row.items()} for row in report["lv"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HostFault(f"lvs answered what is no report of it: {text[:200]!r}") from error
        return next((row for row in rows if row.get("lv_name") == name and set(_COLUMNS.split(",")) <= set(row)), None)


def filled(device: Path) -> int:
    """Return the bytes of the ext4 on a device; 0 if there is none."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            block = os.pread(descriptor, 1024, _SUPERBLOCK)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HostFault(f"cannot read {device}: {error.strerror}") from error
    if len(block) < 1024 or struct.unpack_from("<H", block, 0x38)[0] != _MAGIC:
        return 0
    low, log_size, high = (struct.unpack_from("<I", block, at)[0] for at in (0x04, 0x18, 0x150))
    return int((high << 32 | low) << (10 + log_size))


def plan_new(name: str, size: int, seen: Disk | None) -> tuple[ThinStep, ...]:
    """Return the next steps to an empty thin volume of at least ``size`` bytes; none if it is there."""
    if seen is None:
        return (Create(name, size),)
    if not seen.is_active:
        return (Activate(name),)
    return () if seen.filled else (Format(name, seen.device),)


def plan_copy(name: str, size: int, origin: Disk, seen: Disk | None) -> tuple[ThinStep, ...]:
    """Return the next steps to a copy of ``origin``, with at least ``size`` bytes; none if it is there.

    Its file system fills it when it is mounted.
    """
    if seen is None:
        return (Clone(name, origin.name),)
    return (Extend(name, size),) if seen.size < size else ()


def plan_mounted(seen: Disk, target: str, *, is_mounted: bool) -> tuple[ThinStep, ...]:
    """Return the next steps after which a thin volume is mounted and its file system fills it; none if that is so."""
    if not seen.is_active:
        return (Activate(seen.name),)
    if not is_mounted:
        return (Mount(seen.device, target),)
    return () if _is_whole(seen) else (Fill(seen.name, seen.device),)


def plan_larger(size: int, seen: Disk) -> tuple[ThinStep, ...]:
    """Return the steps that let a mounted thin volume, and its file system, have ``size`` bytes; none if they do."""
    if seen.size < size:
        return Extend(seen.name, size), Fill(seen.name, seen.device)
    return () if _is_whole(seen) else (Fill(seen.name, seen.device),)


def _is_whole(seen: Disk) -> bool:
    return seen.size - seen.filled < _SLACK


def _sectors(size: int) -> str:
    """Return a size as LVM takes it, which refuses bytes that are no whole sectors; it rounds up to extents itself."""
    return f"{-(-size // 512)}s"


def _share(percent: str) -> float:
    """Return a share of one; a locale may write a comma."""
    try:
        return float(percent.replace(",", ".")) / 100
    except ValueError as error:
        raise HostFault(f"lvs says {percent!r} where a percentage should be") from error
