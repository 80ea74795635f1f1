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


@pytest.mark.parametrize("odd", [*"\r\v\f\x1c\x85\u2028", "\udcff", "\\012", "\\040", "\\134"])
def test_a_name_holds_what_a_file_name_may_hold(tmp_path: Path, odd: str) -> None:
    file = tmp_path / "mountinfo"
    file.write_bytes(TABLE.replace("slave ", f"sl{odd}ve ").encode(errors="surrogateescape"))
    name = {"\\012": "\n", "\\040": " ", "\\134": "\\"}.get(odd, odd)
    assert [mount.target for mount in mountinfo.read(file)][-1] == f"/mnt/sl{name}ve"
    assert [mount.id for mount in mountinfo.read_at(Path(f"/mnt/sl{name}ve"), path=file)] == [27, 42]


def test_what_is_at_a_path_and_above_it_is_told_as_the_whole_table_tells_it(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(TABLE)
    for path in map(Path, ("/", "/mnt", "/mnt/a b", "/mnt/a b/x/y", "/mnt/a", "/proc/self", "/mnt/slave")):
        some, all_ = mountinfo.read_at(Path("/proc"), path, path=file), mountinfo.read(file)
        assert mountinfo.at(some, path) == mountinfo.at(all_, path)
        assert mountinfo.containing(some, path) == mountinfo.containing(all_, path)
        assert mountinfo.at(some, Path("/proc")) == mountinfo.at(all_, Path("/proc"))


def test_a_line_of_unknown_form_is_quoted_whichever_mounts_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text("nonsense\n")
    with pytest.raises(HostFault, match="nonsense"):
        mountinfo.read_at(Path("/"), path=file)
