"""Which files the processes of this machine use, in whatever namespace they live: /proc, read as root."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def open_files() -> Iterator[tuple[int, int]]:
    """Yield device and inode of every file that some process has open, mapped, or stands in."""
    for process in Path("/proc").glob("[0-9]*"):
        for place in ("fd", "map_files"):
            with suppress(OSError), os.scandir(process / place) as entries:
                for entry in entries:
                    with suppress(OSError):
                        state = entry.stat()
                        yield state.st_dev, state.st_ino
        for place in ("cwd", "root"):
            with suppress(OSError):
                state = (process / place).stat()
                yield state.st_dev, state.st_ino
