"""The volumes of one pool, on disk.

    volumes/<id>/volume.json   the record: whoever can read it knows that the volume exists
    volumes/<id>/data/         the bytes
    volumes/<id>/nodes/        one attachment for each node that uses the volume
    names/<sha256>.json        which id a name has
    new/<id>/                  a volume under construction, flocked by its maker
    trash/<id>/                a volume being removed
    locks/                     see csi_ub.locks

A volume is built in ``new`` and comes into being by one rename into ``volumes``; it ceases to be by one rename into
``trash``. So a driver killed at any point leaves a whole volume or none, and rubbish that the next start sweeps out.
An id reaches the file system only if it has the form of our own ids, and is opened beneath ``volumes`` without
following symbolic links.
"""

import fcntl
import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from csi_ub.errors import InUse
from csi_ub.locks import hold
from csi_ub.model import Attachment, Volume, is_volume_id
from csi_ub.pools.base import Space
from csi_ub.pools.directory import remove_tree
from ubhost import statefile
from ubhost.errors import HostFault, NotFound
from ubhost.kernel import mountinfo
from ubhost.kernel.beneath import open_beneath, open_folder

_VERSION = 1
_FOLDERS = ("volumes", "names", "new", "trash", "locks")

log = logging.getLogger(__name__)


def owner_tag(node: str) -> str:
    """Return the part of a volume id that names its owner: any node can tell whose a volume is from the id alone."""
    return hashlib.sha256(node.encode()).hexdigest()[:12]


def is_owned_by(volume_id: str, node: str) -> bool:
    """Whether ``volume_id``, which has the form of our ids, was handed out by ``node``."""
    return volume_id.split("-")[1] == owner_tag(node)


