"""Named things on disk that come into being and cease to be in one step each: volumes, snapshots,
groups of them, replicas.

    <kind>s/<id>/<kind>.json   the record: whoever can read it knows that the thing exists
    <kind>s/<id>/share/        its bytes
    names/<kind>-<sha256>      which id a name has
    new/<id>/                  under construction, flocked by its maker
    trash/<id>.<random>/       being removed
    locks/                     see csi_ub.locks

A thing is built in ``new`` and comes into being by one rename into ``<kind>s``; it ceases to be by one rename into
``trash``. So a driver killed at any point leaves a whole one or none, and rubbish that the next start sweeps out. An
id reaches the file system only if it has the form of our own ids, and is opened beneath ``<kind>s`` without following
symbolic links.
"""

import fcntl
import hashlib
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from csi_ub.locks import PATIENCE_S, hold
from csi_ub.model import Group, Replica, Snapshot, Volume, new_id
from csi_ub.pools.copy import remove_tree
from ubhost import statefile
from ubhost.errors import HostFault, NotFound
from ubhost.kernel.beneath import open_beneath, open_folder

VERSION = 1
R = TypeVar("R", Volume, Snapshot, Replica, Group)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shelf(Generic[R]):
    """All things of one kind in the pool directory ``root``.

    ``remove`` removes a ``share``, which on some pools is more than a folder. Safe to be used by several threads and
    by several drivers of one machine at once.
    """

    root: Path
    kind: str
    prefix: str
    type: type[R]
    remove: Callable[[Path], None]

    def open(self) -> None:
        """Make the folders and sweep out what killed drivers left.

        Raises:
            HostFault: the pool directory is missing or cannot be written.
        """
        try:
            for folder in (self.home, *(self.root / name for name in ("names", "new", "trash", "locks"))):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise HostFault(f"cannot use {self.root}: {error.strerror}") from error
        for unfinished in (self.root / "new").glob(f"{self.prefix}-*"):
            if _is_abandoned(unfinished):
                log.info("sweeping out what was not finished", extra={"path": str(unfinished)})
                self._discard(unfinished)
        for dead in (self.root / "trash").glob(f"{self.prefix}-*"):
            content = statefile.read(dead / self._file, VERSION)
            if content is not None:
                self._forget_name(self._record(content, str(dead)))
            self._empty(dead)

    @property
    def home(self) -> Path:
        return self.root / f"{self.kind}s"

    def is_id(self, text: str) -> bool:
        """Whether ``text`` has the form of the ids of this kind; anything else names nothing."""
        return re.fullmatch(rf"{self.prefix}-[0-9a-f]{{12}}-[0-9a-f]{{32}}", text) is not None

    def find(self, id_: str) -> R | None:
        """Return a record, or ``None`` if there is no such thing.

        Raises:
            HostFault: the record cannot be read.
        """
        try:
            with self.folder(id_) as folder:
                content = statefile.read(Path(f"/proc/self/fd/{folder}") / self._file, VERSION)
        except NotFound:
            return None
        except statefile.Damaged as error:
            raise statefile.Damaged(f"record of {self.kind} {id_} in {self.root}: {error}") from error
        if content is None:
            return None
        record = self._record(content, f"{self.home}/{id_}")
        if record.id != id_:  # not "no such thing": whoever deletes it would be told that it has gone
            raise statefile.Damaged(f"record of {self.kind} {id_} in {self.root} is that of {record.id!r}")
        return record

    def all(self) -> Iterator[R]:
        """Yield every record, in the order of ids; an unreadable one is logged and left out.

        Raises:
            HostFault: the pool directory has gone.
        """
        try:
            names = sorted(entry.name for entry in self.home.iterdir())
        except OSError as error:
            raise HostFault(f"cannot list {self.home}: {error.strerror}") from error
        for name in names:
            try:
                record = self.find(name)
            except HostFault as error:
                log.warning("unreadable record", extra={"kind": self.kind, "id": name, "error": str(error)})
                continue
            if record:
                yield record

    @contextmanager
    def folder(self, id_: str) -> Iterator[int]:
        """Open the folder of one thing (O_PATH).

        Raises:
            NotFound: there is none, or what is there is not ours.
        """
        home = open_folder(self.home)
        try:
            if not self.is_id(id_):
                raise NotFound(f"{self.kind} {id_!r} does not exist")
            folder = open_beneath(home, id_, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise NotFound(f"{self.kind} {id_} does not exist in {self.root}") from None
        finally:
            os.close(home)
        try:
            yield folder
        finally:
            os.close(folder)

    def create(self, want: R, fill: Callable[[Path, R], None]) -> R:
        """Make a thing like ``want``, with an id of its own if that has none; ``fill`` makes its ``share``.

        The caller holds ``name_lock`` and has seen that the name is free.

        Raises:
            HostFault: it could not be made; nothing is left.
        """
        record = replace(want, id=want.id or new_id(self.prefix, want.owner))
        self._build(record, fill)
        return record

    def delete(self, id_: str, refuse: Callable[[R], None]) -> None:
        """Remove a thing and all its bytes; nothing happens if there is none of this id.

        ``refuse`` raises if it must stay; then it is untouched.

        Raises:
            Busy: another call is working on it.
            HostFault: the bytes could not be removed wholly; the thing is gone, the rest is swept out later.
        """
        record = self.find(id_)
        if record is None:
            return
        with self.name_lock(record.name), self.lock(id_):
            if not (self.home / id_).exists():
                return
            refuse(record)
            dead = self._discard(self.home / id_)
            self._forget_name(record)
        self._empty(dead)

    def update(self, id_: str, change: Callable[[R], R]) -> R:
        """Replace a record by ``change(record)``, which may do what the new record says: it is written last.

        Raises:
            NotFound: no such thing.
            Busy: another call is working on it.
        """
        with self.lock(id_):
            before = self.find(id_)
            if before is None:
                raise NotFound(f"{self.kind} {id_!r} does not exist")
            after = change(before)
            if after != before:
                statefile.write(self.home / id_ / self._file, VERSION, msgspec.to_builtins(after))
            return after

    @contextmanager
    def lock(self, what: str, *, wait_s: float = PATIENCE_S) -> Iterator[None]:
        """Work on one thing alone, among all drivers of this pool."""
        with hold(self.root / "locks", f"{self.kind} {what}", wait_s=wait_s):
            yield

    def name_lock(self, name: str) -> AbstractContextManager[None]:
        """Decide alone, among all drivers of this pool, what has the name."""
        return self.lock(f"named {name!r}")

    @property
    def _file(self) -> str:
        return f"{self.kind}.json"

    def _record(self, content: dict[str, object], where: str) -> R:
        try:
            return msgspec.convert(content, self.type)
        except msgspec.ValidationError as error:
            raise statefile.Damaged(f"{where} has no record of a {self.kind}: {error}") from error

    def _name_file(self, name: str) -> Path:
        return self.root / "names" / f"{self.kind}-{hashlib.sha256(name.encode()).hexdigest()}"

    def _forget_name(self, record: R) -> None:
        """Free the name of what ceased to be, if nothing newer has it."""
        file = self._name_file(record.name)
        content = statefile.read(file, VERSION)
        if content is not None and content.get("id") == record.id:
            file.unlink(missing_ok=True)

    def called(self, name: str) -> R | None:
        """Return what has the name, or ``None``."""
        content = statefile.read(self._name_file(name), VERSION)
        record = self.find(str(content["id"])) if content and "id" in content else None
        return record if record and record.name == name else None

    def _build(self, record: R, fill: Callable[[Path, R], None]) -> None:
        folder = self.root / "new" / record.id
        try:
            folder.mkdir(mode=0o700)
            maker = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(maker, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fill(folder / "share", record)
                statefile.write(folder / self._file, VERSION, msgspec.to_builtins(record))
                statefile.write(folder / "name", VERSION, {"id": record.id})
                (folder / "name").rename(self._name_file(record.name))
                folder.rename(self.home / record.id)
            finally:
                os.close(maker)
            _flush(self.home)
        except OSError as error:
            raise HostFault(f"cannot make {self.kind} {record.name!r} in {self.root}: {error.strerror}") from error
        finally:
            if folder.exists():
                self._empty(self._discard(folder))

    def _discard(self, folder: Path) -> Path:
        """Make a thing cease to be: one rename."""
        dead = self.root / "trash" / f"{folder.name}.{uuid.uuid4().hex[:8]}"
        try:
            folder.rename(dead)
            _flush(self.home)
        except OSError as error:
            raise HostFault(f"cannot remove {folder}: {error.strerror}") from error
        return dead

    def _empty(self, dead: Path) -> None:
        self.remove(dead / "share")
        remove_tree(dead)


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


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
