"""A look at the host that costs next to nothing, taken every second: has anything changed that raises no event?

The driver tells of devices that come and go. It does not tell when the state of a port or an EID changes, nor does
UBSE when it thinks otherwise of a device. Reading just the first port and the first EID of each device is some dozen
small files; everything else that can change is read with every tenth look. All is read properly when the result
differs. What is returned can only be compared.

Source: reference/ub.md section 9 (events); kernel drivers/ub/urma/ubcore (no uevent on a port change).
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from ubhost.errors import UbError
from ubhost.roots import Roots
from ubhost.ubse.client import Ubse

EVERY = 10  # looks, for what changes rarely
_SHORT = 64  # bytes; a state or an EID is shorter


class Glance:
    """``again`` forgets which files are open: something said that devices come or go."""

    def __init__(self, roots: Roots) -> None:
        self._urma = os.fspath(roots.sys / "class" / "ubcore")
        self._rdma = os.fspath(roots.sys / "class" / "infiniband")
        self._entities = os.fspath(roots.sys / "bus" / "ub" / "devices")
        self._folders = tuple(os.fspath(path) for path in (roots.state / "attachments", roots.dev / "uburma"))
        self._ubse = Ubse(roots.ubse_socket, timeout_s=2)
        self._files = OpenFiles()
        self._count = 0
        self._rest: object = None

    def __call__(self) -> object:
        if self._count % EVERY == 0:
            self._files.close()  # one of them may have another file in its place
            self._rest = tuple(self._less_often())
        self._count += 1
        return tuple(self._often()), tuple(map(_changed, self._folders)), self._health(), self._rest

    def again(self) -> None:
        self._count = 0

    def close(self) -> None:
        self._files.close()

    def _often(self) -> Iterator[tuple[str, bytes]]:
        for name in _names(self._urma):
            yield name, self._files.read(f"{self._urma}/{name}/port0/state")
            yield name, self._files.read(f"{self._urma}/{name}/eids/eid0")
        for name in _names(self._rdma):
            yield name, self._files.read(f"{self._rdma}/{name}/ports/1/state")

    def _less_often(self) -> Iterator[tuple[str, bytes]]:
        for name in _names(self._urma):
            folder = f"{self._urma}/{name}"
            yield name, _read(f"{folder}/net_dev")
            for eid in _names(f"{folder}/eids"):
                yield eid, _read(f"{folder}/eids/{eid}")
        for number in _names(self._entities):
            for port in _names(f"{self._entities}/{number}"):
                if port.startswith("port"):
                    yield port, _read(f"{self._entities}/{number}/{port}/linkup")

    def _health(self) -> object:
        try:
            return self._ubse.urma_devices()
        except UbError as error:
            return str(error)


class OpenFiles:
    """Attributes that are read again and again: finding one costs five times as much as reading it."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def read(self, path: str) -> bytes:
        """Return what the attribute says now; nothing where it cannot be read."""
        try:
            if path not in self._open:
                self._open[path] = _open(path)
            return os.pread(self._open[path], _SHORT, 0)
        except OSError:  # it went away, and perhaps came back as another
            if path in self._open:
                os.close(self._open.pop(path))
            return b""

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _read(path: str) -> bytes:
    with suppress(OSError):
        fd = _open(path)
        try:
            return os.read(fd, _SHORT)
        finally:
            os.close(fd)
    return b""


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))  # noqa: PTH208 - names only, every second
    return []


def _changed(folder: str) -> int:
    with suppress(OSError):
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - every second
    return 0
