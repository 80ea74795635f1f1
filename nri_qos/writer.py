"""Writes cgroup files: probes, remembers, writes, reads back, and gives way to a writer who insists.

A cgroup that vanished is no error; a file that is not there is a capability this kernel lacks. A value that somebody
else changed is written again and counted; who changes it again and again is left alone for longer and longer.

Source: reference/nri.md sections 3 and 5 (D, E3, E20).
"""

import errno
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nri_qos import knobs
from nri_qos.files import Gone, Hierarchy
from nri_qos.journal import Journal
from nri_qos.settings import Place, Setting, amount, in_order, is_same

LONGEST_RETREAT = 300  # periods
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Quarrel:
    """A file that did not stay, or did not become, what we wrote."""

    rounds: int = 0
    wait: int = 0  # periods until the next attempt
    is_refused: bool = False  # the kernel did not take it, so nobody need have changed it


@dataclass
class Report:
    """What one ``apply`` did."""

    written: int = 0
    gone: set[str] = field(default_factory=set)


class Writer:
    """``journal`` is ``None`` for a run that writes nothing."""

    def __init__(self, files: Hierarchy, journal: Journal | None) -> None:
        self.capabilities: dict[str, bool] = {}  # file -> whether this kernel has it
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._files = files
        self._journal = journal
        self._quarrels: dict[Place, Quarrel] = {}
        self._complained: set[Place] = set()

    @property
    def is_dry(self) -> bool:
        return self._journal is None

    def probe(self, cgroup: str) -> bool:
        """Note what this kernel offers to ``cgroup``, one of a pod, and what is not enabled; false if it is gone."""
        names = self._files.names(cgroup)
        if not names:
            return False
        self.capabilities = knobs.offered(names) | self.capabilities
        try:
            enabled = self._files.read(cgroup, "cgroup.controllers").split()
        except (Gone, OSError):
            enabled = list(knobs.CONTROLLERS)  # not told
        missing = [name for name in knobs.CONTROLLERS if name not in enabled]
        _log.log(
            logging.WARNING if missing else logging.INFO,
            "what the kernel offers to pods",
            extra={
                "lacks": [file for file, is_there in self.capabilities.items() if not is_there],
                "not_enabled": missing,
                "cgroup": cgroup,
            },
        )
        return True

    def apply(self, settings: Iterable[Setting]) -> Report:
        """Make the files say what ``settings`` want. Failures are counted and logged once, and tried again later.

        Raises:
            HostFault: the journal cannot be kept; nothing was written.
        """
        report = Report()
        now: dict[Place, str] = {}
        changes = []
        adopted: list[tuple[Place, str, str]] = []
        for setting in settings:
            if setting.cgroup in report.gone or self._is_waiting(setting.place):
                continue
            try:
                text = self._files.read(setting.cgroup, setting.file)
            except Gone:
                report.gone.add(setting.cgroup)
                continue
            except OSError as error:
                self._lacks(setting, error)
                continue
            self.capabilities[setting.file] = True
            if self._is_adopted(setting):
                adopted.append((setting.place, setting.original or "", text))
            wanted = self._wanted(setting, text)
            if wanted is None or is_same(setting.file, wanted, text) or self._is_as_empty(setting, wanted, text):
                self._agreed(setting, text)
                continue
            now[setting.place] = text
            changes.append(Setting(setting.cgroup, setting.file, wanted))
        if self._journal is not None:
            self._journal.adopt(adopted)
        self._carry_out(in_order(changes, now), now, report)
        return report

    def do(self, cgroup: str, file: str, value: str) -> None:
        """Write what is a deed and no setting: nothing is remembered, as nothing can be put back."""
        if self._journal is None:
            return
        try:
            self._files.write(cgroup, file, value)
            self.counts["writes", file] += 1
        except Gone:
            pass
        except OSError as error:
            self._complain(Setting(cgroup, file, value), error)

    def prune(self) -> None:
        """Forget everything about cgroups that are gone.

        Raises:
            HostFault: the journal cannot be written.
        """
        places = {*self._quarrels, *self._complained, *(self._journal.entries if self._journal else ())}
        gone = {cgroup for cgroup, _ in places if not self._files.exists(cgroup)}
        if not gone or not self._files.exists(""):
            return
        self._quarrels = {place: quarrel for place, quarrel in self._quarrels.items() if place[0] not in gone}
        self._complained = {place for place in self._complained if place[0] not in gone}
        if self._journal is not None:
            self._journal.forget([place for place in self._journal.entries if place[0] in gone])

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
            except Gone:
                report.gone.add(change.cgroup)
            except OSError as error:
                self._complain(change, error)
                self._retreat(change.place).is_refused = True
            else:
                report.written += 1
                self.counts["writes", change.file] += 1
                if (quarrel := self._quarrels.get(change.place)) is not None:
                    quarrel.is_refused = False

    def _wanted(self, setting: Setting, text: str) -> str | None:
        """Return the value to write, ``None`` if there is none; count it if somebody else changed what we wrote."""
        entry = self._journal.entries.get(setting.place) if self._journal else None
        if setting.value is None:
            if entry is None or not entry.is_ours(text):
                return None
            return entry.original
        quarrel = self._quarrels.get(setting.place)
        is_refused = quarrel is not None and quarrel.is_refused
        stood = entry is not None and not is_refused and is_same(setting.file, entry.written, setting.value)
        if stood and not is_same(setting.file, text, setting.value):
            self.counts["drift", setting.file] += 1
            self._retreat(setting.place)
        return setting.value

    def _is_as_empty(self, setting: Setting, wanted: str, text: str) -> bool:
        """Whether a cpuset that should be empty, and cannot, has all that its parent has."""
        if wanted or not setting.file.startswith("cpuset."):
            return False
        try:
            return is_same(setting.file, text, self._files.inherited(setting.cgroup, setting.file))
        except (Gone, OSError):
            return False

    def _is_adopted(self, setting: Setting) -> bool:
        """Whether the runtime wrote it at our word, so that it is put back like what we wrote ourselves."""
        return self._journal is not None and setting.original is not None and setting.place not in self._journal.entries

    def _agreed(self, setting: Setting, text: str) -> None:
        entry = self._journal.entries.get(setting.place) if self._journal else None
        if (
            setting.value is None
            and self._journal is not None
            and entry
            and is_same(setting.file, entry.original, text)
        ):
            self._journal.forget([setting.place])
        quarrel = self._quarrels.get(setting.place)
        if quarrel is not None:
            quarrel.rounds -= 1
            if quarrel.rounds <= 0:
                del self._quarrels[setting.place]

    def _write(self, change: Setting) -> None:
        value = change.value or ""
        try:
            self._files.write(change.cgroup, change.file, value)
        except OSError as error:
            if error.errno != errno.ENOSPC or value:
                raise
            value = self._files.inherited(change.cgroup, change.file)  # the kernel empties no cpuset that is in use
            self._files.write(change.cgroup, change.file, value)
        self._read_back(change, value)

    def _read_back(self, change: Setting, value: str) -> None:
        """Compare with what the kernel made of it; what is effective can be less, where a parent allows less."""
        assert self._journal is not None
        text = self._files.read(change.cgroup, change.file)
        if not is_same(change.file, value, text):
            self._alarm(change, text)
        if text != change.value:
            self._journal.confirm(change.place, text)
        if change.file in ("memory.min", "memory.low"):
            self._check_ancestors(change)
        if change.file not in ("cpuset.cpus", "cpuset.mems") or not value:
            return
        try:
            effective = self._files.read(change.cgroup, f"{change.file}.effective")
        except OSError:
            return
        if effective and not is_same(change.file, value, effective):
            self._alarm(change, effective)

    def _check_ancestors(self, change: Setting) -> None:
        """Alarm if a cgroup above protects less memory: what is below it is then protected no more than that."""
        wanted = amount(change.file, change.value or "0")
        above = change.cgroup.rpartition("/")[0]
        while above:
            try:
                text = self._files.read(above, change.file)
            except (Gone, OSError):
                return
            if amount(change.file, text) < wanted:
                self._alarm(change, f"{text} in {above}")
                return
            above = above.rpartition("/")[0]

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

    def _retreat(self, place: Place) -> Quarrel:
        """Wait before the next attempt: not at all the first time, then twice as long each time."""
        quarrel = self._quarrels.setdefault(place, Quarrel())
        quarrel.wait = min(2**quarrel.rounds - 1, LONGEST_RETREAT)
        quarrel.rounds += 1
        return quarrel
