"""The channel between drivers: who is heard, and that any controller hands a call to the owner."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub.peers.channel import Peers
from csi_ub.peers.credentials import WINDOW_S, Key, Seen
from csi_ub.peers.server import PeerServer
from csi_ub.reasons import Unreachable
from tests.csi_ub.cluster import NODES, cluster
from tests.csi_ub.driver import Driver, StartDriver, refused
from tests.csi_ub.netns import inside
from ubhost.errors import HostFault, InvalidRequest, NotFound, UbError, Unsupported

Code = grpc.StatusCode
KEY = Key(b"k" * 32)
Serve = Callable[..., Peers]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def serve(free_port: int) -> Iterator[Serve]:
    """Let a node listen at 127.0.0.1; return another one that knows it."""
    servers = []

    def serve(theirs: Key = KEY, ours: Key = KEY, known: str = "127.0.0.1", own: str = "127.0.0.1") -> Peers:
        listener = Peers("node1", own, {"node0": known}, theirs, free_port)
        listener.offer("echo", lambda content: content)
        listener.offer("fail", lambda content: (_ for _ in ()).throw(NotFound(f"no {content['what']}")))
        listener.offer("bug", lambda content: {"": 1 / len(content)})
        server = PeerServer(listener)
        server.start()
        servers.append(server)
        return Peers("node0", None, {"node1": own}, ours, free_port)

    yield serve
    for server in servers:
        server.stop()


def test_a_peer_answers_and_raises_what_it_means(serve: Serve) -> None:
    peers = serve()
    assert peers.ask("node1", "echo", {"word": "hé"}) == {"word": "hé"}
    with pytest.raises(NotFound, match="no bread"):
        peers.ask("node1", "fail", {"what": "bread"})
    with pytest.raises(HostFault, match="log of node node1"):
        peers.ask("node1", "bug", {})
    with pytest.raises(Unsupported, match="older"):
        peers.ask("node1", "unheard", {})
    with pytest.raises(Unsupported, match="not among the peers"):
        peers.ask("node9", "echo", {})


def test_a_stranger_without_the_key_is_refused(serve: Serve) -> None:
    port = serve().port
    for key in (Key(b"x" * 32), Key()):
        with pytest.raises(UbError, match="peer_key_file"):
            Peers("node0", None, {"node1": "127.0.0.1"}, key, port).ask("node1", "echo", {})


def test_without_a_key_the_address_decides(serve: Serve) -> None:
    assert serve(Key(), Key()).ask("node1", "echo", {}) == {}


def test_an_address_that_is_no_peers_is_refused(serve: Serve) -> None:
    # The listener's own address is 127.0.0.1; a caller bound elsewhere is no peer.
    peers = serve(Key(), Key(), known="127.0.0.2", own="127.0.0.3")
    with pytest.raises(UbError, match=r"127\.0\.0\.1 is not the address of a peer"):
        peers.ask("node1", "echo", {})


def test_a_call_is_good_once_for_one_body_and_in_time() -> None:
    code = KEY.sign("echo", "1.0", "nonce", b"body")
    assert KEY.is_signed(code, "echo", "1.0", "nonce", b"body")
    for other in (("drop", "1.0", "nonce", b"body"), ("echo", "2.0", "nonce", b"body"), ("echo", "1.0", "n", b"body")):
        assert not KEY.is_signed(code, *other)
    assert not KEY.is_signed(code, "echo", "1.0", "nonce", b"other")
    seen, now = Seen(), time.time()
    assert seen.is_new("nonce", now)
    assert not seen.is_new("nonce", now)
    assert seen.is_new("another", now)
    assert not seen.is_new("old", now - WINDOW_S - 1)
    assert not seen.is_new("early", now + WINDOW_S + 60)


def test_a_silent_peer_is_unreachable(free_port: int) -> None:
    with pytest.raises(Unreachable, match="node1"):
        Peers("node0", None, {"node1": "127.0.0.1"}, KEY, free_port).ask("node1", "echo", {}, 5)


@pytest.mark.parametrize(("mode", "content", "word"), [(0o644, b"k" * 32, "0644"), (0o400, b"short", "5 bytes")])
def test_a_key_that_is_short_or_open_to_others_is_refused(tmp_path: Path, mode: int, content: bytes, word: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(InvalidRequest, match=word):
        Key.load(str(file))
    assert "kkk" not in repr(KEY)


def test_a_volume_has_another_password_on_each_node() -> None:
    assert len({KEY.password(volume, node) for volume in ("a", "b") for node in ("node0", "node1")}) == 4


@pytest.mark.kernel
def test_a_controller_that_owns_nothing_hands_each_call_to_the_owner(start: StartDriver) -> None:
    with cluster(start) as nodes:
        peers = [{"node": name, "address": f"10.77.9.{number}"} for number, name in enumerate(NODES, 1)]
        # On the host network of node2, beside its driver, with a name that is no node's.
        apart: Driver = start("apart", mode="controller", config={"peers": peers}, within=tuple(inside("node2")))
        volume = nodes[0].create(required=1 << 20)
        id_ = volume.volume_id
        call = apart.controller
        sizes = csi.CapacityRange(required_bytes=2 << 20)
        call.ControllerExpandVolume(csi.ControllerExpandVolumeRequest(volume_id=id_, capacity_range=sizes))
        snapshot = call.CreateSnapshot(csi.CreateSnapshotRequest(name="snap", source_volume_id=id_)).snapshot
        assert snapshot.size_bytes == 2 << 20
        listed = call.ListSnapshots(csi.ListSnapshotsRequest(snapshot_id=snapshot.snapshot_id)).entries
        assert [each.snapshot.snapshot_id for each in listed] == [snapshot.snapshot_id]
        with refused(Code.INVALID_ARGUMENT, naming="colour"):
            request = csi.ControllerModifyVolumeRequest(volume_id=id_, mutable_parameters={"colour": "red"})
            call.ControllerModifyVolume(request)
        together = csi_pb2_grpc.GroupControllerStub(apart.channel)
        group = together.CreateVolumeGroupSnapshot(
            csi.CreateVolumeGroupSnapshotRequest(name="group", source_volume_ids=[id_])
        ).group_snapshot
        assert [each.source_volume_id for each in group.snapshots] == [id_]
        together.DeleteVolumeGroupSnapshot(
            csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id=group.group_snapshot_id)
        )
        call.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=snapshot.snapshot_id))
        apart.delete(id_)
        with refused(Code.NOT_FOUND, naming=id_):
            call.ControllerGetVolume(csi.ControllerGetVolumeRequest(volume_id=id_))
        nodes[0].kill()
        with refused(Code.UNAVAILABLE, naming="node0"):
            apart.delete(id_)


def test_the_only_node_of_a_cluster_answers_a_controller_beside_it(start: StartDriver, free_port: int) -> None:
    config = {"peers": [{"node": "node0", "address": "127.0.0.1"}], "peer_port": free_port}
    node, apart = start("node0", config=config), start("apart", mode="controller", config=config)
    volume = node.create(required=1 << 20)
    asked = csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
    assert apart.controller.ControllerGetVolume(asked).volume.volume_id == volume.volume_id
