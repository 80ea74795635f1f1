"""What is mounted where: /proc/self/mountinfo, the only truth about mounts.

``os.path.ismount`` does not see bind mounts of the same file system and fails on a dead FUSE mount; this does not
touch the mounts at all. Source: proc_pid_mountinfo(5).
"""

import os
import re
from collections.abc import Container, Iterable
from functools import lru_cache
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.mounttable import Mount as Mount
from ubhost.mounttable import Origin as Origin

_FILE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def read(path: Path = _FILE) -> tuple[Mount, ...]:
    """Return every mount that this process sees.

    Raises:
        HostFault: /proc cannot be read, or a line has another form.
    """
    return parse(_text(path))


def read_at(*targets: Path, path: Path = _FILE) -> tuple[Mount, ...]:
    """Return the mounts on ``targets`` (resolved paths) and on the folders above them.

    They are few on a node with thousands of mounts, which take milliseconds to read; see ``read``.
    """
    wanted = set[str]()
    for text in map(os.fspath, targets):
        while text not in wanted:
            wanted.add(text)
            text = text.rpartition("/")[0] or "/"
    return parse(_text(path), wanted)


def parse(text: str, targets: Container[str] | None = None) -> tuple[Mount, ...]:
    """Return the mounts of a mountinfo text, in its order; only those on ``targets`` if they are given.

    Raises:
        HostFault: a line has another form; the message quotes it.
    """
    lines = text.split("\n")[:-1]  # splitlines() knows more ends of a line than the kernel does
    return tuple(_line(line) for line in lines if targets is None or _target(line) in targets)


def at(mounts: Iterable[Mount], target: Path) -> tuple[Mount, ...]:
    """Return the mounts on ``target`` (a resolved path), the topmost last."""
    wanted = os.fspath(target)
    stack = [mount for mount in mounts if mount.target == wanted]
    covered = {mount.parent for mount in stack}
    return tuple(sorted(stack, key=lambda mount: (mount.id not in covered, mount.id)))


def below(mounts: Iterable[Mount], folder: Path) -> tuple[Mount, ...]:
    """Return the mounts on ``folder`` and on anything inside it."""
    wanted = os.fspath(folder)
    return tuple(mount for mount in mounts if mount.target == wanted or mount.target.startswith(f"{wanted}/"))


def containing(mounts: Iterable[Mount], path: Path) -> Mount:
    """Return the mount that ``path`` (resolved) lies on."""
    text = os.fspath(path)
    over = [m for m in mounts if m.target in ("/", text) or text.startswith(f"{m.target}/")]
    longest = max(len(mount.target) for mount in over)
    return at(over, Path(next(m.target for m in over if len(m.target) == longest)))[-1]


def origin(mounts: Iterable[Mount], descriptor: int) -> Origin:
    """Return what a mount of the directory that ``descriptor`` is open on would show.

    Raises:
        HostFault: the directory was deleted, or lies on a mount that was.
    """
    path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    info = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    mount_id = int(next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:")))
    mount = next((mount for mount in mounts if mount.id == mount_id), None)
    if mount is None or path.endswith(" (deleted)"):
        raise HostFault(f"{path} lies on no mount that we see")
    inside = os.path.relpath(path, mount.target)
    return Origin(mount.origin.device, os.path.normpath(Path(mount.origin.root) / inside))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise HostFault(f"cannot read {path}: {error.strerror}") from error


def _target(line: str) -> str:
    fields = line.split(" ", 5)
    if len(fields) < 6:
        raise _unknown(line)
    return _plain(fields[4])


def _line(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    try:
        id_, parent, device, root, target, options, *tags = before.split(" ")
        fstype, source, super_options = after.split(" ")
        return Mount(
            id=int(id_),
            parent=int(parent),
            origin=Origin(device, _plain(root)),
            target=_plain(target),
            options=_options(options),
            tags=tuple(tags),
            fstype=fstype,
            source=_plain(source),
            super_options=_options(super_options),
        )
    except ValueError as error:
        raise _unknown(line) from error


def _unknown(line: str) -> HostFault:
    return HostFault(f"mountinfo has a line of unknown form: {line!r}")


@lru_cache(1024)  # a node has thousands of mounts, and few ways to mount; a call that is waited for reads them all
def _options(text: str) -> frozenset[str]:
    return frozenset(text.split(","))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
