"""Close-to-open volumes: what the NFS engine asks of a kernel and of nfs-utils, which are stand-ins here.

The stand-ins of programs are in ``tests.csi_ub.nfs``; a mount is a bind mount of what is exported to the caller.
Two real kernels speak NFS in e2e/outside/test_nfs.py.
"""

import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from csi_ub import programs
from csi_ub.config import PoolType
from csi_ub.engines import Engines
from csi_ub.engines.base import Reach
from csi_ub.engines.exports import PORT, Exports
from csi_ub.engines.nfs import NfsEngine
from csi_ub.engines.nfsmounts import NfsMounts
from csi_ub.model import AccessMode, Attachment, Consistency, Spec, Volume
from csi_ub.peers.channel import Peers
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.reasons import InUse, Unreachable
from tests.csi_ub.driver import Driver, capability, refused
from tests.csi_ub.nfs import FILE_SYSTEMS, stand_in
from ubhost.errors import HostFault, NotFound, Unsupported
from ubhost.kernel import mountinfo, mounts

HERE = "127.0.0.1"


@dataclass
class World:
    """Two nodes on one machine: ``owner`` has the pool; all that the kernel would have is below ``folder``."""

    folder: Path
    pool: Pool
    owner: NfsEngine
    other: NfsEngine
    mounted: list[tuple[str, str]]

    @property
    def proc(self) -> Path:
        return self.folder / "proc"

    def create(self) -> Volume:
        spec = Spec(consistency=Consistency.CLOSE_TO_OPEN)
        volume = self.pool.create(Volume("", "pvc", "owner", "default", spec, engine="nfs"))
        return self.owner.prepare(volume, self.pool)

    def exports(self) -> list[str]:
        table = self.folder / "etab"
        return table.read_text().splitlines() if table.exists() else []

    def reach(self, volume: Volume, pool: Pool | None = None) -> Reach:
        return Reach(volume.id, "owner", self.owner.context(volume, self.pool), pool)

    def nfs(self, source: str, target: Path, fstype: str, data: str) -> None:
        """Do what mount(2) does for NFS, as far as a bind mount can."""
        options = dict(option.partition("=")[::2] for option in data.split(","))
        assert (fstype, options["vers"], options["addr"]) == ("nfs4", "4.2", HERE)
        assert options["port"] == str(PORT), "static, so that a firewall can know it"
        assert "noac" not in options, "which would cost much, and promise nothing more"
        host, _, path = source.partition(":")
        assert host == HERE
        written = path.replace(" ", r"\040")
        if not any(line.startswith(f"{written}\t{options['clientaddr']}/32(") for line in self.exports()):
            raise FileNotFoundError(2, "No such file or directory")
        mounts.bind(Path(path), target)
        self.mounted.append((source, data))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    proc = tmp_path / "proc"
    monkeypatch.setenv("PATH", f"{stand_in(tmp_path)}:{os.environ['PATH']}")
    (tmp_path / "a pool").mkdir()
    pool = Pool("default", tmp_path / "a pool", space(PoolType.DIR))
    pool.open()
    exports = Exports(proc, tmp_path / "etab", tmp_path / "exports.d", mount=lambda *_: None)
    found = World(tmp_path, pool, None, None, [])  # type: ignore[arg-type]
    hosts = {"owner": HERE, "other": HERE}

    def engine(node: str, pools: tuple[Pool, ...]) -> NfsEngine:
        rest = {name: host for name, host in hosts.items() if name != node}
        return NfsEngine(pools, exports, NfsMounts(tmp_path / node, proc, found.nfs), _Wire(node, HERE, rest))

    found.owner, found.other = engine("owner", (pool,)), engine("other", ())
    for verb, answer in found.owner.verbs().items():
        found.owner.peers.offer(verb, answer)
        found.other.peers.offer(verb, answer)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HERE, PORT))
    listener.listen()
    with listener:
        yield found
    for mount in reversed(mountinfo.below(mountinfo.read(), tmp_path.resolve())):
        mounts.unmount(Path(mount.target), lazy=True)


