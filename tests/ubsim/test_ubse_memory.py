"""UBSE lends memory of other nodes: as device nodes or as a NUMA node, to who asked, and not more than there is."""

import os
import stat
import subprocess
import sys

import pytest

from ubhost.errors import Conflict, Exhausted, HostFault, InvalidRequest, NotFound, UbError, Unsupported
from ubhost.sysfs import read_host
from ubhost.ubse.client import Ubse
from ubhost.ubse.memory import Distance, FdCreate, FdWithLender, Lender, NumaCreate, NumaWithLender, Owner
from ubsim.handles import SuperNodeHandle
from ubsim.shared_memory import attach

MIB, GIB = 1 << 20, 1 << 30
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.scenario({"name": "lend", "nodes": [{"name": "node", "count": 3, "devices": 1}]}),
]


@pytest.fixture
def ubse(supernode: SuperNodeHandle) -> Ubse:
    """UBSE of node0, which borrows."""
    return Ubse(supernode["node0"].roots.ubse_socket)


def test_device_nodes_come_with_owner_and_mode_and_go_again(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    borrower = supernode["node0"]
    before = [read_host(node.roots) for node in supernode.nodes.values()]
    lent = ubse.create_fd(FdCreate("cache", 300 * MIB, Owner(1000, 1001), mode=0o640))
    assert (lent.size, lent.unit_size, len(lent.memids)) == (384 * MIB, 128 * MIB, 3)
    for memid in lent.memids:
        found = (borrower.root / f"dev/obmm_shmdev{memid}").stat()
        assert (found.st_size, found.st_uid, found.st_gid) == (128 * MIB, 1000, 1001)
        assert stat.S_IMODE(found.st_mode) == 0o640
    assert [m.type for m in read_host(borrower.roots).shared_memory] == ["import"] * 3
    exports = [len(read_host(node.roots).shared_memory) for node in list(supernode.nodes.values())[1:]]
    assert sorted(exports) == [0, 3]
    assert ubse.fd("cache") == lent
    assert ubse.fds() == (lent,)
    with attach(borrower.root, lent.memids[0], cached=False) as memory:
        memory.write(0, b"borrowed")
    ubse.delete_fd("cache")
    assert [read_host(node.roots) for node in supernode.nodes.values()] == before
    assert ubse.fds() == ()


def test_a_numa_node_without_cpus_comes_and_goes(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    lent = ubse.create_numa(NumaCreate("far", GIB))
    numa = read_host(supernode["node0"].roots).numa[lent.numa]
    assert (numa.is_cpuless, numa.memory_total) == (True, GIB)
    assert (ubse.numa("far"), ubse.numas()) == (lent, (lent,))
    ubse.delete_numa("far")
    assert len(read_host(supernode["node0"].roots).numa) == 2


def test_the_lender_that_was_asked_for_lends(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    ubse.create_fd(FdWithLender("a", Lender(2, 0, 0, 128 * MIB)))
    ubse.create_numa(NumaWithLender("b", Lender(2, 0, 0, GIB)))
    assert [m.type for m in read_host(supernode["node2"].roots).shared_memory] == ["export"] * 2
    with pytest.raises(Exhausted):
        ubse.create_fd(FdWithLender("c", Lender(0, 0, 0, 128 * MIB)))
    with pytest.raises(Exhausted):
        ubse.create_fd(FdWithLender("d", Lender(77, 0, 0, 128 * MIB)))


def test_a_name_is_used_once_and_unknown_ones_are_not_found(ubse: Ubse) -> None:
    ubse.create_fd(FdCreate("x", 128 * MIB))
    with pytest.raises(Conflict):
        ubse.create_fd(FdCreate("x", 128 * MIB))
    with pytest.raises(Conflict):
        ubse.create_numa(NumaCreate("x", 128 * MIB))
    for call in (
        lambda: ubse.fd("y"),
        lambda: ubse.delete_fd("y"),
        lambda: ubse.numa("x"),
        lambda: ubse.delete_numa("x"),
    ):
        with pytest.raises(NotFound):
            call()


@pytest.mark.parametrize("size", [0, 127 * MIB, 257 * GIB])
def test_a_size_out_of_range_is_refused(ubse: Ubse, size: int) -> None:
    with pytest.raises(InvalidRequest):
        ubse.create_fd(FdCreate("x", size))


def test_nobody_lends_what_it_has_not(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    with pytest.raises(Exhausted):
        ubse.create_numa(NumaCreate("x", 64 * GIB))
    ubse.create_numa(NumaCreate("x", 30 * GIB))
    ubse.create_numa(NumaCreate("y", 30 * GIB))
    with pytest.raises(Exhausted):
        ubse.create_numa(NumaCreate("z", 30 * GIB))
    assert len(read_host(supernode["node0"].roots).numa) == 4


def test_only_direct_neighbours_lend(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    with pytest.raises(Unsupported):
        ubse.create_fd(FdCreate("x", 128 * MIB, distance=Distance.L1))
    for end in ("node0/0/0/0", "node0/0/1/0", "node0/0/0/1", "node0/0/1/1"):
        supernode.happen("link", end=end, up=False)
    with pytest.raises(Exhausted):
        ubse.create_fd(FdCreate("x", 128 * MIB))


def test_memory_of_another_user_cannot_be_seen_or_taken(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    ubse.create_fd(FdCreate("mine", 128 * MIB))
    socket = supernode["node0"].roots.ubse_socket
    os.chown(socket, -1, 65534)
    for folder in socket.parents:
        if folder != folder.parent and not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    code = f"""
import os
from pathlib import Path
from ubhost.errors import HostFault
from ubhost.ubse.client import Ubse
os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
ubse = Ubse(Path({str(socket)!r}))
assert ubse.fds() == ()
for call in (ubse.fd, ubse.delete_fd):
    try:
        call("mine")
    except HostFault as error:
        assert "1003" in str(error), error
    else:
        raise SystemExit("another user's memory was given away")
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(ubse.fds()) == 1


def test_memory_in_use_cannot_be_given_back(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    lent = ubse.create_fd(FdCreate("busy", 128 * MIB))
    with attach(supernode["node0"].root, lent.memids[0], cached=False), pytest.raises(UbError):
        ubse.delete_fd("busy")
    assert ubse.fd("busy") == lent


def test_a_failure_on_order_lends_nothing(supernode: SuperNodeHandle, ubse: Ubse) -> None:
    supernode["node0"].fail("create_fd", "ENOMEM")
    with pytest.raises(HostFault):
        ubse.create_fd(FdCreate("x", 128 * MIB))
    assert ubse.fds() == ()
    assert read_host(supernode["node0"].roots).shared_memory == ()
