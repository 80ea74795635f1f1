"""A sysfs of another namespace, against this kernel: ``class/net`` is namespaced just as ``class/ubcore`` is."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ubhost.errors import HostFault
from ubhost.kernel.netns import inode, living, new_netns, own_inode
from ubhost.kernel.netsysfs import sysfs_of

pytestmark = pytest.mark.kernel


@pytest.fixture
def pod() -> Iterator[int]:
    """A namespace with ``lo`` and a link ``ub-inside``."""
    script = "ip link add ub-inside type veth peer name ub-peer && echo ready && exec sleep 60"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdout
        assert sleeper.stdout.readline() == b"ready\n"
        fd = os.open(f"/proc/{sleeper.pid}/ns/net", os.O_RDONLY)
        yield fd
        os.close(fd)
        sleeper.kill()


def test_the_view_shows_the_devices_of_that_namespace_and_no_others(pod: int) -> None:
    with sysfs_of(pod) as sys:
        assert sorted(entry.name for entry in (sys / "class/net").iterdir()) == ["lo", "ub-inside", "ub-peer"]
        assert (sys / "class/net/ub-inside/mtu").read_text() == "1500\n"


def test_the_thread_is_back_and_nothing_is_mounted_or_left_open(pod: int) -> None:
    before = own_inode(), Path("/proc/self/mountinfo").read_text(), sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with sysfs_of(pod):
        assert own_inode() == before[0]
    assert (own_inode(), Path("/proc/self/mountinfo").read_text()) == before[:2]
    assert sorted(os.listdir("/proc/self/fd")) == before[2]  # noqa: PTH208


def test_a_descriptor_that_is_no_namespace_is_a_fault(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(HostFault, match="cannot enter"), sysfs_of(fd):
            pass
    finally:
        os.close(fd)


def test_a_namespace_made_for_a_look_is_empty_and_dies_with_its_descriptor() -> None:
    before = own_inode()
    fd = new_netns()
    try:
        assert inode(fd) != before == own_inode()
        with sysfs_of(fd) as sys:
            assert [entry.name for entry in (sys / "class/net").iterdir()] == ["lo"]
        assert inode(fd) not in living()
    finally:
        os.close(fd)
