"""DAX devices of nodes that are folders: what sysfs tells of one, and a plain file in place of its memory."""

import os
from pathlib import Path

MiB = 1 << 20
SECRET = b"what the last owner had in it"


def memory(path: Path, size: int) -> Path:
    """Make the memory that the devices of several nodes are to be; it holds what its last owner left, everywhere."""
    with path.open("wb") as file:
        file.truncate(size)
    soil(path)
    return path


def soil(path: Path) -> None:
    """Leave something on every page."""
    with path.open("r+b") as file:
        for place in range(0, path.stat().st_size, 4096):
            os.pwrite(file.fileno(), SECRET, place)


def is_clean(path: Path) -> bool:
    return not any(path.read_bytes())


def device(root: Path, name: str, file: Path, driver: str = "device_dax") -> Path:
    """Let the node at ``root`` have ``file`` as its device ``name``; return where its sysfs tells of it."""
    facts, dev = root / "sys/bus/dax/devices" / name, root / "dev"
    drivers = root / "sys/bus/dax/drivers" / driver
    for folder in (facts, dev, drivers):
        folder.mkdir(parents=True, exist_ok=True)
    (facts / "size").write_text(f"{file.stat().st_size}\n")
    (facts / "align").write_text(f"{2 * MiB}\n")
    (facts / "driver").symlink_to(drivers)
    (dev / name).hardlink_to(file)
    return facts
