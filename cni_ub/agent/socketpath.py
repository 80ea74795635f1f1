"""Unix sockets at paths that are longer than the kernel takes (107 bytes), as below the root of a simulated node."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 107  # bytes of sun_path without its final zero


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Give a path to the same socket that is short enough, valid in this process and inside the body only."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
