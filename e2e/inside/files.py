"""What tests of pools do to the files of a volume, in the guest and on the machine of the CI."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MiB = 1 << 20


def fill(file: Path, size: int) -> int:
    """Write up to ``size`` bytes; return how many there was room for."""
    with file.open("wb", buffering=0) as out:
        for written in range(0, size, MiB):
            try:
                out.write(os.urandom(MiB))
                os.fsync(out.fileno())
            except OSError:
                return written
    return size


@contextmanager
def counting(folder: Path) -> Iterator[None]:
    """Count up in two files, one after the other, as long as the body runs: see ``is_of_one_moment``."""
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            for name in ("first", "second"):
                (folder / f"{name}.new").write_text(str(number))
                (folder / f"{name}.new").rename(folder / name)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def is_of_one_moment(folder: Path) -> bool:
    """Whether a copy of what was ``counting`` has both files as they were together: the second is never ahead."""
    return int((folder / "first").read_text()) - int((folder / "second").read_text()) in (0, 1)
