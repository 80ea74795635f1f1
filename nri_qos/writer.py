"""Writes cgroup files: probes, remembers, writes, reads back, and gives way to a writer who insists.

A cgroup that vanished is no error; a file that is not there is a capability this kernel lacks. A value that somebody
else changed is written again and counted; who changes it again and again is left alone for longer and longer.

Source: reference/nri.md sections 3 and 5 (D, E3, E20).
"""

import errno
import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nri_qos.journal import Journal
from nri_qos.settings import Place, Setting, in_order, is_same

LONGEST_RETREAT = 300  # periods
_log = logging.getLogger(__name__)


class Gone(Exception):
    """The cgroup is not there any more."""


@dataclass(slots=True)
class Quarrel:
    """A file that did not stay, or did not become, what we wrote."""

    rounds: int = 0
    wait: int = 0  # periods until the next attempt


@dataclass
class Report:
    """What one ``apply`` did."""

    written: int = 0
    gone: set[str] = field(default_factory=set)


class Writer:
    """Access to one hierarchy below ``root``; ``journal`` is ``None`` for a run that writes nothing."""

    def __init__(self, root: Path, journal: Journal | None) -> None:
        self.capabilities: dict[str, bool] = {}  # file -> whether this kernel has it
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._root = root
        self._journal = journal
        self._quarrels: dict[Place, Quarrel] = {}
        self._complained: set[Place] = set()

    def read(self, cgroup: str, file: str) -> str:
        """Return what a file says.

        Raises:
            Gone: the cgroup is not there.
            OSError: the file is not there, or cannot be read.
        """
        try:
            fd = os.open(f"{self._root}/{cgroup}/{file}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return os.read(fd, 65536).decode(errors="replace").strip()
            finally:
                os.close(fd)
        except OSError as error:
            self._raise_gone(cgroup, error)
            raise

    def tops(self) -> list[str]:
        """Return the topmost cgroups."""
        try:
            return [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def apply(self, settings: Iterable[Setting]) -> Report:
        """Make the files say what ``settings`` want. Failures are counted and logged once, and tried again later.

        Raises:
            HostFault: the journal cannot be kept; nothing was written.
        """
        report = Report()
        now: dict[Place, str] = {}
        changes = []
        for setting in settings:
            if setting.cgroup in report.gone or self._is_waiting(setting.place):
                continue
            try:
                text = self.read(setting.cgroup, setting.file)
            except Gone:
                report.gone.add(setting.cgroup)
                continue
            except OSError as error:
                self._lacks(setting, error)
                continue
            self.capabilities[setting.file] = True
            self._adopt(setting, text)
            wanted = self._wanted(setting, text)
            if wanted is None or is_same(setting.file, wanted, text):
                self._agreed(setting, text)
                continue
            now[setting.place] = text
            changes.append(Setting(setting.cgroup, setting.file, wanted))
        self._carry_out(in_order(changes, now), now, report)
        return report

    def restore(self) -> dict[str, int]:
        """Put back what files said before us, where nobody changed them since; return how many were what.

        Raises:
            HostFault: the journal cannot be written.
        """
        assert self._journal is not None
        outcome = {"restored": 0, "changed by others": 0, "gone": 0, "failed": 0}
        settings, now = [], {}
        for place, entry in list(self._journal.entries.items()):
            try:
                text = self.read(*place)
            except (Gone, OSError):
                outcome["gone"] += 1
                self._journal.forget([place])
                continue
            if not any(is_same(place[1], known, text) for known in (entry.written, entry.before)):
                outcome["changed by others"] += 1
                self._journal.forget([place])
            else:
                now[place] = text
                settings.append(Setting(*place, entry.original))
        for setting in in_order(settings, now):
            outcome[self._put_back(setting, now[setting.place])] += 1
        return outcome

    def _put_back(self, setting: Setting, now: str) -> str:
        assert self._journal is not None
        assert setting.value is not None
        try:
            if not is_same(setting.file, setting.value, now):
                self._write(setting)
        except Gone:
            pass
        except OSError as error:
            self._complain(setting, error)
            return "failed"
        self._journal.forget([setting.place])
        return "restored"

    def _carry_out(self, changes: list[Setting], now: dict[Place, str], report: Report) -> None:
        if not changes:
            return
        if self._journal is None:
            report.written = len(changes)
            return
        self._journal.intend([(c.place, now[c.place], c.value or "") for c in changes])
        for change in changes:
            try:
                self._write(change)
                report.written += 1
                self.counts["writes", change.file] += 1
                self._read_back(change)
            except Gone:
                report.gone.add(change.cgroup)
            except OSError as error:
                self._complain(change, error)
                self._retreat(change.place)
        self._journal.forget([place for place in self._journal.entries if place[0] in report.gone])

    def _wanted(self, setting: Setting, text: str) -> str | None:
        """Return the value to write, ``None`` if there is none; count it if somebody else changed what we wrote."""
        entry = self._journal.entries.get(setting.place) if self._journal else None
        if setting.value is None:
            if entry is None or not entry.is_ours(text):
                return None
            return entry.original
        stood = entry is not None and is_same(setting.file, entry.written, setting.value)
        if stood and not is_same(setting.file, text, setting.value):
            self.counts["drift", setting.file] += 1
            self._retreat(setting.place)
        return setting.value

    def _adopt(self, setting: Setting, text: str) -> None:
        """Take for ours what the runtime wrote at our word, so that it is put back like what we wrote ourselves."""
        if self._journal is not None and setting.original is not None and setting.place not in self._journal.entries:
            self._journal.adopt(setting.place, setting.original, text)

    def _agreed(self, setting: Setting, text: str) -> None:
        if setting.value is None and self._journal is not None and setting.place in self._journal.entries:
            self._journal.forget([setting.place])
        quarrel = self._quarrels.get(setting.place)
        if quarrel is not None:
            quarrel.rounds -= 1
            if quarrel.rounds <= 0:
                del self._quarrels[setting.place]

    def _write(self, setting: Setting) -> None:
        value = (setting.value or "\n").encode()  # a write of no bytes does not reach the kernel
        try:
            fd = os.open(f"{self._root}/{setting.cgroup}/{setting.file}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(fd, value)
                if os.fstat(fd).st_size > len(value):  # a plain file below another root; the kernel's have no size
                    os.ftruncate(fd, len(value))
            finally:
                os.close(fd)
        except OSError as error:
            self._raise_gone(setting.cgroup, error)
            raise

    def _read_back(self, setting: Setting) -> None:
        """Compare with what the kernel made of it; what is effective can be less, where a parent allows less."""
        assert self._journal is not None
        text = self.read(setting.cgroup, setting.file)
        value = setting.value or ""
        if not is_same(setting.file, value, text):
            self._journal.confirm(setting.place, text)
            self._alarm(setting, text)
        elif text != value:
            self._journal.confirm(setting.place, text)
        if setting.file not in ("cpuset.cpus", "cpuset.mems") or not value:
            return
        try:
            effective = self.read(setting.cgroup, f"{setting.file}.effective")
        except OSError:
            return
        if effective and not is_same(setting.file, value, effective):
            self._alarm(setting, effective)

    def _alarm(self, setting: Setting, text: str) -> None:
        self.counts["ineffective", setting.file] += 1
        if setting.place not in self._complained:
            self._complained.add(setting.place)
            _log.warning(
                "a cgroup file did not become what was written",
                extra={"cgroup": setting.cgroup, "file": setting.file, "written": setting.value, "is": text},
            )

    def _lacks(self, setting: Setting, error: OSError) -> None:
        self._retreat(setting.place)
        if error.errno != errno.ENOENT:
            self._complain(setting, error)
        elif setting.file not in self.capabilities:
            self.capabilities[setting.file] = False
            _log.info("this kernel has no such cgroup file", extra={"file": setting.file, "cgroup": setting.cgroup})

    def _complain(self, setting: Setting, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "unknown")
        self.counts["write_errors", setting.file, name] += 1
        if setting.place not in self._complained:
            self._complained.add(setting.place)
            _log.error(
                "a cgroup file cannot be written",
                extra={"cgroup": setting.cgroup, "file": setting.file, "value": setting.value, "error": str(error)},
            )

    def _is_waiting(self, place: Place) -> bool:
        quarrel = self._quarrels.get(place)
        if quarrel is None or quarrel.wait <= 0:
            return False
        quarrel.wait -= 1
        return True

    def _retreat(self, place: Place) -> None:
        """Wait before the next attempt: not at all the first time, then twice as long each time."""
        quarrel = self._quarrels.setdefault(place, Quarrel())
        quarrel.wait = min(2**quarrel.rounds - 1, LONGEST_RETREAT)
        quarrel.rounds += 1

    def _raise_gone(self, cgroup: str, error: OSError) -> None:
        if error.errno == errno.ENODEV or (error.errno == errno.ENOENT and not Path(self._root, cgroup).is_dir()):
            raise Gone(cgroup) from error


def undo(root: Path, journal: Path) -> dict[str, int]:
    """Restore everything that the journal of an earlier run names.

    Raises:
        HostFault: the journal cannot be read or written.
    """
    if not journal.exists():
        return {"restored": 0, "changed by others": 0, "gone": 0, "failed": 0}
    kept = Journal(journal)
    try:
        outcome = Writer(root, kept).restore()
    finally:
        kept.close()
    if not kept.entries:
        journal.unlink(missing_ok=True)
    return outcome
