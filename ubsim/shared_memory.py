"""Use shared UB memory of a simulated node from Python, under the rules of libobmm.

    with attach(node.root, memid=2, cached=True) as memory:
        memory.set_ownership(0, 4096, Access.WRITE)      # PermissionError while another node has it
        memory.write(0, b"hello")
        memory.set_ownership(0, 4096, Access.NONE)       # written back: now others can see it

A cached reader sees what was in memory when it last took ownership. What is not cached (``cached=False``, as with
``O_SYNC``) needs no ownership and is the same for all at once. Touching bytes without ownership raises PermissionError
where hardware sends SIGBUS.

Source: reference/ub.md sections 6.1 and 6.2.
"""

import errno
import json
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ubhost.errors import HostFault, NotFound, Unsupported
from ubsim.ownership import PAGE, Access

DIRECTORY = "run/ubsim/regions.json"  # below the root of a node: memid -> region


@dataclass
class Memory:
    """One mapping of one region by this process."""

    name: str
    size: int
    is_cached: bool
    _bytes: mmap.mmap
    _connection: socket.socket
    _access: dict[int, Access] = field(default_factory=dict)

    def set_ownership(self, start: int, end: int, access: Access) -> None:
        """Take or give up the right to touch the bytes from ``start`` up to ``end``, whole pages.

        Raises:
            PermissionError: another node has them, or the mapping is not cached.
            OSError: EINVAL, the range is none.
        """
        _ask(self._connection, {"start": start, "end": end, "access": access.name})
        for page in range(start // PAGE, end // PAGE):
            self._access[page] = access

    def read(self, start: int, size: int) -> bytes:
        self._require(start, size, Access.READ)
        return self._bytes[start : start + size]

    def write(self, start: int, content: bytes) -> None:
        self._require(start, len(content), Access.WRITE)
        self._bytes[start : start + len(content)] = content

    def _require(self, start: int, size: int, access: Access) -> None:
        if start < 0 or size < 0 or start + size > self.size:
            raise OSError(errno.EINVAL, f"{start} to {start + size} are outside of {self.size} bytes")
        if not self.is_cached:
            return
        for page in range(start // PAGE, -(-(start + size) // PAGE)):
            if self._access.get(page, Access.NONE) < access:
                raise PermissionError(errno.EPERM, f"page {page} of {self.name} is not owned for {access.name}")


@contextmanager
def attach(root: Path, memid: int, *, cached: bool) -> Iterator[Memory]:
    """Map the region that the simulated node at ``root`` knows as ``memid`` while the body runs.

    Raises:
        NotFound: the node has no such region, or it became a NUMA node.
        PermissionError: the region is of the other kind.
        Unsupported: the node that exports it is down.
    """
    try:
        known = json.loads((root / DIRECTORY).read_text())
    except FileNotFoundError:
        known = {}
    if str(memid) not in known:
        raise NotFound(f"{root} has no shared memory {memid} that can be mapped")
    region: dict[str, Any] = known[str(memid)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.connect(region["socket"])
        except OSError as error:
            raise Unsupported(f"the owner of {region['name']} is down: nobody listens at {region['socket']}") from error
        _ask(connection, {"region": region["name"], "node": region["node"], "cached": cached})
        descriptor = os.open(region["device"], os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(descriptor, region["size"])
        finally:
            os.close(descriptor)
        try:
            yield Memory(region["name"], region["size"], cached, mapped, connection)
        finally:
            mapped.close()


def _ask(connection: socket.socket, request: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = connection.recv(4096)
            if not part:
                raise HostFault("the owner of the shared memory broke off")
            answer += part
    except OSError as error:
        raise HostFault(f"shared memory: {error.strerror or error}") from error
    told = json.loads(answer)
    if told["errno"]:
        raise OSError(told["errno"], told["reason"])