class Pool:
    """One pool directory. Safe to be used by several threads and by several drivers of one machine at once."""

    def __init__(self, name: str, path: Path, space: Space) -> None:
        self.name = name
        self.path = path
        self.space = space

    def open(self) -> None:
        """Make the folders of the pool and sweep out what killed drivers left.

        Raises:
            HostFault: the pool directory is missing or cannot be written.
        """
        try:
            for folder in _FOLDERS:
                (self.path / folder).mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise HostFault(f"cannot use pool {self.name!r} at {self.path}: {error.strerror}") from error
        for unfinished in (self.path / "new").iterdir():
            if _is_abandoned(unfinished):
                log.info("sweeping out an unfinished volume", extra={"path": str(unfinished)})
                self._discard(unfinished)
        for dead in (self.path / "trash").iterdir():
            content = statefile.read(dead / "volume.json", _VERSION)
            if content is not None:
                self._forget_name(_volume(content, f"{dead}/volume.json"))
            self._empty(dead)

    def check(self) -> None:
        """Raise ``HostFault`` if the pool directory has gone; touches no volume."""
        if not (self.path / "volumes").is_dir():
            raise HostFault(f"pool {self.name!r} has no directory {self.path}/volumes")

    def find(self, volume_id: str) -> Volume | None:
        """Return the record of a volume, or ``None`` if this pool has no such volume.

        Raises:
            HostFault: the record cannot be read.
        """
        if not is_volume_id(volume_id):
            return None
        try:
            with self._folder(volume_id) as folder:
                content = statefile.read(_path(folder) / "volume.json", _VERSION)
        except OSError:  # not there, or a symbolic link that is not ours
            return None
        except statefile.Damaged as error:
            raise statefile.Damaged(f"record of volume {volume_id} in {self.path}: {error}") from error
        if content is None:
            return None
        volume = _volume(content, f"{self.path}/volumes/{volume_id}/volume.json")
        return volume if volume.id == volume_id else None

    def all(self) -> Iterator[Volume]:
        """Yield every volume of the pool, in the order of ids; one with an unreadable record is logged and left out."""
        for folder in sorted((self.path / "volumes").iterdir()):
            try:
                volume = self.find(folder.name)
            except HostFault as error:
                log.error("unreadable volume", extra={"path": str(folder), "error": str(error)})
                continue
            if volume:
                yield volume

    def open_data(self, volume_id: str) -> int:
        """Return a descriptor of the folder with the bytes of a volume, good for binding.

        Raises:
            NotFound: there is no such volume, or its folder has gone.
        """
        if is_volume_id(volume_id):
            try:
                with self._folder(volume_id) as folder:
                    return open_beneath(folder, "data", os.O_PATH | os.O_DIRECTORY)
            except OSError:
                pass
        raise NotFound(f"volume {volume_id} has no data in pool {self.name!r} at {self.path}")

    def create(self, want: Volume, compatible: Callable[[Volume], None]) -> Volume:
        """Return the volume called ``want.name``, made like ``want`` with an id of its own if there was none.

        ``compatible`` raises if an existing volume is not what the caller wants.

        Raises:
            Busy: another call is making it just now.
            HostFault: it could not be made; nothing is left.
        """
        with hold(self.path / "locks", f"volume named {want.name!r}"):
            existing = self._called(want.name)
            if existing:
                compatible(existing)
                return existing
            volume = replace(want, id=f"ub-{owner_tag(want.owner)}-{uuid.uuid4().hex}", pool=self.name)
            self._build(volume)
            return volume

    def delete(self, volume_id: str) -> None:
        """Remove a volume and all its bytes; nothing happens if there is none of this id.

        Raises:
            InUse: a node has it attached, or something is mounted inside it; the volume is untouched.
            Busy: another call is working on it.
            HostFault: the bytes could not be removed wholly; the volume is gone, the rest is swept out later.
        """
        volume = self.find(volume_id)
        if volume is None:
            return
        locks = self.path / "locks"
        with hold(locks, f"volume named {volume.name!r}"), hold(locks, f"volume {volume_id}"):
            folder = self.path / "volumes" / volume_id
            if not folder.exists():
                return
            self._refuse_in_use(volume_id, folder)
            dead = self._discard(folder)
            self._forget_name(volume)
        self._empty(dead)

    def attach(self, volume_id: str, attachment: Attachment) -> None:
        """Note that a node uses the volume; the same node may say so again.

        Raises:
            InUse: another node has it, and one of the two wants it for itself.
            NotFound: there is no such volume (any more).
            Busy: another call is working on it.
        """
        with hold(self.path / "locks", f"volume {volume_id}"):
            if self.find(volume_id) is None:
                raise NotFound(f"volume {volume_id} does not exist in pool {self.name!r}")
            for other in self.attachments(volume_id):
                if other.node == attachment.node or other.boot != attachment.boot:
                    continue
                if other.mode.is_single_node or attachment.mode.is_single_node:
                    raise InUse(f"volume {volume_id} is in use on node {other.node} as {other.mode.name}")
            path = self.path / "volumes" / volume_id / "nodes" / f"{owner_tag(attachment.node)}.json"
            statefile.write(path, _VERSION, msgspec.to_builtins(attachment))

    def detach(self, volume_id: str, node: str) -> None:
        """Forget that a node uses the volume. Volume and attachment may be gone already."""
        if is_volume_id(volume_id):
            (self.path / "volumes" / volume_id / "nodes" / f"{owner_tag(node)}.json").unlink(missing_ok=True)

    def attachments(self, volume_id: str) -> tuple[Attachment, ...]:
        """Return the nodes that use the volume, in the order of their tags."""
        found = []
        for path in sorted((self.path / "volumes" / volume_id / "nodes").glob("[0-9a-f]*.json")):
            content = statefile.read(path, _VERSION)
            if content is not None:
                found.append(msgspec.convert(content, Attachment))
        return tuple(found)

    @contextmanager
    def _folder(self, volume_id: str) -> Iterator[int]:
        volumes = open_folder(self.path / "volumes")
        try:
            folder = open_beneath(volumes, volume_id, os.O_PATH | os.O_DIRECTORY)
        finally:
            os.close(volumes)
        try:
            yield folder
        finally:
            os.close(folder)

    def _name_file(self, name: str) -> Path:
        return self.path / "names" / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _forget_name(self, volume: Volume) -> None:
        """Free the name of a volume that ceased to be, if no newer volume has it."""
        file = self._name_file(volume.name)
        content = statefile.read(file, _VERSION)
        if content is not None and content.get("id") == volume.id:
            file.unlink(missing_ok=True)

    def _called(self, name: str) -> Volume | None:
        content = statefile.read(self._name_file(name), _VERSION)
        volume = self.find(str(content["id"])) if content and "id" in content else None
        return volume if volume and volume.name == name else None

    def _build(self, volume: Volume) -> None:
        folder = self.path / "new" / volume.id
        try:
            folder.mkdir(mode=0o700)
            maker = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(maker, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / "nodes").mkdir(mode=0o700)
                self.space.make(folder / "data", volume.size)
                statefile.write(folder / "volume.json", _VERSION, msgspec.to_builtins(volume))
                statefile.write(folder / "name.json", _VERSION, {"id": volume.id})
                (folder / "name.json").rename(self._name_file(volume.name))
                folder.rename(self.path / "volumes" / volume.id)
            finally:
                os.close(maker)
            _flush(self.path / "volumes")
        except OSError as error:
            raise HostFault(f"cannot make volume {volume.name!r} in {self.path}: {error.strerror}") from error
        finally:
            if folder.exists():
                self._empty(self._discard(folder))

    def _refuse_in_use(self, volume_id: str, folder: Path) -> None:
        boot = boot_id()
        nodes = [each.node for each in self.attachments(volume_id) if each.boot == boot]
        if nodes:
            raise InUse(f"volume {volume_id} is in use on node {', '.join(nodes)}")
        inside = mountinfo.below(mountinfo.read(), folder.resolve())
        if inside:
            raise InUse(f"volume {volume_id} has {inside[0].target} mounted inside it")

    def _discard(self, folder: Path) -> Path:
        """Make a volume cease to be: one rename."""
        dead = self.path / "trash" / f"{folder.name}.{uuid.uuid4().hex[:8]}"
        try:
            folder.rename(dead)
            _flush(self.path / "volumes")
        except OSError as error:
            raise HostFault(f"cannot remove {folder}: {error.strerror}") from error
        return dead

    def _empty(self, dead: Path) -> None:
        self.space.remove(dead / "data")
        remove_tree(dead)


def boot_id() -> str:
    """Return what tells this run of the kernel from every other: mounts do not outlive it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _volume(content: dict[str, object], where: str) -> Volume:
    try:
        return msgspec.convert(content, Volume)
    except msgspec.ValidationError as error:
        raise statefile.Damaged(f"{where} is not the record of a volume: {error}") from error


def _is_abandoned(folder: Path) -> bool:
    """Whether no living driver is building ``folder``."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False  # finished or swept out just now
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _path(folder: int) -> Path:
    return Path(f"/proc/self/fd/{folder}")


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