class _Wire(Peers):
    """Peers in one process: what is asked of another node is answered here."""

    def ask(self, node: str, verb: str, content: dict[str, object], timeout_s: float = 1) -> dict[str, object]:
        return self.verbs[verb](content)


def using(node: str, mode: AccessMode = AccessMode.MULTI_NODE_MULTI_WRITER) -> Attachment:
    return Attachment(node, mode, boot=f"boot of {node}")


def test_a_volume_is_offered_to_its_peers_by_a_number_of_its_own_and_taken_back_when_it_is_deleted(
    world: World,
) -> None:
    volume = world.create()
    number = uuid.UUID(volume.id.rpartition("-")[2])
    (line,) = world.exports()
    assert line.startswith(f"{world.pool.volumes.home}/{volume.id}/share/data\t127.0.0.1/32(".replace(" ", r"\040"))
    options = line.partition("(")[2].rstrip(")").split(",")
    assert {"rw", "sync", "no_subtree_check", "sec=sys", f"fsid={number}"} <= set(options)
    world.owner.look_after(volume, world.pool)
    assert world.exports() == [line], "it is as it should be, so nothing is done"
    (file,) = (world.folder / "exports.d").glob("*.exports")
    assert file.read_text() == line.replace("\t", " ") + "\n", "the server has it when it starts again, without us"
    world.owner.retire(volume, world.pool)
    assert world.exports() == []
    assert list((world.folder / "exports.d").iterdir()) == []
    world.owner.retire(volume, world.pool)


def test_a_node_that_is_no_peer_any_more_is_offered_nothing(world: World) -> None:
    path, number = world.pool.path, str(uuid.uuid4())
    world.owner.exports.ensure(path, number, ["10.0.0.1", "10.0.0.2", "fd00::1"])
    assert world.owner.exports.clients(path) == {"10.0.0.1/32", "10.0.0.2/32", "fd00::1/128"}
    world.owner.exports.ensure(path, number, ["10.0.0.2", "10.0.0.3"])
    assert world.owner.exports.clients(path) == {"10.0.0.2/32", "10.0.0.3/32"}


def test_a_server_that_does_not_run_is_started_and_one_that_runs_is_left_alone(world: World) -> None:
    volume = world.create()
    started = (world.proc / "started").read_text().splitlines()
    assert [Path(line.split()[0]).name for line in started] == ["nfsdcld", "rpc.mountd", "rpc.nfsd"]
    assert started[-1].endswith(f"--port {PORT} 8")
    world.owner.look_after(volume, world.pool)
    assert (world.proc / "started").read_text().splitlines() == started
    (world.proc / "fs/nfsd/threads").write_text("0\n")
    with pytest.raises(HostFault, match="does not run"):
        world.owner.verify(world.reach(volume, world.pool))


@pytest.mark.kernel
def test_nodes_write_one_folder_and_let_go_of_it(world: World) -> None:
    volume = world.create()
    for engine, name in ((world.owner, "owner"), (world.other, "other")):
        reach = world.reach(volume)
        os.close(engine.stage(reach))
        os.close(engine.stage(reach))
        engine.attach(reach, using(name))
        (engine.mounts.point(volume.id) / name).write_text(name)
    assert len(world.mounted) == 2, "the owner comes through NFS too, or its locks would be nobody else's; each once"
    data = world.pool.volumes.home / volume.id / "share/data"
    assert sorted(path.name for path in data.iterdir()) == ["other", "owner"]
    assert sorted(each.node for each in world.pool.users(volume.id)) == ["other", "owner"], "on two machines"
    for engine, name in ((world.owner, "owner"), (world.other, "other")):
        engine.detach(world.reach(volume), name)
        engine.detach(world.reach(volume), name)
    assert world.pool.users(volume.id) == ()
    assert not world.other.mounts.is_mounted(volume.id)
    assert list(world.other.mounts.folder.iterdir()) == []
    world.owner.retire(volume, world.pool)


