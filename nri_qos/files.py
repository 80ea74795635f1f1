"""Reading and writing the files of one cgroup hierarchy. Nothing is decided here.

Paths come from what the runtime says, so links are not followed: root writes here.

Source: reference/nri.md section 3.1 (ENODEV, ENOENT, writes of no bytes).
"""

import errno
import os
from pathlib import Path


class Gone(Exception):
    """The cgroup is not there any more."""


class Hierarchy:
    def __init__(self, root: Path) -> None:
        self._root = root

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

    def write(self, cgroup: str, file: str, value: str) -> None:
        """Write ``value``, which may be empty.

        Raises:
            Gone: the cgroup is not there.
            OSError: the kernel refuses.
        """
        data = (value or "\n").encode()  # a write of no bytes does not reach the kernel
        try:
            fd = os.open(f"{self._root}/{cgroup}/{file}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                size = os.fstat(fd).st_size  # of a plain file below another root; the kernel's have none
                os.write(fd, data.ljust(size, b"\n"))  # no reader ever sees the end of a longer text behind it
                if size > len(data):
                    os.ftruncate(fd, len(data))
            finally:
                os.close(fd)
        except OSError as error:
            self._raise_gone(cgroup, error)
            raise

    def exists(self, cgroup: str) -> bool:
        return Path(self._root, cgroup).is_dir()

    def children(self, cgroup: str) -> list[str]:
        """Return the cgroups inside ``cgroup``; "" is the root."""
        prefix = f"{cgroup}/" if cgroup else ""
        try:
            found = [entry.name for entry in os.scandir(self._root / cgroup) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return [prefix + name for name in sorted(found)]

    def inherited(self, cgroup: str, file: str) -> str:
        """Return what an empty ``cpuset.cpus`` or ``cpuset.mems`` of ``cgroup`` means: what its parent has.

        Raises:
            Gone: the parent is not there.
            OSError: it cannot be read.
        """
        return self.read(cgroup.rpartition("/")[0], f"{file}.effective")

    def _raise_gone(self, cgroup: str, error: OSError) -> None:
        if error.errno == errno.ENODEV or (error.errno == errno.ENOENT and not self.exists(cgroup)):
            raise Gone(cgroup) from error
