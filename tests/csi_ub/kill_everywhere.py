"""Kill every call of a volume's life before each line it executes, and see that the driver finds its way.

usage: kill_everywhere.py FOLDER CALL [EVERY [KIND]]

One child for each line (with EVERY: each so many lines) of csi_ub and ubhost that CALL runs: it is killed by SIGKILL
just before that line. Every second time the next driver repeats the call, as a cluster does that got no answer; every
other time it takes the call back, as a cluster does that gave up. Either way exactly the wanted state must come of it.
KIND is that of the pool: dir, or lvm on stand-ins. Prints the number of kills.

A program of its own, because it forks: a test process that spoke gRPC before must not.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub import supervisor
from csi_ub.config import PoolType
from csi_ub.controller import Controller
from csi_ub.engines import Engines
from csi_ub.engines.bind import BindEngine
from csi_ub.engines.exports import Exports
from csi_ub.engines.nfs import NfsEngine
from csi_ub.engines.nfsmounts import NfsMounts
from csi_ub.groupcontroller import GroupController
from csi_ub.node import Node
from csi_ub.noderecord import Debts
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.peers.channel import Peers
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.volumes import Volumes
from tests.csi_ub import lvm, nfs
from ubhost.kernel import loop, mountinfo

REPO = Path(__file__).parents[2]
PRODUCT = (f"{REPO}/csi_ub/", f"{REPO}/ubhost/")  # but for the parser of the mount table, which changes nothing
PAIRS = (
    ("create", "delete"),
    ("stage", "unstage"),
    ("publish", "unpublish"),
    ("attach", "detach"),
    ("snapshot", "drop-snapshot"),
    ("group", "drop-group"),
    ("inline", "drop-inline"),
    ("publish-device", "unpublish-device"),
    ("to-close-to-open", "to-strong"),
)
CALLS = tuple(call for pair in PAIRS for call in pair)
UNDO = dict(PAIRS) | {taken: made for made, taken in PAIRS}
NEEDS = {  # the others: a volume
    "create": (),
    "inline": (),
    "publish": ("create", "stage"),
    "publish-device": ("create-device", "stage-device"),
}
HANDLE = "csi-" + "0" * 64
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(),
    access_mode=csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER),
)
DEVICE = csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume(), access_mode=CAPABILITY.access_mode)


class World:
    """A driver without its socket, started afresh on what an earlier one left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "bin").exists():
            nfs.stand_in(folder)
        os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH'].removeprefix(f'{folder}/bin:')}"
        (folder / "pool").mkdir(exist_ok=True)
        self.has_lvm = (folder / "lvm-bin").exists()
        if self.has_lvm:
            os.environ["PATH"] = f"{folder}/lvm-bin:{os.environ['PATH'].removeprefix(f'{folder}/lvm-bin:')}"
        kind = space(PoolType.LVM, "vg0/thin") if self.has_lvm else space(PoolType.DIR)
        self.pool = Pool("default", folder / "pool", kind)
        self.pool.open()
        exports = Exports(folder / "proc", folder / "etab", folder / "exports.d")
        served = NfsEngine((self.pool,), exports, NfsMounts(folder / "nfs", folder / "proc"), Peers("node0"))
        volumes = Volumes("node0", (self.pool,), Engines({"bind": BindEngine(), "nfs": served}))
        supervisor.look_after(volumes)
        for volume in self.pool.volumes.all():
            assert bool(exports.clients(self.pool.volumes.home / volume.id / "share/data")) is (volume.engine == "nfs")
        node = NodeVolumes(volumes, folder / "run", Debts(folder / "state"))
        node.open()
        node.settle()
        self.controller: Any = Controller(volumes, has_fencing=True)
        self.groups: Any = GroupController(volumes)
        self.node: Any = Node(node)
        self.staging, self.target = folder / "staging", folder / "pods/target"

    def ids(self) -> list[str]:
        return [volume.id for volume in self.pool.volumes.all()]

    def call(self, name: str) -> None:
        """Make one CSI call for the only volume of the world, or for the one that was deleted last."""
        volume = (self.ids() or [self._remembered()])[0]
        snapshot = next((each.id for each in self.pool.snapshots.all()), "us-none")
        group = next((each.id for each in self.pool.groups.all()), "ug-none")
        staged: dict[str, Any] = {"volume_id": volume, "staging_target_path": str(self.staging)}
        published: dict[str, Any] = {"volume_id": volume, "target_path": str(self.target)}
        use: dict[str, Any] = {"volume_capability": CAPABILITY}
        node, controller = self.node, self.controller
        device: dict[str, Any] = {"volume_capability": DEVICE}
        calls: dict[str, Callable[[], Any]] = {
            "create-device": lambda: controller.CreateVolume(
                csi.CreateVolumeRequest(name="pvc", volume_capabilities=[DEVICE], parameters={"type": "block"}), None
            ),
            "stage-device": lambda: node.NodeStageVolume(csi.NodeStageVolumeRequest(**staged, **device), None),
            "publish-device": lambda: node.NodePublishVolume(
                csi.NodePublishVolumeRequest(**staged | published, **device), None
            ),
            "unpublish-device": lambda: node.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(**published), None),
            "create": lambda: controller.CreateVolume(
                csi.CreateVolumeRequest(name="pvc", volume_capabilities=[CAPABILITY]), None
            ),
            "delete": lambda: controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume), None),
            "stage": lambda: node.NodeStageVolume(csi.NodeStageVolumeRequest(**staged, **use), None),
            "unstage": lambda: node.NodeUnstageVolume(csi.NodeUnstageVolumeRequest(**staged), None),
            "publish": lambda: node.NodePublishVolume(csi.NodePublishVolumeRequest(**staged | published, **use), None),
            "attach": lambda: controller.ControllerPublishVolume(
                csi.ControllerPublishVolumeRequest(volume_id=volume, node_id="node0", **use), None
            ),
            "detach": lambda: controller.ControllerUnpublishVolume(
                csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id="node0"), None
            ),
            "snapshot": lambda: controller.CreateSnapshot(
                csi.CreateSnapshotRequest(name="snapshot", source_volume_id=volume), None
            ),
            "drop-snapshot": lambda: controller.DeleteSnapshot(csi.DeleteSnapshotRequest(snapshot_id=snapshot), None),
            "group": lambda: self.groups.CreateVolumeGroupSnapshot(
                csi.CreateVolumeGroupSnapshotRequest(name="group", source_volume_ids=[volume]), None
            ),
            "drop-group": lambda: self.groups.DeleteVolumeGroupSnapshot(
                csi.DeleteVolumeGroupSnapshotRequest(group_snapshot_id=group), None
            ),
            "inline": lambda: node.NodePublishVolume(
                csi.NodePublishVolumeRequest(
                    volume_id=HANDLE,
                    target_path=str(self.target),
                    volume_context={"csi.storage.k8s.io/ephemeral": "true"},
                    **use,
                ),
                None,
            ),
            "to-close-to-open": lambda: controller.ControllerModifyVolume(_switched(volume, "close-to-open"), None),
            "to-strong": lambda: controller.ControllerModifyVolume(_switched(volume, "strong"), None),
            "drop-inline": lambda: node.NodeUnpublishVolume(
                csi.NodeUnpublishVolumeRequest(volume_id=HANDLE, target_path=str(self.target)), None
            ),
            "unpublish": lambda: node.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(**published), None),
        }
        answer = calls[name]()
        if name == "create":
            (self.folder / "id").write_text(answer.volume.volume_id)

    def state(self) -> dict[str, object]:
        """Return all that a call may change, in comparable form."""
        mounts = mountinfo.read()
        records = [path for path in (self.folder / "run").iterdir() if path.is_file()]
        return {
            "volumes": len(self.ids()),
            "engines": [(each.engine, each.spec) for each in self.pool.volumes.all()],
            "exports": [self._read("etab"), *(self._read(f"exports.d/{each.name}") for each in self._exported())],
            "published to": [each.publications for each in self.pool.volumes.all()],
            "snapshots": len(list((self.pool.path / "snapshots").iterdir())),
            "groups": [sorted(each.name for each in path.iterdir()) for path in self.pool.path.glob("groups/*/")],
            "data": [sorted(path.name for path in (self.pool.path / "volumes").glob("*/share/data/*"))],
            "thin volumes": len(lvm.thin_volumes(self.folder)) if self.has_lvm else 0,
            "mounts": len(mountinfo.below(mounts, self.pool.path)),
            "names": len(list((self.pool.path / "names").iterdir())),
            "rubbish": [*(self.pool.path / "new").iterdir(), *(self.pool.path / "trash").iterdir()],
            "staged": len(mountinfo.at(mounts, self.staging)),
            "published": len(mountinfo.at(mounts, self.target)),
            "target": self.target.exists(),
            "devices": [each.is_read_only for each in loop.all_attached() if each.name[:48] in self.ids()],
            "nodes": len(list(self.folder.glob("run/blocks/*"))),
            "records": [path.read_text() for path in records],
            "debts": len(list((self.folder / "state").iterdir())),
            "attached": len(list((self.pool.path / "volumes").glob("*/share/nodes/*.json"))),
        }

    def _exported(self) -> list[Path]:
        return sorted(self.folder.glob("exports.d/*.exports"))

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def _remembered(self) -> str:
        path = self.folder / "id"
        return path.read_text() if path.exists() else "ub-000000000000-" + "0" * 32


