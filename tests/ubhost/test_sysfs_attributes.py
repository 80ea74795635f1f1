"""What may stand in a sysfs attribute, and what the reader makes of everything else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.model import Eid, PortState, TransMode
from ubhost.sysfs.attributes import MAX_ENTRIES, Folder, Unreadable, read_text


def folder(path: Path, **attributes: str | bytes) -> Folder:
    for name, content in attributes.items():
        (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Folder(path)


def test_a_missing_attribute_is_none(tmp_path: Path) -> None:
    empty = folder(tmp_path)
    assert empty.text("x") is None
    assert empty.number("x") is None
    assert empty.eid("x") is None
    assert (empty / "none").names() == []
    assert (empty / "none").number("x") is None


def test_an_attribute_below_a_file_is_missing(tmp_path: Path) -> None:
    assert (folder(tmp_path, device="x\n") / "device").number("vendor") is None


def test_an_attribute_that_the_driver_will_not_tell_is_none() -> None:
    """speed of ``lo`` answers EINVAL, in this kernel as in every other."""
    path = Path("/sys/class/net/lo/speed")
    with pytest.raises(OSError, match="Invalid argument"):
        path.read_text()
    assert read_text(str(path)) is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a\0b\n", "control characters"),
        (b"\x1b[31m\n", "control characters"),
        (b"\xff\xfe\n", "not UTF-8"),
        (b"x" * 4097, "longer than 4096 bytes"),
        (b"one\ntwo\n", "more than one line"),
    ],
)
def test_text_that_no_kernel_writes_is_refused_by_its_path(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(Unreadable, match=rf"/guid: {complaint}"):
        folder(tmp_path, guid=content).text("guid")


def test_a_fifo_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "guid")
    with pytest.raises(Unreadable, match="guid: not an attribute"):
        Folder(tmp_path).text("guid")


def test_a_link_in_the_place_of_an_attribute_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "guid").symlink_to("/etc/hostname")
    with pytest.raises(Unreadable, match="guid: Too many levels"):
        Folder(tmp_path).text("guid")


def test_a_folder_in_the_place_of_an_attribute_is_refused(tmp_path: Path) -> None:
    (tmp_path / "guid").mkdir()
    with pytest.raises(Unreadable, match="guid: not an attribute"):
        Folder(tmp_path).text("guid")


def test_a_folder_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 1):
        (tmp_path / f"eid{number}").touch()
    with pytest.raises(Unreadable, match="more than 4096 entries"):
        Folder(tmp_path).names()


@pytest.mark.parametrize(
    ("read", "content", "value"),
    [
        (Folder.number, "17", 17),
        (Folder.number, "0x1f", 31),
        (Folder.number, "-1", -1),
        (Folder.hexadecimal, "cc08", 0xCC08),
        (Folder.hexadecimal, "0xcc08", 0xCC08),
        (Folder.flag, "1", True),
        (Folder.flag, "0x0", False),
        (Folder.flag, "true", True),
        (Folder.flag, "false", False),
        (Folder.eid, "4245:4944:0000:0000:0000:0000:0100:0000", Eid(0x4245_4944 << 96 | 0x0100_0000)),
        (Folder.eid, "::ffff:10.0.0.1", Eid(0xFFFF_0A00_0001)),
        (Folder.entity, "00002", "00002"),
        (Folder.entity, "0x002", "00002"),
        (Folder.text, "", None),
        (lambda f, n: f.enum(n, PortState), "4", PortState.ACTIVE),
        (lambda f, n: f.flags(n, TransMode), "5", TransMode.RM | TransMode.UM),
    ],
)
def test_values_are_read_in_the_forms_that_kernels_print(
    tmp_path: Path, read: Callable[[Folder, str], object], content: str, value: object
) -> None:
    assert read(folder(tmp_path, x=f"{content}\n"), "x") == value


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (Folder.number, "many"),
        (Folder.number, "1_000"),
        (Folder.number, "1" * 40),
        (Folder.hexadecimal, "xyz"),
        (Folder.flag, "2"),
        (Folder.eid, "4245:4944"),
        (Folder.entity, "123456"),
        (lambda f, n: f.enum(n, PortState), "6"),
        (lambda f, n: f.flags(n, TransMode), "8"),
        (lambda f, n: f.flags(n, TransMode), "-1"),
    ],
)
def test_a_value_that_makes_no_sense_names_path_and_text(
    tmp_path: Path, read: Callable[[Folder, str], object], content: str
) -> None:
    with pytest.raises(Unreadable) as caught:
        read(folder(tmp_path, x=content), "x")
    assert f"{tmp_path}/x: {content!r} makes no sense" in str(caught.value)


def test_numbered_entries_are_sorted_by_number_and_others_skipped(tmp_path: Path) -> None:
    for name in ("port10", "port2", "portal", "port", "eids", "port-1"):
        (tmp_path / name).mkdir()
    assert [index for index, _ in Folder(tmp_path).numbered("port", 100)] == [2, 10]


def test_a_number_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eid1024").touch()
    with pytest.raises(Unreadable, match="eid1024: number out of range, at most 1023"):
        Folder(tmp_path).numbered("eid", 1024)


@given(st.binary(max_size=100))
def test_any_content_is_text_or_refused(content: bytes) -> None:
    path = Path(f"/tmp/ubhost-attribute-{os.getpid()}")
    path.write_bytes(content)
    try:
        text = read_text(str(path))
    except Unreadable as error:
        assert str(path) in str(error)  # noqa: PT017 - most contents are fine
    else:
        assert text is not None
        assert text.encode() == content.rstrip(b"\n")
    finally:
        path.unlink()
