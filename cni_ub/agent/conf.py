"""Keep ub-cni in the node's CNI configuration, by the plan of ``confplan``.

Looked at once a second: the folder's files are few, and only read when name, size or time of one changed. A file is
0600, appears whole, is not rewritten when equal, and is removed when the network it extends is gone or the mode is
another. Stopping the agent leaves it: ub-cni works without the agent, and pods would lose their UB network meanwhile.
``remove_all`` is for taking ub-cni off the node.

Source: reference/cni.md H47 and section 1.8.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cni_ub.agent import confplan, watchedfolder
from cni_ub.agent.confplan import Found
from cni_ub.agent.service import Loop
from cni_ub.agent.settings import ConfMode, ConfSettings
from ubhost.errors import Conflict, HostFault, NotFound
from ubhost.roots import Roots

MODE = 0o600  # a configuration may hold secrets of the primary
LARGEST = 1 << 20  # bytes of a configuration file
_RELOAD = ".ub-cni-reload"

log = logging.getLogger(__name__)


class ConfGenerator:
    """A ``Service`` of the agent, and what ``ubnode conf`` calls once."""

    name = "CNI configuration"

    def __init__(self, settings: ConfSettings, roots: Roots) -> None:
        self.folder = roots.root / settings.folder.lstrip("/")
        self._settings = settings
        self._seen: object = None
        self._loop = Loop(self.name, self._turn)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def ready(self) -> str | None:
        return self._loop.trouble

    def look(self) -> list[Found]:
        """Return the files that a runtime would look at.

        Raises:
            NotFound: there is no such folder.
            HostFault: it cannot be read.
        """
        try:
            names = sorted(entry.name for entry in self.folder.iterdir() if confplan.counts(entry.name))
        except FileNotFoundError as error:
            raise NotFound(f"{self.folder} is missing: no runtime is set up here, or it is not mounted") from error
        except OSError as error:
            raise HostFault(f"cannot read {self.folder}: {error.strerror}") from error
        return [_read(self.folder / name) for name in names if (self.folder / name).is_file()]

    def update(self) -> list[Path]:
        """Make the folder as it should be; return what was written or removed.

        Raises:
            UbError: it cannot be done, or the primary cannot be read now; everything is as it was.
        """
        if self._settings.mode in (ConfMode.OFF, ConfMode.NAD) and not self.folder.is_dir():
            return []
        files = self.look()
        wanted = {self.folder / path: text for path, text in confplan.wanted(files, self._settings).items()}
        written = [path for path, text in wanted.items() if self._put(path, text)]
        return written + self._remove(path for path in self._ours(files) if path not in wanted)

    def remove_all(self) -> list[Path]:
        """Remove every file of ours; return them."""
        return self._remove(self._ours(self.look()))

    def _turn(self) -> None:
        seen = tuple(self._signature())
        if seen == self._seen and self._loop.trouble is None:
            return
        for path in self.update():
            log.info("CNI configuration changed", extra={"path": str(path), "mode": self._settings.mode.value})
        self._seen = seen  # as it was before we read it: what changed meanwhile is seen at the next turn

    def _signature(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield what differs when a file changed, in the folder and in those of networks."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                paths = [f"{entry.path}/{confplan.SUBDIR_FILE}"] if entry.is_dir(follow_symlinks=False) else []
                for path in (entry.path, *paths):
                    with contextlib.suppress(OSError):
                        found = os.stat(path)  # noqa: PTH116 - every second
                        yield path, found.st_ino, found.st_size, found.st_mtime_ns

    def _put(self, path: Path, text: bytes) -> bool:
        if path.parent == self.folder:
            return watchedfolder.put(path, text, mode=MODE)
        if path.parent.is_symlink():
            raise Conflict(f"{path.parent} is a symbolic link")
        if watchedfolder.holds(path, text, MODE):
            return False
        with self._making_runtimes_look():
            watchedfolder.make(path.parent)
            watchedfolder.put(path, text, mode=MODE, stage=self.folder.parent)
        return True

    @contextlib.contextmanager
    def _making_runtimes_look(self) -> Iterator[None]:
        """Runtimes do not watch the folders of networks. A folder that comes and goes beside them makes them reload.

        If we are killed inside, it is still there for the next update to remove.
        """
        reload = self.folder / _RELOAD
        try:
            reload.mkdir(mode=0o700, exist_ok=True)
            yield
            reload.rmdir()
        except OSError as error:
            raise HostFault(f"cannot change {self.folder}: {error.strerror}") from error

    def _ours(self, files: list[Found]) -> Iterator[Path]:
        for found in files:
            if found.name in confplan.NAMES and found.is_ours:
                yield self.folder / found.name
        with contextlib.suppress(OSError):
            for entry in sorted(self.folder.iterdir()):
                path = entry / confplan.SUBDIR_FILE
                if entry.is_dir() and not entry.is_symlink() and path.is_file() and _read(path).is_ours:
                    yield path

    def _remove(self, paths: Iterator[Path]) -> list[Path]:
        removed = [path for path in list(paths) if watchedfolder.remove(path)]
        with contextlib.suppress(FileNotFoundError):
            (self.folder / _RELOAD).rmdir()
        for path in removed:
            if path.parent != self.folder:
                with self._making_runtimes_look(), contextlib.suppress(OSError):  # others have files there
                    path.parent.rmdir()
        return removed


def _read(path: Path) -> Found:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return Found(path.name, problem="not a file")
            text = file.read(LARGEST + 1)
    except OSError as error:
        return Found(path.name, problem=f"unreadable: {error.strerror}")
    return confplan.read(path.name, text) if len(text) <= LARGEST else Found(path.name, problem="too large")
