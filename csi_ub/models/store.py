"""The versions of one model volume, in the share of the volume.

    data/versions/<id>/   a whole version, never changed; pods see ``data``
    data/current          a symbolic link to the version in force, replaced by rename
    manifests/<id>.json   what it consists of
    incoming/<id>/        a version on its way; a push that is repeated goes on from there
    history.json          which versions were in force, and since when

A version is built in ``incoming``, checked chunk by chunk, flushed, and comes into being by one rename. Pods never
see a part of one. The switch is a rename inside the published directory, so a running pod sees it with no restart.
"""

import errno
import hashlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csi_ub.locks import hold
from csi_ub.models.chunks import Place, read_chunk
from csi_ub.models.manifest import CHUNK, File, Manifest, chunk_at, is_safe
from csi_ub.openfiles import open_files
from csi_ub.pools.copy import remove_tree
from ubhost import statefile
from ubhost.errors import Exhausted, HostFault, InvalidRequest, NotFound

_VERSION = 1
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Pushed:
    """A version that is in the store now; ``moved`` bytes came from outside, the others were there already."""

    id: str
    size: int
    moved: int


@dataclass(frozen=True, slots=True)
class Version:
    """One line of the list: ``size`` in bytes, ``since`` in seconds since 1970 if it was ever in force."""

    id: str
    size: int
    is_current: bool
    since: float | None


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The store in ``share``. A push may take long and holds up nobody; readers need no lock."""

    share: Path

    @property
    def versions(self) -> Path:
        return self.share / "data" / "versions"

    def push(self, source: Path, manifest: Manifest, progress: Progress = lambda _: None) -> Pushed:
        """Bring the files of ``source``, which ``manifest`` describes, into the store; only missing chunks are copied.

        Raises:
            InvalidRequest: ``source`` is not what the manifest says (any more), or the manifest has a wrong path.
            Exhausted: the disk or the quota is full; what came so far is kept for the next try.
        """
        wrong = [file.path for file in manifest.files if not is_safe(file.path)]
        if wrong:
            raise InvalidRequest(f"{wrong[0]!r} is not a path inside a version")
        with self._alone(f"push {manifest.id}"):
            if (self.versions / manifest.id).is_dir():
                progress(manifest.size)
                return Pushed(manifest.id, manifest.size, 0)
            incoming = self.share / "incoming" / manifest.id
            try:
                incoming.mkdir(parents=True, exist_ok=True, mode=0o755)
                known = self._known_chunks()
                moved = sum(self._bring(file, source, incoming, known, progress) for file in manifest.files)
                _seal(incoming)
                self._write_manifest(manifest)
                incoming.rename(self.versions / manifest.id)
                _flush(self.versions)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise Exhausted(f"no space for version {manifest.id[:12]} ({manifest.size} bytes)") from error
                raise HostFault(f"cannot push to {self.share}: {error.strerror} ({error.filename})") from error
        return Pushed(manifest.id, manifest.size, moved)

    def switch(self, version: str, *, is_only_wanted: bool = False) -> str:
        """Put a version in force, named by its id or the beginning of it; return its id.

        ``is_only_wanted``: note the wish, and leave it to the followers on each node (``csi_ub.models.follower``).

        Raises:
            NotFound: no version, or more than one, is called so.
        """
        with self._alone():
            id_ = self._named(version)
            self._put_in_force(id_, is_only_wanted=is_only_wanted)
        return id_

    def rollback(self, *, is_only_wanted: bool = False) -> str:
        """Put the version in force that was wanted before the present one; return its id.

        Raises:
            NotFound: there was none, or it is gone.
        """
        with self._alone():
            for id_ in self.wanted()[1:]:
                if (self.versions / id_).is_dir():
                    self._put_in_force(id_, is_only_wanted=is_only_wanted)
                    return id_
        raise NotFound("no earlier version is left")

    def wanted(self) -> tuple[str, ...]:
        """Return the versions that were put in force, the last first. A node with a copy of its own may be behind."""
        return tuple(id_ for id_, _ in reversed(self._history()))

    def current(self) -> str | None:
        """Return the id of the version in force."""
        try:
            return (self.share / "data" / "current").readlink().name
        except FileNotFoundError:
            return None

    def listed(self) -> tuple[Version, ...]:
        """Return all versions, the ones last in force first."""
        current, since = self.current(), dict(self._history())
        ids = sorted((path.name for path in self.versions.glob("*")), key=lambda id_: -since.get(id_, 0))
        return tuple(Version(id_, self.manifest(id_).size, id_ == current, since.get(id_)) for id_ in ids)

    def gc(self, keep: int, grace_s: float, in_force: Iterable[str] = ()) -> tuple[str, ...]:
        """Remove versions that nobody needs; return their ids.

        Kept are: the one in force, also on other nodes (``in_force``), the ``keep`` that were in force before, those
        put out of force less than ``grace_s`` ago, and those that a process of this machine has open or mapped.
        """
        with self._alone():
            history = self._history()
            former = [id_ for id_ in dict.fromkeys(id_ for id_, _ in reversed(history)) if id_ != self.current()]
            left = {one: until for (one, _), (_, until) in itertools.pairwise(history)}
            needed = {self.current(), *self.wanted()[:1], *in_force, *former[:keep]}
            needed |= {id_ for id_, until in left.items() if time.time() - until < grace_s}
            candidates = [path for path in self.versions.glob("*") if path.name not in needed]
            removed = [path for path in candidates if not _is_open(path)]
            for path in removed:
                gone = self.share / "incoming" / f"gone-{uuid.uuid4().hex}"
                gone.parent.mkdir(exist_ok=True, mode=0o700)
                path.rename(gone)  # out of the pods' sight in one step
                remove_tree(gone)
                (self.share / "manifests" / f"{path.name}.json").unlink(missing_ok=True)
        return tuple(path.name for path in removed)

    def verify(self, version: str, progress: Progress = lambda _: None) -> None:
        """Read a version and raise ``HostFault`` that names the first file that is not what it was."""
        id_ = self._named(version)
        for file in self.manifest(id_).files:
            for index, wanted in enumerate(file.chunks):
                piece = read_chunk(self.versions / id_ / file.path, *chunk_at(file, index))
                if hashlib.sha256(piece).hexdigest() != wanted:
                    raise HostFault(f"{file.path} of version {id_} is damaged at byte {index * CHUNK}")
                progress(len(piece))

    def warm(self, version: str, progress: Progress = lambda _: None) -> None:
        """Read a version into the page cache, from where every pod of the node gets it."""
        id_ = self._named(version)
        for file in self.manifest(id_).files:
            with (self.versions / id_ / file.path).open("rb", buffering=0) as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
                while piece := opened.read(CHUNK):
                    progress(len(piece))

    def manifest(self, id_: str) -> Manifest:
        """Return what a version consists of.

        Raises:
            NotFound: it is not known.
        """
        content = statefile.read(self.share / "manifests" / f"{id_}.json", _VERSION)
        if content is None:
            raise NotFound(f"version {id_} has no manifest")
        return msgspec.convert(content, Manifest)

    def _bring(
        self, file: File, source: Path, incoming: Path, known: dict[str, tuple[Path, int]], progress: Progress
    ) -> int:
        """Make one file in ``incoming``; return the bytes that came from ``source``."""
        target, moved = incoming / file.path, 0
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with target.open("r+b" if target.exists() else "x+b", buffering=0) as out:
            os.ftruncate(out.fileno(), file.size)
            for index, wanted in enumerate(file.chunks):
                offset, size = chunk_at(file, index)
                here = Place(out.fileno(), offset, size)
                if not here.holds(wanted) and not here.take(known.get(wanted), wanted):
                    here.write(read_chunk(source / file.path, offset, size), wanted, source / file.path)
                    moved += size
                progress(size)
            out.flush()
            os.fsync(out.fileno())
        target.chmod(0o555 if file.is_executable else 0o444)
        return moved

    def _known_chunks(self) -> dict[str, tuple[Path, int]]:
        known: dict[str, tuple[Path, int]] = {}
        for path in self.versions.glob("*"):
            with suppress(NotFound):
                for file in self.manifest(path.name).files:
                    for index, chunk in enumerate(file.chunks):
                        known.setdefault(chunk, (path / file.path, index * CHUNK))
        return known

    def _write_manifest(self, manifest: Manifest) -> None:
        (self.share / "manifests").mkdir(exist_ok=True, mode=0o700)
        statefile.write(self.share / "manifests" / f"{manifest.id}.json", _VERSION, msgspec.to_builtins(manifest))

    def _named(self, version: str) -> str:
        found = [path.name for path in self.versions.glob("*") if version and path.name.startswith(version)]
        if len(found) != 1:
            raise NotFound(
                f"{version!r} names {len(found)} versions" if found else f"version {version!r} does not exist"
            )
        return found[0]

    def point_to(self, id_: str) -> None:
        """Put a version in force in this copy, in one step."""
        link = self.share / "data" / f".{uuid.uuid4().hex}"
        link.symlink_to(Path("versions") / id_)
        link.replace(self.share / "data" / "current")
        _flush(self.share / "data")

    def _put_in_force(self, id_: str, *, is_only_wanted: bool) -> None:
        if not is_only_wanted:
            self.point_to(id_)
        entries = [entry for entry in self._history() if entry[0] != id_][-99:]
        statefile.write(self.share / "history.json", _VERSION, {"in_force": [*entries, (id_, time.time())]})

    def _history(self) -> list[tuple[str, float]]:
        content = statefile.read(self.share / "history.json", _VERSION) or {"in_force": []}
        return [(str(id_), float(since)) for id_, since in content["in_force"]]

    @contextmanager
    def _alone(self, what: str = "the versions") -> Iterator[None]:
        with hold(self.share / "nodes", f"{what} of {self.share}", wait_s=2):
            yield


def _seal(folder: Path) -> None:
    """Make folders readable for everybody and flush them: their names must survive a power cut too."""
    for here, _, _ in os.walk(folder):
        Path(here).chmod(0o755)
        _flush(Path(here))


def _is_open(version: Path) -> bool:
    inodes = {
        ((state := (Path(here) / name).stat()).st_dev, state.st_ino)
        for here, folders, names in os.walk(version)
        for name in (*names, *folders, ".")
    }
    return any((state.st_dev, state.st_ino) in inodes for _, state in open_files())


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
