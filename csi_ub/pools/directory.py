"""A pool in a plain directory: works on every file system, and limits nobody."""

import shutil
from pathlib import Path

from ubhost.errors import HostFault


class DirectorySpace:
    """Volumes are folders. There is no quota: the sizes of its volumes are reported as unknown."""

    has_quota = False

    def make(self, data: Path, size: int) -> None:
        try:
            data.mkdir()
            data.chmod(0o777)  # any user of a pod may write; the pool itself is closed to all but root
        except OSError as error:
            raise HostFault(f"cannot make {data}: {error.strerror}") from error

    def remove(self, data: Path) -> None:
        remove_tree(data)


def remove_tree(folder: Path) -> None:
    """Remove ``folder`` with all it holds; it may be gone in part or whole.

    Raises:
        HostFault: something in it cannot be removed.
    """
    try:
        shutil.rmtree(folder)  # never follows symbolic links
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostFault(f"cannot remove {folder}: {error.strerror} ({error.filename})") from error
