"""What the mount table of a process says: plain values, no input or output.

``ubhost.kernel.mountinfo`` reads it, ``ubhost.kernel.mounts`` changes it. Source: proc_pid_mountinfo(5).
"""

from dataclasses import dataclass
from enum import IntFlag


class Attribute(IntFlag):
    """What may be set on one mount without touching its file system. Numbers: MOUNT_ATTR_*."""

    RDONLY = 0x01
    NOSUID = 0x02
    NODEV = 0x04
    NOEXEC = 0x08
    NOATIME = 0x10
    NODIRATIME = 0x80
    NOSYMFOLLOW = 0x200000


@dataclass(frozen=True, slots=True)
class Origin:
    """What a mount shows: directory ``root`` of the file system ``device`` (``major:minor``).

    A bind mount and the directory it was made of have the same origin.
    """

    device: str
    root: str


@dataclass(frozen=True, slots=True)
class Mount:
    """One line. ``options`` belong to this mount, ``super_options`` to its file system."""

    id: int
    parent: int
    origin: Origin
    target: str
    options: frozenset[str]
    tags: tuple[str, ...]  # "shared:3", "master:2"
    fstype: str
    source: str
    super_options: frozenset[str]

    @property
    def is_read_only(self) -> bool:
        return "ro" in self.options or "ro" in self.super_options

    @property
    def is_shared(self) -> bool:
        return any(tag.startswith("shared:") for tag in self.tags)

    @property
    def is_slave(self) -> bool:
        """Whether mounts made here stay unseen by the namespace it was copied from."""
        return not self.is_shared and any(tag.startswith("master:") for tag in self.tags)
