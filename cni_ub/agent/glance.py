"""A look at the host that costs next to nothing, taken every second: has anything changed that raises no event?

The driver tells of devices that come and go. It does not tell when the state of a port or an EID changes, nor does
UBSE when it thinks otherwise of a device. Reading just these is some dozen small files; everything is read again when
the result differs. What is returned can only be compared.

Source: reference/ub.md section 9 (events); kernel drivers/ub/urma/ubcore (no uevent on a port change).
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from ubhost.errors import UbError
from ubhost.roots import Roots
from ubhost.ubse.client import Ubse

_SHORT = 64  # bytes; a state or an EID is shorter


class Glance:
    def __init__(self, roots: Roots) -> None:
        self._urma = os.fspath(roots.sys / "class" / "ubcore")
        self._rdma = os.fspath(roots.sys / "class" / "infiniband")
        self._folders = tuple(os.fspath(path) for path in (roots.state / "attachments", roots.dev / "uburma"))
        self._ubse = Ubse(roots.ubse_socket, timeout_s=2)

    def __call__(self) -> object:
        return tuple(self._files()), tuple(map(_changed, self._folders)), self._health()

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for folder, attributes in (
            (self._urma, ("port0/state", "eids/eid0")),
            (self._rdma, ("ports/1/state",)),
        ):
            for name in _names(folder):
                for attribute in attributes:
                    yield name, _read(f"{folder}/{name}/{attribute}")

    def _health(self) -> object:
        if not self._ubse.is_present:
            return None
        try:
            return self._ubse.urma_devices()
        except UbError as error:
            return str(error)


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))  # noqa: PTH208 - names only, every second
    return []


def _changed(folder: str) -> int:
    with suppress(OSError):
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - every second
    return 0


def _read(path: str) -> bytes:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(fd, _SHORT)
        finally:
            os.close(fd)
    return b""
