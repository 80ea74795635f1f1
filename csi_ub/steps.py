"""The changes a node makes for a volume. Each is done wholly or not at all, and can be taken back."""

from dataclasses import dataclass, replace

from ubhost.mounttable import Attribute, Origin


@dataclass(frozen=True, slots=True)
class Folder:
    """The mount point ``path`` exists, or does not. Only an empty folder is ever removed."""

    path: str
    exists: bool = True

    def undo(self) -> "Folder":
        return replace(self, exists=not self.exists)


@dataclass(frozen=True, slots=True)
class File:
    """The mount point ``path`` of a device exists, or does not. Only an empty file is ever removed."""

    path: str
    exists: bool = True

    def undo(self) -> "File":
        return replace(self, exists=not self.exists)


@dataclass(frozen=True, slots=True)
class Bind:
    """``target`` shows ``origin``, with ``attributes`` on this mount alone; or no longer.

    ``lazy`` takes a mount away whose daemon is dead, whoever has files open on it. A device is shown at a file.
    """

    target: str
    origin: Origin
    attributes: Attribute
    attached: bool = True
    lazy: bool = False
    is_device: bool = False

    def undo(self) -> "Bind":
        return replace(self, attached=not self.attached)


MountStep = Folder | File | Bind
