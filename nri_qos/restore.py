"""Puts back what cgroup files said before us, and only where nobody changed them since.

The kernel does not let the CPUs or memory nodes of a cgroup be emptied while a process is in it (ENOSPC). Empty again
it becomes by taking the cpuset controller from the cgroups of its pod and giving it back, which is done where nobody
else has set anything in that pod; otherwise it gets what empty means, all that its parent has.

Source: kernel/cgroup/cpuset.c, validate_change(); seen on Linux 6.12.
"""

import errno
import logging
from collections import Counter
from pathlib import Path

from nri_qos.files import Gone, Hierarchy
from nri_qos.journal import Journal
from nri_qos.settings import Place, Setting, in_order, is_same
from ubhost.errors import HostFault

CONTROLLERS = "cgroup.subtree_control"
RESTORED, WIDENED, CHANGED, GONE, FAILED = "restored", "widened", "changed by others", "gone", "failed"
_log = logging.getLogger(__name__)


def from_file(root: Path, path: Path) -> dict[str, int]:
    """Restore what the journal of an earlier run names; return how many files were what.

    Raises:
        HostFault: the journal cannot be read or written, or the hierarchy is not there.
    """
    if not path.exists():
        return dict.fromkeys((RESTORED, WIDENED, CHANGED, GONE, FAILED), 0)
    if not root.is_dir():
        raise HostFault(f"there is no cgroup hierarchy at {root}; {path} says what is to be restored")
    journal = Journal(path)
    try:
        outcome = restore(Hierarchy(root), journal)
    finally:
        journal.close()
    if not journal.entries:
        path.unlink(missing_ok=True)
    return outcome


def restore(files: Hierarchy, journal: Journal) -> dict[str, int]:
    """Put back what ``journal`` names; return how many files were what. What failed stays in the journal.

    Raises:
        HostFault: the journal cannot be written.
    """
    return _Restore(files, journal).run()


class _Restore:
    def __init__(self, files: Hierarchy, journal: Journal) -> None:
        self._files = files
        self._journal = journal
        self._outcome = Counter(dict.fromkeys((RESTORED, WIDENED, CHANGED, GONE, FAILED), 0))

    def run(self) -> dict[str, int]:
        for cgroup, file in [place for place in self._journal.entries if place[1] == CONTROLLERS]:
            self._give_back(cgroup)  # an earlier restore was killed in between
            self._journal.forget([(cgroup, file)])
        settings, now = [], {}
        for place, entry in list(self._journal.entries.items()):
            text = self._read(place)
            if text is None:
                self._end(place, GONE)
            elif not any(is_same(place[1], known, text) for known in (entry.written, entry.before)):
                self._end(place, CHANGED)
            else:
                now[place] = text
                settings.append(Setting(*place, entry.original))
        stuck = [setting for setting in in_order(settings, now) if not self._put_back(setting, now[setting.place])]
        for parent in sorted({setting.cgroup.rpartition("/")[0] for setting in stuck}):
            self._clear(parent, [setting for setting in stuck if setting.cgroup.rpartition("/")[0] == parent])
        return dict(self._outcome)

    def _read(self, place: Place) -> str | None:
        try:
            return self._files.read(*place)
        except (Gone, OSError):
            return None

    def _end(self, place: Place, outcome: str) -> None:
        self._outcome[outcome] += 1
        if outcome != FAILED:
            self._journal.forget([place])

    def _put_back(self, setting: Setting, now: str) -> bool:
        """Write one file; return false if the kernel does not let it be emptied."""
        value = setting.value or ""
        try:
            if not is_same(setting.file, value, now):
                self._files.write(setting.cgroup, setting.file, value)
        except Gone:
            self._end(setting.place, GONE)
        except OSError as error:
            if error.errno == errno.ENOSPC and not value:
                return False
            self._fail(setting.place, error)
        else:
            self._end(setting.place, RESTORED)
        return True

    def _fail(self, place: Place, error: OSError) -> None:
        _log.error("a file cannot be restored", extra={"cgroup": place[0], "file": place[1], "error": str(error)})
        self._end(place, FAILED)

    def _clear(self, parent: str, settings: list[Setting]) -> None:
        """Empty cpusets of the cgroups in ``parent``."""
        ours = {setting.place for setting in settings}
        others = [
            (child, file)
            for child in self._files.children(parent)
            for file in ("cpuset.cpus", "cpuset.mems")
            if (child, file) not in ours and self._read((child, file))
        ]
        if not others and self._take_and_give_back(parent):
            for setting in settings:
                self._end(setting.place, RESTORED)
            return
        for setting in settings:
            self._widen(setting)

    def _take_and_give_back(self, parent: str) -> bool:
        self._journal.intend([((parent, CONTROLLERS), "+cpuset", "-cpuset")])
        try:
            self._files.write(parent, CONTROLLERS, "-cpuset")
        except (Gone, OSError):
            self._journal.forget([(parent, CONTROLLERS)])
            return False
        self._give_back(parent)
        self._journal.forget([(parent, CONTROLLERS)])
        return True

    def _give_back(self, parent: str) -> None:
        try:
            self._files.write(parent, CONTROLLERS, "+cpuset")
        except (Gone, OSError) as error:
            _log.error("the cpuset controller cannot be given back", extra={"cgroup": parent, "error": str(error)})

    def _widen(self, setting: Setting) -> None:
        try:
            self._files.write(setting.cgroup, setting.file, self._files.inherited(setting.cgroup, setting.file))
        except Gone:
            self._end(setting.place, GONE)
        except OSError as error:
            self._fail(setting.place, error)
        else:
            self._end(setting.place, WIDENED)
