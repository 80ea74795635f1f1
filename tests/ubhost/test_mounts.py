"""Mounts by system call, on the kernel."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ubhost.errors import HostFault, InvalidRequest
from ubhost.kernel import mountinfo, mounts
from ubhost.kernel.beneath import open_beneath, open_folder
from ubhost.kernel.mounts import Attribute


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for mount in reversed(mountinfo.below(mountinfo.read(), tmp_path)):
        mounts.unmount(Path(mount.target), lazy=True)


def bind(source: Path, target: Path, attributes: Attribute) -> None:
    opened = open_folder(source)
    tree = mounts.clone(opened)
    point = open_folder(target)
    mounts.set_attributes(tree, attributes)
    mounts.attach(tree, point, target)
    for descriptor in (opened, tree, point):
        os.close(descriptor)


@pytest.mark.kernel
def test_a_bind_mount_has_its_attributes_from_its_first_moment(folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    source.mkdir()
    target.mkdir()
    bind(source, target, Attribute.RDONLY | Attribute.NOATIME | Attribute.NODEV)
    (mount,) = mountinfo.at(mountinfo.read(), target)
    assert {"ro", "noatime", "nodev"} <= mount.options
    with pytest.raises(OSError, match="Read-only"):
        (target / "file").touch()
    (source / "file").touch()
    assert (target / "file").exists()


@pytest.mark.kernel
def test_the_origin_of_a_folder_is_what_its_mount_shows(folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    source.mkdir()
    target.mkdir()
    bind(source, target, Attribute(0))
    table = mountinfo.read()
    for path in (source, target):
        descriptor = open_folder(path)
        assert mountinfo.origin(table, descriptor) == mountinfo.at(table, target)[0].origin
        os.close(descriptor)


@pytest.mark.kernel
def test_a_busy_mount_is_not_unmounted(folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    source.mkdir()
    target.mkdir()
    bind(source, target, Attribute(0))
    with (target / "file").open("w"), pytest.raises(OSError, match="busy") as caught:
        mounts.unmount(target)
    assert caught.value.errno == errno.EBUSY
    mounts.unmount(target)
    assert mountinfo.at(mountinfo.read(), target) == ()


def test_the_origin_of_a_deleted_folder_is_an_error(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    descriptor = open_folder(gone)
    gone.rmdir()
    with pytest.raises(HostFault, match="gone"):
        mountinfo.origin(mountinfo.read(), descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/../../x", "link", "link/inside", "a/up"])
def test_a_name_never_leads_out_of_the_folder(folder: Path, name: str) -> None:
    (folder / "a").mkdir()
    (folder / "link").symlink_to("/etc")
    (folder / "a/up").symlink_to("..")
    top = open_folder(folder)
    with pytest.raises(OSError, match=r"cross-device|symbolic"):
        open_beneath(top, name, os.O_PATH)
    os.close(top)


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_is_no_name_is_refused(folder: Path, name: str) -> None:
    top = open_folder(folder)
    with pytest.raises(InvalidRequest):
        open_beneath(top, name, os.O_PATH)
    os.close(top)


def test_a_file_inside_is_opened(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a/file").write_text("here")
    top = open_folder(folder)
    with os.fdopen(open_beneath(top, "a/file", os.O_RDONLY)) as file:
        assert file.read() == "here"
    os.close(top)
