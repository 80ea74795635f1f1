"""Files in folders that another program watches."""

import ctypes
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_ub.agent import watchedfolder
from ubhost.errors import HostFault

IN_ALL = 0xFFF
NAMES = {0x2: "MODIFY", 0x8: "CLOSE_WRITE", 0x40: "MOVED_FROM", 0x80: "MOVED_TO", 0x100: "CREATE", 0x200: "DELETE"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cni" / "net.d"
    made.mkdir(parents=True)
    return made


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Collect what inotify tells a watcher of the folder, as ``EVENT name``; complete when the body is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(fd, os.fsencode(folder), IN_ALL) >= 0
    events: list[str] = []
    try:
        yield events
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            data = b""
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode()
            events += [f"{text} {name}" for bit, text in NAMES.items() if mask & bit]
            data = data[16 + length :]
    finally:
        os.close(fd)


def test_a_watcher_sees_the_name_of_the_file_only_and_a_write_that_fsnotify_does_not_overlook(folder: Path) -> None:
    with watched(folder) as events:
        assert watchedfolder.put(folder / "05-ub.conflist", b"{}\n", mode=0o600)
    assert events == ["MOVED_TO 05-ub.conflist", "MODIFY 05-ub.conflist", "CLOSE_WRITE 05-ub.conflist"]
    assert (folder / "05-ub.conflist").read_bytes() == b"{}\n"
    assert stat.S_IMODE((folder / "05-ub.conflist").stat().st_mode) == 0o600
    assert sorted(entry.name for entry in folder.parent.iterdir()) == ["net.d"]


def test_the_same_content_is_not_written_again(folder: Path) -> None:
    watchedfolder.put(folder / "a.json", b"{}\n")
    with watched(folder) as events:
        assert not watchedfolder.put(folder / "a.json", b"{}\n")
    assert events == []


def test_wrong_permissions_are_put_right(folder: Path) -> None:
    watchedfolder.put(folder / "a.json", b"{}\n", mode=0o644)
    assert watchedfolder.put(folder / "a.json", b"{}\n", mode=0o600)
    assert stat.S_IMODE((folder / "a.json").stat().st_mode) == 0o600


def test_a_symbolic_link_is_replaced_and_not_followed(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / "a.json").symlink_to(victim)
    watchedfolder.put(folder / "a.json", b"precious")
    assert not (folder / "a.json").is_symlink()
    assert victim.read_bytes() == b"precious"


def test_a_link_planted_where_the_new_content_is_written_is_not_followed(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder.parent / ".ub-node.a.json.tmp").symlink_to(victim)
    watchedfolder.put(folder / "a.json", b"new")
    assert victim.read_bytes() == b"precious"
    assert (folder / "a.json").read_bytes() == b"new"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match=r"gone/a\.json: No such file"):
        watchedfolder.put(tmp_path / "gone" / "a.json", b"{}")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("a file in the way")
    with pytest.raises(HostFault, match="var/run/cdi: Not a directory"):
        watchedfolder.make(tmp_path / "var/run/cdi")


def test_remove_tells_whether_there_was_something(folder: Path) -> None:
    watchedfolder.put(folder / "a.json", b"{}")
    assert watchedfolder.remove(folder / "a.json")
    assert not watchedfolder.remove(folder / "a.json")
    assert list(folder.iterdir()) == []


@pytest.mark.kernel
def test_a_folder_that_is_a_mount_of_its_own_gets_whole_files_too(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    try:
        with watched(folder) as events:
            watchedfolder.put(folder / "a.json", b"{}\n")
        assert events == ["CREATE .ub-node", "MOVED_TO a.json", "MODIFY a.json", "CLOSE_WRITE a.json"]
        watchedfolder.remove(folder / "a.json")
        assert list(folder.iterdir()) == []
        assert list(folder.parent.iterdir()) == [folder]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


KILLED_WRITER = """
import os, pathlib, signal, sys
from cni_ub.agent import watchedfolder
def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(pathlib.Path if sys.argv[2] == "replace" else os, sys.argv[2], die)
watchedfolder.put(pathlib.Path(sys.argv[1]), b"new" * 1000)
"""


def test_a_writer_killed_before_it_told_anybody_is_made_up_for_by_the_next(folder: Path) -> None:
    path = folder / "a.json"
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path), "pwrite"], check=False, env=_environment())
    assert killed.returncode == -9
    with watched(folder) as events:
        assert watchedfolder.put(path, b"new" * 1000)
    assert "MODIFY a.json" in events
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("at", ["fchmod", "fsync", "replace"])
def test_a_writer_killed_half_way_leaves_the_old_file_and_the_next_one_succeeds(folder: Path, at: str) -> None:
    path = folder / "a.json"
    watchedfolder.put(path, b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path), at], check=False, env=_environment())
    assert killed.returncode == -9
    assert path.read_bytes() == b"old"
    assert list(folder.iterdir()) == [path]
    watchedfolder.put(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert list(folder.parent.iterdir()) == [folder]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