def test_one_node_has_a_volume_for_itself_where_that_is_asked_for(world: World) -> None:
    volume = world.create()
    world.owner.attach(world.reach(volume), using("owner", AccessMode.SINGLE_NODE_SINGLE_WRITER))
    with pytest.raises(InUse, match="node owner"):
        world.other.attach(world.reach(volume), using("other", AccessMode.SINGLE_NODE_SINGLE_WRITER))
    world.owner.detach(world.reach(volume), "owner")
    world.other.attach(world.reach(volume), using("other", AccessMode.SINGLE_NODE_SINGLE_WRITER))
    with pytest.raises(NotFound):
        world.other.attach(replace(world.reach(volume), volume="ub-none"), using("other"))


@pytest.mark.kernel
def test_what_is_not_offered_or_not_served_is_told_apart(world: World) -> None:
    volume = world.create()
    world.owner.retire(volume, world.pool)
    with pytest.raises(NotFound, match="no more"):
        world.other.stage(world.reach(volume))
    silent = {**world.reach(volume).context, "port": "1"}
    with pytest.raises(Unreachable, match="port 1"):
        world.other.stage(replace(world.reach(volume), context=silent))
    damaged = {**world.reach(volume).context, "port": "x"}
    with pytest.raises(NotFound, match="'x'"):
        world.other.stage(replace(world.reach(volume), context=damaged))
    stranger = replace(world.reach(volume), owner="stranger")
    with pytest.raises(Unsupported, match="stranger"):
        world.other.stage(stranger)


@pytest.mark.parametrize("lacking", ["nfs4", "nfsd", "exportfs", "rpc.mountd"])
def test_what_is_missing_on_a_node_is_named(world: World, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking.startswith("nfs"):
        (world.proc / "filesystems").write_text(FILE_SYSTEMS.replace(f"nodev\t{lacking}\n", ""))
    else:
        (world.folder / "bin" / lacking).unlink()
        monkeypatch.setenv("PATH", str(world.folder / "bin"))
        monkeypatch.setattr(programs, "SYSTEM_FOLDERS", "/nowhere")  # this machine may have it
    engines = Engines({"nfs": world.owner}, has_peers=True)
    with pytest.raises(Unsupported, match=lacking):
        engines.choose("", Consistency.CLOSE_TO_OPEN)
    with pytest.raises(Unsupported, match=lacking):
        engines.choose("nfs", Consistency.CLOSE_TO_OPEN)


def test_a_kernel_that_has_it_as_a_module_is_asked_to_load_it(world: World) -> None:
    (world.proc / "filesystems").write_text("\text4\n")
    with pytest.raises(Unsupported, match="nfs4"):
        world.owner.check()
    modprobe = world.folder / "bin/modprobe"
    modprobe.write_text(f'#!/bin/sh\ncase $1 in fs-*) echo "nodev\t${{1#fs-}}" >>{world.proc}/filesystems;; esac\n')
    modprobe.chmod(0o755)
    world.owner.check()


def test_a_driver_says_what_close_to_open_needs_and_never_calls_it_strong(driver: Driver) -> None:
    for wrong in ({"replicas": "3"}, {"type": "model"}, {"maxStaleness": "5s"}, {"engine": "bind"}):
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            driver.create(parameters={"consistency": "close-to-open", **wrong}, mode=capability().access_mode.mode)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, naming="nfs"):
        driver.create(parameters={"consistency": "strong", "engine": "nfs"})
    if "nfs4" not in Path("/proc/filesystems").read_text():
        with refused(grpc.StatusCode.FAILED_PRECONDITION, naming="nfs4"):
            driver.create(parameters={"consistency": "close-to-open"})
    assert list((driver.pool / "volumes").iterdir()) == []
