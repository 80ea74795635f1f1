"""UBSE shares memory between nodes: create, attach, detach, delete, in that order and in no other."""

import pytest

from ubhost.errors import Busy, Conflict, Exhausted, HostFault, NotFound
from ubhost.sysfs import read_host
from ubhost.ubse.client import Ubse
from ubhost.ubse.shm import Shm, ShmCreate
from ubsim.handles import SuperNodeHandle
from ubsim.ownership import Access
from ubsim.shared_memory import attach

MIB, GIB = 1 << 20, 1 << 30
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.scenario({"name": "share", "nodes": [{"name": "node", "count": 3, "devices": 1}]}),
]


@pytest.fixture
def ubse(supernode: SuperNodeHandle) -> list[Ubse]:
    return [Ubse(node.roots.ubse_socket) for node in supernode.nodes.values()]


def test_what_one_node_writes_the_others_read_and_the_order_is_enforced(
    supernode: SuperNodeHandle, ubse: list[Ubse]
) -> None:
    roots = [node.root for node in supernode.nodes.values()]
    before = [read_host(node.roots) for node in supernode.nodes.values()]
    made = ubse[1].create_shm(ShmCreate("shared", 100 * MIB, info="team-a"))
    assert made == Shm("shared", 128 * MIB, is_cacheable=False, info="team-a")
    with pytest.raises(Conflict):
        ubse[0].create_shm(ShmCreate("shared", 100 * MIB))
    with pytest.raises(HostFault):
        ubse[0].detach_shm("shared")
    ids = [each.attach_shm("shared").memids[0] for each in (ubse[0], ubse[1], ubse[2])]
    assert ubse[2].attach_shm("shared").nodes == ("node0", "node1", "node2")
    devices = [root / f"dev/obmm_shmdev{memid}" for root, memid in zip(roots, ids, strict=True)]
    with devices[0].open("r+b", buffering=0) as file:
        file.write(b"hello")
    assert [device.read_bytes()[:5] for device in devices] == [b"hello"] * 3
    with pytest.raises(Busy):
        ubse[1].delete_shm("shared")
    with attach(roots[0], ids[0], cached=False), pytest.raises(Busy):
        ubse[0].detach_shm("shared")
    for each in ubse:
        each.detach_shm("shared")
    ubse[2].delete_shm("shared")
    assert ubse[0].shms() == ()
    with pytest.raises(NotFound):
        ubse[0].attach_shm("shared")
    assert [read_host(node.roots) for node in supernode.nodes.values()] == before


def test_cacheable_memory_is_seen_when_it_was_published_and_refreshed(
    supernode: SuperNodeHandle, ubse: list[Ubse]
) -> None:
    roots = [node.root for node in supernode.nodes.values()]
    ubse[0].create_shm(ShmCreate("cached", 128 * MIB, is_cacheable=True))
    writer, reader = (ubse[node].attach_shm("cached").memids[0] for node in (0, 2))
    with attach(roots[0], writer, cached=True) as here, attach(roots[2], reader, cached=True) as there:
        here.set_ownership(0, 4096, Access.WRITE)
        here.write(0, b"hello")
        here.set_ownership(0, 4096, Access.NONE)
        there.set_ownership(0, 4096, Access.READ)
        assert there.read(0, 5) == b"hello"


def test_more_than_anybody_can_spare_is_refused(ubse: list[Ubse]) -> None:
    with pytest.raises(Exhausted):
        ubse[0].create_shm(ShmCreate("big", 200 * GIB))


def test_a_call_fails_on_order_like_any_other(supernode: SuperNodeHandle, ubse: list[Ubse]) -> None:
    ubse[0].create_shm(ShmCreate("shared", 128 * MIB))
    supernode["node1"].fail("attach_shared", "EIO")
    with pytest.raises(HostFault):
        ubse[1].attach_shm("shared")
    assert ubse[1].attach_shm("shared").nodes == ("node1",)
