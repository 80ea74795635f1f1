"""What every cgroup file said before we wrote to it, and what we wrote: all that ``--restore`` needs.

One JSON line a change, appended and flushed before the change is made, so that a kill at any point leaves enough to
put everything back; a line that a crash or a full disk tore is skipped. Lives where the cgroups do: gone after a
reboot.

A file counts as ours while it says what we wrote last. If a kill came between a line and its write, it says what we
wrote before that, or the original: both are known here.
"""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nri_qos.settings import Place
from ubhost.errors import HostFault

VERSION = 1
SPARE_LINES = 1000  # lines over the live entries before the file is written anew
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    original: str
    written: str
    before: str  # what was written before that; the original at first

    def is_ours(self, now: str) -> bool:
        """Whether a file that says ``now`` was changed by nobody since."""
        return now in (self.written, self.before)


@dataclass(frozen=True, slots=True)
class Where:
    """What a line is about."""

    cgroup: str
    file: str
    gone: bool = False


class Journal:
    def __init__(self, path: Path) -> None:
        """Read what an earlier run left.

        Raises:
            HostFault: the folder cannot be written.
        """
        self.entries: dict[Place, Entry] = {}
        self._path = path
        self._lines = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists():
                self._load(path.read_bytes())
            self._fd = self._write_anew()
        except OSError as error:
            raise HostFault(f"cannot keep {path}: {error.strerror or error}") from error

    def intend(self, changes: Iterable[tuple[Place, str, str]]) -> None:
        """Remember (place, what it says now, what will be written) before any of it is written.

        Raises:
            HostFault: it cannot be made durable, so nothing may be written.
        """
        records = []
        for place, now, value in changes:
            known = self.entries.get(place)
            entry = Entry(now, value, now) if known is None else Entry(known.original, value, now)
            self.entries[place] = entry
            records.append(_record(place, entry))
        self._append(records)

    def adopt(self, files: Iterable[tuple[Place, str, str]]) -> None:
        """Remember (place, original, what it says now) of files that say so because of us, though we did not write.

        Raises:
            HostFault: it cannot be made durable.
        """
        records = []
        for place, original, now in files:
            self.entries[place] = Entry(original, now, now)
            records.append(_record(place, self.entries[place]))
        self._append(records)

    def confirm(self, place: Place, value: str) -> None:
        """Remember that the kernel made ``value`` of what was written."""
        self.entries[place] = Entry(self.entries[place].original, value, value)
        self._append([_record(place, self.entries[place])])

    def forget(self, places: Iterable[Place]) -> None:
        """Drop what is restored or gone."""
        gone = [place for place in places if self.entries.pop(place, None) is not None]
        self._append([json.dumps({"cgroup": cgroup, "file": file, "gone": True}) for cgroup, file in gone])

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, records: list[str]) -> None:
        if not records:
            return
        try:
            _write(self._fd, records)
            self._lines += len(records)
            if self._lines > len(self.entries) + SPARE_LINES:
                old, self._fd = self._fd, self._write_anew()
                os.close(old)
        except OSError as error:
            raise HostFault(f"cannot write {self._path}: {error}") from error

    def _load(self, data: bytes) -> None:
        damaged = 0
        for line in filter(None, data.decode(errors="replace").splitlines()):
            try:
                self._take_in(msgspec.json.decode(line))
            except (msgspec.DecodeError, RecursionError):
                damaged += 1
        if damaged:
            _log.warning("lines of the journal are unreadable", extra={"path": str(self._path), "lines": damaged})

    def _take_in(self, record: object) -> None:
        if isinstance(record, dict) and "version" in record:
            return
        where = msgspec.convert(record, Where)
        if not _is_below(where.cgroup) or not _is_below(where.file) or not where.file:
            raise msgspec.ValidationError(f"{where} leads out of the hierarchy")
        place = where.cgroup, where.file
        if where.gone:
            self.entries.pop(place, None)
        else:
            self.entries[place] = msgspec.convert(record, Entry)

    def _write_anew(self) -> int:
        """Replace the file by one with a line for each live entry; return its descriptor, for appending."""
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        records = [json.dumps({"version": VERSION}), *(_record(place, entry) for place, entry in self.entries.items())]
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _write(fd, records)
            temporary.replace(self._path)
        except OSError:
            os.close(fd)
            raise
        self._lines = len(self.entries)
        return fd


def _is_below(path: str) -> bool:
    """Whether ``path`` stays where it is put: a restore writes there as root."""
    return not path.startswith("/") and "\0" not in path and ".." not in path.replace(" ", "/").split("/")


def _write(fd: int, records: list[str]) -> None:
    data = "".join(f"\n{record}" for record in records).encode()  # a line that a full disk tore stays by itself
    while data:
        data = data[os.write(fd, data) :]
    os.fsync(fd)


def _record(place: Place, entry: Entry) -> str:
    cgroup, file = place
    return json.dumps(
        {"cgroup": cgroup, "file": file, "original": entry.original, "written": entry.written, "before": entry.before}
    )
