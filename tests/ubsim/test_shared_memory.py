"""Shared memory between simulated nodes: two copies, published and refreshed by ownership, or one file for all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.waiting import wait_for
from ubhost.errors import InvalidRequest, NotFound
from ubhost.sysfs import read_host
from ubnode.__main__ import main as ubnode
from ubsim.handles import SuperNodeHandle
from ubsim.ownership import PAGE, Access
from ubsim.shared_memory import Memory, attach

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.scenario(
        {
            "name": "memory",
            "nodes": [{"name": "node", "count": 3, "devices": 1}],
            "shared_memory": [
                {"name": "cc", "owner": "node0", "importers": ["node1"], "cacheable": True},
                {"name": "nc", "owner": "node0", "importers": ["node1"]},
            ],
        }
    ),
]
CC, NC = 1, 2


@pytest.fixture
def both(supernode: SuperNodeHandle) -> Iterator[tuple[Memory, Memory]]:
    """The cacheable region on node0 and on node1."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(attach(supernode[n].root, CC, cached=True)) for n in ("node0", "node1"))
        yield first, second


def test_what_was_written_is_seen_after_publish_and_refresh_and_not_before(both: tuple[Memory, Memory]) -> None:
    writer, reader = both
    reader.set_ownership(0, PAGE, Access.READ)
    assert reader.read(0, 5) == bytes(5)
    reader.set_ownership(0, PAGE, Access.NONE)
    writer.set_ownership(0, PAGE, Access.WRITE)
    writer.write(0, b"hello")
    writer.set_ownership(0, PAGE, Access.NONE)
    with pytest.raises(PermissionError):
        reader.read(0, 5)
    assert reader._bytes[0:5] == bytes(5), "the cache still has the old bytes"
    reader.set_ownership(0, PAGE, Access.READ)
    assert reader.read(0, 5) == b"hello"


def test_a_second_writer_is_refused(both: tuple[Memory, Memory]) -> None:
    first, second = both
    first.set_ownership(0, PAGE, Access.WRITE)
    with pytest.raises(PermissionError, match="being written by node0"):
        second.set_ownership(0, PAGE, Access.WRITE)
    second.set_ownership(PAGE, 2 * PAGE, Access.WRITE)


def test_bytes_without_ownership_cannot_be_touched(both: tuple[Memory, Memory]) -> None:
    first, _ = both
    with pytest.raises(PermissionError):
        first.write(0, b"x")
    first.set_ownership(0, PAGE, Access.READ)
    with pytest.raises(PermissionError):
        first.write(0, b"x")
    with pytest.raises(OSError, match="outside of"):
        first.read(first.size - 1, 2)


def test_a_process_that_dies_writes_back_and_leaves_the_page_to_others(supernode: SuperNodeHandle) -> None:
    code = f"""
import os
from pathlib import Path
from ubsim.shared_memory import Access, attach
with attach(Path({str(supernode["node0"].root)!r}), 1, cached=True) as memory:
    memory.set_ownership(0, 4096, Access.WRITE)
    memory.write(0, b"last words")
    os.kill(os.getpid(), 9)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=False)
    with attach(supernode["node1"].root, CC, cached=True) as memory:

        def taken() -> bool:
            try:
                memory.set_ownership(0, PAGE, Access.READ)
            except PermissionError:
                return False
            return True

        wait_for(taken)
        assert memory.read(0, 10) == b"last words"


def test_memory_that_is_not_cached_is_the_same_for_all_at_once(supernode: SuperNodeHandle) -> None:
    with (
        attach(supernode["node0"].root, NC, cached=False) as first,
        attach(supernode["node1"].root, NC, cached=False) as second,
    ):
        first.write(100, b"now")
        assert second.read(100, 3) == b"now"
        with pytest.raises(PermissionError, match="cacheable mappings only"):
            first.set_ownership(0, PAGE, Access.READ)


def test_the_wrong_kind_of_mapping_and_unknown_memory_are_refused(supernode: SuperNodeHandle) -> None:
    with pytest.raises(PermissionError), attach(supernode["node0"].root, NC, cached=True):
        pass
    with pytest.raises(PermissionError), attach(supernode["node0"].root, CC, cached=False):
        pass
    with pytest.raises(NotFound), attach(supernode["node2"].root, CC, cached=True):
        pass


def test_memory_cannot_go_while_it_is_open(supernode: SuperNodeHandle) -> None:
    with attach(supernode["node1"].root, CC, cached=True):
        with pytest.raises(InvalidRequest, match="open on node1"):
            supernode.happen("unshare", name="cc")
        assert [m.id for m in read_host(supernode["node1"].roots).shared_memory] == [CC, NC]
    wait_for(lambda: _goes(supernode))
    assert [m.id for m in read_host(supernode["node0"].roots).shared_memory] == [NC]
    with pytest.raises(NotFound), attach(supernode["node1"].root, CC, cached=True):
        pass


def _goes(supernode: SuperNodeHandle) -> bool:
    try:
        supernode.happen("unshare", name="cc")
    except InvalidRequest:
        return False
    return True


def test_memory_is_shared_and_unshared_from_the_command_line(supernode: SuperNodeHandle) -> None:
    root = ["--root", str(supernode.folder)]
    share = ["sim", "share", "later", "--owner", "node2", "--to", "node0", "node1", "--size", "128MiB", "--cacheable"]
    assert ubnode([*share, *root]) == 0
    with attach(supernode["node0"].root, 3, cached=True) as memory:
        memory.set_ownership(0, PAGE, Access.WRITE)
        memory.write(0, b"x")
    assert ubnode([*share, *root]) == 2
    assert ubnode(["sim", "unshare", "later", *root]) == 0
    assert ubnode([*share, *root]) == 0
    with attach(supernode["node0"].root, 3, cached=True) as memory:
        memory.set_ownership(0, PAGE, Access.READ)
        assert memory.read(0, 1) == b"\0", "fresh memory is zero"
