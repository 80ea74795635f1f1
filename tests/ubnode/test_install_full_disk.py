"""The node's disk is full: whatever does not fit, an installer says so and leaves the node as it was."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ubnode.conftest import Bundle, install, listing, uninstall, upgrade
from ubhost.errors import HostFault
from ubhost.kernel import mounts
from ubnode.install.layout import Component

pytestmark = pytest.mark.kernel

EVERY = [str(component) for component in Component]
REMOUNT = 0x20


@pytest.fixture
def small(root: Path, tmp_path: Path) -> Path:
    """The node, on a file system of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounts.mount("none", disk, "tmpfs")
    shutil.copytree(root, disk / "node")
    return disk / "node"


def leave(root: Path, *, files: int, pages: int) -> None:
    """Let so many more files and pages fit on the file system of the node."""
    now = os.statvfs(root)
    size = (now.f_blocks - now.f_bfree + pages) * now.f_bsize
    mounts.mount("none", root.parent, "tmpfs", f"nr_inodes={now.f_files - now.f_ffree + files},size={size}", REMOUNT)


def fits_in_the_end(root: Path, work: Callable[[], None], **plenty: int) -> int:
    """Leave one more of the other thing each time until ``work`` succeeds; return how often it did not."""
    [scarce] = {"files", "pages"} - plenty.keys()
    before = listing(root)
    for free in itertools.count():
        leave(root, **plenty, **{scarce: free})
        try:
            work()
        except HostFault:
            assert listing(root) == before, free
        else:
            leave(root, files=1000, pages=1000)
            return free
    raise AssertionError


@pytest.mark.parametrize("plenty", [{"pages": 1000}, {"files": 1000}])
def test_what_does_not_fit_is_taken_back_and_nothing_half_is_left(
    small: Path, bundle: Bundle, plenty: dict[str, int]
) -> None:
    before, old, new = listing(small), bundle("1.0.0"), bundle("1.1.0")
    assert fits_in_the_end(small, lambda: install(small, old, *EVERY), **plenty) > 5
    assert fits_in_the_end(small, lambda: upgrade(small, new), **plenty) > 5
    fits_in_the_end(small, lambda: uninstall(small), **plenty)
    assert listing(small) == before


def test_a_release_that_does_not_fit_is_one_short_sentence(small: Path, bundle: Bundle) -> None:
    install(small, bundle("1.0.0"), "cni")
    leave(small, files=4, pages=1000)
    with pytest.raises(
        HostFault, match=r"^cannot place release 1\.1\.0 in /opt/ub-node: .{,30}No space left on device"
    ) as full:
        upgrade(small, bundle("1.1.0"))
    assert len(str(full.value)) < 300
