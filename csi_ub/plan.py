"""Which steps bring a mount about, or take it away: pure functions of what is wanted and what is there."""

from dataclasses import dataclass
from enum import Enum

from csi_ub.mountflags import OPTIONS
from csi_ub.reasons import InUse
from csi_ub.steps import Bind, File, Folder, MountStep
from ubhost.errors import Conflict
from ubhost.mounttable import Attribute, Mount, Origin


class Entry(Enum):
    """What a path names when nothing is mounted on it."""

    MISSING = "missing"
    FOLDER = "folder"
    FILE = "file"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is at a target path now; ``mounts`` from bottom to top."""

    entry: Entry
    mounts: tuple[Mount, ...] = ()


def attributes_of(mount: Mount) -> Attribute:
    """Return those attributes of ``mount`` that we set."""
    found = Attribute(0)
    for option, attribute in OPTIONS.items():
        if option in mount.options:
            found |= attribute
    return found


def plan_mount(want: Bind, seen: Seen, dead: frozenset[Origin] = frozenset()) -> tuple[MountStep, ...]:
    """Return the steps that mount ``want``, in order; none if exactly that is mounted.

    ``dead`` are origins of the same volume whose daemon died: their mounts are taken away first.

    Raises:
        Conflict: something else is mounted there, or the path is no folder.
    """
    covered = list(seen.mounts)
    corpses: list[MountStep] = []
    while covered and covered[-1].origin in dead:  # from the top: unmounting takes what lies there
        corpses.append(_without(covered.pop(), want.target, lazy=True))
    if corpses and not covered:
        return (*corpses, want)
    if covered:
        top = covered[-1]
        if top.origin != want.origin:
            raise Conflict(f"{want.target} carries a mount of {top.origin.root} ({top.fstype}), not this volume")
        if attributes_of(top) != want.attributes:
            raise Conflict(f"{want.target} carries this volume with other options: {','.join(sorted(top.options))}")
        return (*corpses, *_without_copies(want, covered))
    if seen.entry is Entry.MISSING:
        return (File(want.target) if want.is_device else Folder(want.target), want)
    if seen.entry is not (Entry.FILE if want.is_device else Entry.FOLDER):
        raise Conflict(f"{want.target} exists and is not a {'file' if want.is_device else 'folder'}")
    return (want,)


def plan_unmount(
    target: str,
    seen: Seen,
    ours: frozenset[Origin],
    *,
    remove: bool,
    dead: frozenset[Origin] = frozenset(),
    is_device: bool = False,
) -> tuple[MountStep, ...]:
    """Return the steps that unmount all of ``ours`` from ``target`` and, if ``remove``, its mount point too.

    The mount point of a device is a file. Mounts of ``dead`` daemons are taken away even if they are in use: nobody can
    use them.

    Raises:
        InUse: something that is not ours is mounted there, or is what the path names; it stays.
    """
    for mount in seen.mounts:
        if mount.origin not in ours | dead:
            raise InUse(f"{target} carries a mount of {mount.origin.root} ({mount.fstype}) that is not this volume's")
    steps: list[MountStep] = [_without(it, target, lazy=it.origin in dead) for it in reversed(seen.mounts)]
    if not remove or (not seen.mounts and seen.entry is Entry.MISSING):
        return tuple(steps)
    kind, entry = ("file", Entry.FILE) if is_device else ("folder", Entry.FOLDER)
    if not seen.mounts and seen.entry is not entry:
        raise InUse(
            f"{target} is no {kind} of ours, so it stays: the volume is published at a {kind}. Remove it by hand"
        )
    return (*steps, File(target, exists=False) if is_device else Folder(target, exists=False))


def _without_copies(want: Bind, mounts: list[Mount]) -> tuple[MountStep, ...]:
    """Return the steps that leave one of several equal mounts; where they differ the topmost is what pods see."""
    if any(each.origin != want.origin or attributes_of(each) != want.attributes for each in mounts):
        return ()
    return tuple(_without(mount, want.target) for mount in reversed(mounts[1:]))


def _without(mount: Mount, target: str, *, lazy: bool = False) -> Bind:
    return Bind(target, mount.origin, attributes_of(mount), attached=False, lazy=lazy)