def _switched(volume: str, consistency: str) -> csi.ControllerModifyVolumeRequest:
    return csi.ControllerModifyVolumeRequest(volume_id=volume, mutable_parameters={"consistency": consistency})


def killed(world: World, name: str, after: int) -> bool:
    """Run a call in a child that dies before its line number ``after``; return whether it got that far."""
    child = os.fork()
    if child == 0:
        sys.settrace(_killer(after))
        world.call(name)
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, f"{name} failed before line {after}"
    return False


def _killer(after: int) -> Callable[[FrameType, str, Any], Any]:
    left = after

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PRODUCT) or frame.f_code.co_filename == mountinfo.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def main(folder: Path, name: str, every: int = 1, kind: str = "dir") -> int:
    """Kill ``name`` everywhere, or before each so many lines; return the number of kills."""
    if kind == "lvm":
        lvm.stand_in(folder)
    world = World(folder)
    made = name if name in dict(PAIRS) else UNDO[name]
    for earlier in NEEDS.get(made, ("create",)):
        world.call(earlier)
    if name != made:
        world.call(made)
    before = world.state()
    world.call(name)
    after = World(folder).state()
    world.call(UNDO[name])
    kills = 0
    while killed(world, name, kills * every + 1):
        kills += 1
        world = World(folder)  # the next driver; its start sweeps
        if kills % 2:
            world.call(name)
            _same(world.state(), after, f"{name} repeated after a kill at line {(kills - 1) * every + 1}")
        world.call(UNDO[name])
        _same(World(folder).state(), before, f"{UNDO[name]} after {name} was killed at line {(kills - 1) * every + 1}")
    return kills


def _same(found: dict[str, object], wanted: dict[str, object], when: str) -> None:
    wrong = {key: (found[key], wanted[key]) for key in wanted if key != "records" and found[key] != wanted[key]}
    assert not wrong, f"{when}: {wrong}"
    assert len(found["records"]) == len(wanted["records"]), when  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), sys.argv[2], int((sys.argv[3:4] or '1')[0]), *sys.argv[4:])}\n")
