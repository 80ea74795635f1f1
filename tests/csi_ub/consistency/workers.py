"""What the nodes do to a volume while it is watched.

Each worker is a process: ``python -m tests.csi_ub.consistency.workers KIND PATH ME LIMIT``. It says that it is ready,
begins when its input ends, and prints one line of JSON for each thing it did, with times of CLOCK_MONOTONIC, which all
processes of a machine share; so nodes are namespaces of one machine. It goes on after an error: that operation may have
happened. It ends at its limit, seconds (``4s``) or rounds (``200x``), or when it is told to by SIGTERM, between two
operations.
"""

import fcntl
import json
import os
import random
import signal
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

READY = "ready\n"
_told_to_end = threading.Event()
_RECORD = struct.Struct("<III")  # writer, number, checksum of both


class Limit:
    """When a worker ends."""

    def __init__(self, text: str) -> None:
        amount, is_time = float(text[:-1]), text.endswith("s")
        self._until = time.monotonic() + (amount if is_time else float("inf"))
        self._rounds = float("inf") if is_time else amount

    def goes_on(self) -> bool:
        """Whether there is to be another round, which counts from now on."""
        self._rounds -= 1
        return self._rounds >= 0 and time.monotonic() < self._until and not _told_to_end.is_set()


def register_open(path: Path, me: int, limit: Limit) -> None:
    """Write and read one register, opening the file for each operation."""
    _register(path, me, limit, lambda: os.open(path, os.O_RDWR), os.close)


def register_held(path: Path, me: int, limit: Limit) -> None:
    """Write and read one register through one descriptor."""
    descriptor = os.open(path, os.O_RDWR)
    _register(path, me, limit, lambda: descriptor, lambda _: None)


def _register(path: Path, me: int, limit: Limit, get: Callable[[], int], put: Callable[[int], None]) -> None:
    choice, count = random.Random(me), 0
    while limit.goes_on():
        is_write = choice.random() < 0.5
        count += is_write
        value, end = (me << 32) + count, float("inf")
        start = time.monotonic_ns()
        try:
            descriptor = get()
            try:
                if is_write:
                    os.pwrite(descriptor, struct.pack("<q", value), 0)
                else:
                    value = struct.unpack("<q", os.pread(descriptor, 8, 0))[0]
            finally:
                put(descriptor)
            end = time.monotonic_ns()
        except OSError:
            if not is_write:
                continue
            time.sleep(0.05)
        _tell({"start": start, "end": end if end != float("inf") else None, "value": value, "is_write": is_write})


def append(path: Path, me: int, limit: Limit) -> None:
    """Append records to one file; tell each that was acknowledged."""
    number = 0
    while limit.goes_on():
        number += 1
        with suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                body = struct.pack("<II", me, number)
                os.write(descriptor, body + struct.pack("<I", zlib.crc32(body)))
                os.fsync(descriptor)
                _tell({"number": number})
            finally:
                os.close(descriptor)


def race(path: Path, me: int, limit: Limit) -> None:
    """Compete to create files and folders, and to move one file away; tell each that was won."""
    number = 0
    while limit.goes_on():
        number += 1
        with suppress(FileExistsError):
            os.close(os.open(path / f"file-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            _tell({"won": f"file-{number}"})
        with suppress(FileExistsError):
            (path / f"folder-{number}").mkdir()
            _tell({"won": f"folder-{number}"})
        with suppress(FileNotFoundError):
            (path / f"prize-{number % 200}").rename(path / f"taken-{me}-{number}")
            _tell({"won": f"prize-{number % 200}"})


def count(path: Path, me: int, limit: Limit) -> None:
    """Add one to a number under a lock; tell each time it was done."""
    while limit.goes_on():
        with path.open("r+b", buffering=0) as file:
            (fcntl.flock if me % 2 else _lockf)(file.fileno(), fcntl.LOCK_EX)
            value = int(file.read() or b"0") + 1
            file.seek(0)
            file.write(b"%020d" % value)
            _tell({"value": value})


def _lockf(descriptor: int, operation: int) -> None:
    fcntl.lockf(descriptor, operation)


def records(path: Path) -> list[tuple[int, int]]:
    """Return the writer and the number of every record of an append log.

    Raises:
        ValueError: one is torn.
    """
    data = path.read_bytes()
    if len(data) % _RECORD.size:
        raise ValueError(f"{path} ends in the middle of a record")
    found = []
    for at in range(0, len(data), _RECORD.size):
        writer, number, checksum = _RECORD.unpack_from(data, at)
        if zlib.crc32(data[at : at + 8]) != checksum:
            raise ValueError(f"record at {at} of {path} is torn")
        found.append((writer, number))
    return found


def _tell(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")


KINDS: dict[str, Callable[[Path, int, Limit], None]] = {
    "register-open": register_open,
    "register-held": register_held,
    "append": append,
    "race": race,
    "count": count,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: _told_to_end.set())
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.read()
    KINDS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), Limit(sys.argv[4]))
