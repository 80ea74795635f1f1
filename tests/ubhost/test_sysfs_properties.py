"""Whatever host the simulator writes is read back the same; whatever is broken in it never breaks the reader."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.ubhost.hosts import hosts
from ubhost.model import UbHost
from ubhost.roots import Roots
from ubhost.sysfs import Unreadable, read_host
from ubsim.sysfs import entries
from ubsim.tree import write

MEMORY = Path("/dev/shm")  # a tree is hundreds of files


@contextmanager
def tree_of(host: UbHost) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ubhost-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        write(Path(folder), entries(host))
        yield Path(folder)


@given(hosts())
def test_what_is_written_is_read_back(host: UbHost) -> None:
    with tree_of(host) as root:
        assert read_host(Roots(root)) == host


def break_bytes(path: Path, junk: bytes) -> None:
    path.unlink()
    path.write_bytes(junk)


def break_gone(path: Path, junk: bytes) -> None:
    path.unlink()


def break_folder(path: Path, junk: bytes) -> None:
    path.unlink()
    path.mkdir()


def break_fifo(path: Path, junk: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def break_link(path: Path, junk: bytes) -> None:
    path.unlink()
    path.symlink_to("/etc/shadow" if junk else path.name)


def break_parent(path: Path, junk: bytes) -> None:
    """The folder that held the attribute is a file now."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(junk)


BREAKS = [break_bytes, break_gone, break_folder, break_fifo, break_link, break_parent]
junk = st.one_of(
    st.binary(max_size=40), st.text(max_size=20).map(str.encode), st.just(b"9" * 5000), st.just(b"-1"), st.just(b"0x")
)


@given(hosts(), st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(BREAKS), junk), min_size=1, max_size=4))
def test_a_broken_tree_is_read_or_named_by_its_path(host: UbHost, breaks: list[tuple[int, object, bytes]]) -> None:
    with tree_of(host) as root:
        for pick, damage, content in breaks:
            files = [path for path in sorted(root.rglob("*")) if path.is_file() and "sys" in path.parts]
            if files:
                damage(files[pick % len(files)], content)  # type: ignore[operator]
        try:
            read_host(Roots(root))
        except Unreadable as error:
            assert str(root) in str(error)  # noqa: PT017 - many broken trees are still good enough
