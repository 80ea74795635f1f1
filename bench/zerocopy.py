"""What the shared segment of two pods on one host saves, beside TCP over the veth that joins them (as root).

Both ways are the same Python, by turns in one run: a process in each of two network namespaces of our own, 64 bytes
there and back, and 1 MiB pieces one way; over the segment each piece is copied in by one side and out by the other,
as an application would that keeps its own buffers. Waiting on the segment is spinning, which costs a core: a program
that cannot afford that pays for a futex or an eventfd. No UB hardware is involved: figures of this machine's memory.
Ends with ``ratio R``: the median round trip over the segment as a part of that over TCP.
"""

import mmap
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ubhost import segment
from ubhost.kernel.netns import visiting

ROUNDS = 5
TRIPS = 2000
SMALL = 64  # bytes
PIECE = 1 << 20
PIECES = 256
SLOTS = 8
SPINS = 10_000
ADDRESSES = ("10.213.0.1", "10.213.0.2")
PORT = 5300
COUNTER = struct.Struct("=Q")
TO_B, TO_A, CONTENT = 0, 64, 4096  # a cache line for each counter, then the slots


class Shared:
    """The segment as one of the two sides maps it: two counters, each written by one side only, and the slots."""

    def __init__(self, file: Path, *, is_first: bool) -> None:
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 0)
        self._mine, self._theirs = (TO_B, TO_A) if is_first else (TO_A, TO_B)
        self.view = memoryview(self._memory)

    def slot(self, number: int) -> memoryview:
        at = CONTENT + number % SLOTS * PIECE
        return self.view[at : at + PIECE]

    def tell(self, number: int) -> None:
        COUNTER.pack_into(self._memory, self._mine, number)

    def wait(self, number: int) -> None:
        """Spin until the other side has told ``number``; give way now and then, there may be one core only."""
        spins = 0
        while COUNTER.unpack_from(self._memory, self._theirs)[0] < number:
            spins += 1
            if spins % SPINS == 0:
                os.sched_yield()


def echo_shared(file: Path) -> None:
    there, content = Shared(file, is_first=False), bytearray(SMALL)
    for number in range(1, TRIPS + 1):
        there.wait(number)
        content[:] = there.slot(0)[:SMALL]
        there.slot(1)[:SMALL] = content
        there.tell(number)


def ask_shared(file: Path) -> float:
    here, content = Shared(file, is_first=True), bytearray(SMALL)
    taken = []
    for number in range(1, TRIPS + 1):
        began = time.perf_counter()
        here.slot(0)[:SMALL] = content
        here.tell(number)
        here.wait(number)
        content[:] = here.slot(1)[:SMALL]
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def drain_shared(file: Path) -> None:
    there, content = Shared(file, is_first=False), bytearray(PIECE)
    for number in range(1, PIECES + 1):
        there.wait(number)
        content[:] = there.slot(number)
        there.tell(number)


def fill_shared(file: Path) -> float:
    here, content = Shared(file, is_first=True), bytes(PIECE)
    began = time.perf_counter()
    for number in range(1, PIECES + 1):
        here.wait(max(0, number - SLOTS))
        here.slot(number)[:] = content
        here.tell(number)
    here.wait(PIECES)
    return PIECE * PIECES / (time.perf_counter() - began)


def echo_tcp(link: socket.socket) -> None:
    for _ in range(TRIPS):
        link.sendall(link.recv(SMALL, socket.MSG_WAITALL))


def ask_tcp(link: socket.socket) -> float:
    taken = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        link.sendall(bytes(SMALL))
        link.recv(SMALL, socket.MSG_WAITALL)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def drain_tcp(link: socket.socket) -> None:
    content = memoryview(bytearray(PIECE))
    for _ in range(PIECES):
        link.recv_into(content, PIECE, socket.MSG_WAITALL)
    link.sendall(b"!")


def fill_tcp(link: socket.socket) -> float:
    content = bytes(PIECE)
    began = time.perf_counter()
    for _ in range(PIECES):
        link.sendall(content)
    link.recv(1)
    return PIECE * PIECES / (time.perf_counter() - began)


def beside(child: Callable[[], None], parent: Callable[[], float]) -> float:
    """Run one side in a process of its own, the other here."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException as error:
            print(f"the other side failed: {error!r}", file=sys.stderr)
            os._exit(1)
    try:
        return parent()
    finally:
        os.waitpid(pid, 0)


def over_segment(child: Callable[[Path], None], parent: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory(prefix="ub-bench-") as folder:
        segment.make(Path(folder) / "shm", CONTENT + SLOTS * PIECE)
        file = Path(folder) / "shm" / segment.NAME
        try:
            return beside(lambda: child(file), lambda: parent(file))
        finally:
            segment.remove(Path(folder) / "shm")


def over_tcp(child: Callable[[socket.socket], None], parent: Callable[[socket.socket], float]) -> float:
    """The child is in the second namespace, with the listening socket; we connect from the first."""
    with named("ub-bench-b"):
        listening = socket.create_server((ADDRESSES[1], PORT))
    with named("ub-bench-a"):
        here = socket.create_connection((ADDRESSES[1], PORT))
    there, _ = listening.accept()
    with listening, here, there:
        for link in (here, there):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return beside(lambda: child(there), lambda: parent(here))


@contextmanager
def named(name: str) -> Iterator[None]:
    with Path(f"/run/netns/{name}").open() as file, visiting(file.fileno()):
        yield


@contextmanager
def two_pods() -> Iterator[None]:
    for name in ("ub-bench-a", "ub-bench-b"):
        _ip("netns", "add", name)
    try:
        _ip("link", "add", "eth0", "netns", "ub-bench-a", "type", "veth", "peer", "eth0", "netns", "ub-bench-b")
        for name, address in zip(("ub-bench-a", "ub-bench-b"), ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield
    finally:
        for name in ("ub-bench-a", "ub-bench-b"):
            _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def main() -> None:
    trips: dict[str, list[float]] = {"segment": [], "tcp": []}
    rates: dict[str, list[float]] = {"segment": [], "tcp": []}
    with two_pods():
        for _ in range(ROUNDS):
            trips["segment"].append(over_segment(echo_shared, ask_shared))
            trips["tcp"].append(over_tcp(echo_tcp, ask_tcp))
            rates["segment"].append(over_segment(drain_shared, fill_shared))
            rates["tcp"].append(over_tcp(drain_tcp, fill_tcp))
    for name in trips:
        trip, rate = statistics.median(trips[name]), statistics.median(rates[name])
        print(f"{name:8} {trip * 1e6:7.1f} us there and back with {SMALL} bytes, {rate / 1e9:5.2f} GB/s one way")
    print(f"ratio {statistics.median(trips['segment']) / statistics.median(trips['tcp']):.3f}")


if __name__ == "__main__":
    main()
