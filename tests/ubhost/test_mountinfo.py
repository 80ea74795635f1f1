"""The mount table as the kernel prints it."""

from pathlib import Path

import pytest

from ubhost.errors import HostFault
from ubhost.kernel import mountinfo
from ubhost.kernel.mountinfo import Origin

TABLE = r"""27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 0:5 / /proc rw,nosuid - proc proc rw
40 27 254:0 /a\040b/data /mnt/a\040b ro,nosuid,nodev shared:1 master:3 propagate_from:2 - ext4 /dev/vda rw
41 40 0:44 / /mnt/a\040b rw - fuse.glusterfs ub:v1 rw,user_id=0
42 27 0:45 /sub /mnt/slave rw master:3 - btrfs /dev/loop0 rw,subvol=/sub
"""


def test_every_field_is_read() -> None:
    mounts = mountinfo.parse(TABLE)
    third = mounts[2]
    assert third.origin == Origin("254:0", "/a b/data")
    assert third.target == "/mnt/a b"
    assert third.is_read_only
    assert third.is_shared
    assert not third.is_slave
    assert third.tags == ("shared:1", "master:3", "propagate_from:2")
    assert mounts[3].fstype == "fuse.glusterfs"
    assert mounts[4].is_slave


def test_stacked_mounts_are_told_from_bottom_to_top() -> None:
    assert [mount.id for mount in mountinfo.at(mountinfo.parse(TABLE), Path("/mnt/a b"))] == [40, 41]


def test_a_folder_is_told_from_one_whose_name_it_begins_with() -> None:
    mounts = mountinfo.parse(TABLE)
    assert [mount.id for mount in mountinfo.below(mounts, Path("/mnt/a b"))] == [40, 41]
    assert mountinfo.below(mounts, Path("/mnt/a")) == ()
    assert mountinfo.containing(mounts, Path("/mnt/a b/x")).id == 41
    assert mountinfo.containing(mounts, Path("/mnt/a")).id == 27


def test_a_line_of_unknown_form_is_quoted() -> None:
    with pytest.raises(HostFault, match="nonsense"):
        mountinfo.parse("nonsense\n")


def test_this_process_has_a_root() -> None:
    assert mountinfo.at(mountinfo.read(), Path("/"))
