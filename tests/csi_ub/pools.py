"""Pools to test on: file systems in files, on loop devices."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ubhost.kernel import mountinfo, mounts


def make_btrfs(image: Path, path: Path, size: str = "512M") -> None:
    """Mount a fresh btrfs at ``path``."""
    if not shutil.which("mkfs.btrfs"):
        pytest.skip("btrfs-progs is not installed")
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "-o", "loop", str(image), str(path)], check=True)


def make_xfs(image: Path, path: Path, size: str = "512M", options: str = "loop") -> None:
    """Mount a fresh xfs at ``path``."""
    if not shutil.which("mkfs.xfs"):
        pytest.skip("xfsprogs is not installed")
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run(["mkfs.xfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", options, str(image), str(path)], check=True)


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted below ``folder``, even if it is in use."""
    for mount in reversed(mountinfo.below(mountinfo.read(), folder.resolve())):
        mounts.unmount(Path(mount.target), lazy=True)
