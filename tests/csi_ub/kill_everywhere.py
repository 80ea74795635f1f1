"""Kill every call of a volume's life before each line it executes, and see that the driver finds its way.

usage: kill_everywhere.py FOLDER CALL

One child for each line of csi_ub and ubhost that CALL runs: it is killed by SIGKILL just before that line. Every
second time the next driver repeats the call, as a cluster does that got no answer; every other time it takes the call
back, as a cluster does that gave up. Either way exactly the wanted state must come of it. Prints the number of kills.

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

from csi_ub.config import PoolType
from csi_ub.controller import Controller
from csi_ub.engines import Engines
from csi_ub.engines.bind import BindEngine
from csi_ub.node import Node
from csi_ub.noderecord import Debts
from csi_ub.nodevolumes import NodeVolumes
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.volumes import Volumes
from ubhost.kernel import mountinfo

REPO = Path(__file__).parents[2]
PRODUCT = (f"{REPO}/csi_ub/", f"{REPO}/ubhost/")  # but for the parser of the mount table, which changes nothing
CALLS = ("create", "delete", "stage", "unstage", "publish", "unpublish")
UNDO = {"create": "delete", "stage": "unstage", "publish": "unpublish"} | {
    "delete": "create",
    "unstage": "stage",
    "unpublish": "publish",
}
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(),
    access_mode=csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER),
)


class World:
    """A driver without its socket, started afresh on what an earlier one left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pool").mkdir(exist_ok=True)
        self.pool = Pool("default", folder / "pool", space(PoolType.DIR))
        self.pool.open()
        volumes = Volumes("node0", (self.pool,), Engines({"bind": BindEngine()}))
        node = NodeVolumes(volumes, folder / "run", Debts(folder / "state"))
        node.open()
        node.settle()
        self.controller: Any = Controller(volumes)
        self.node: Any = Node(node)
        self.staging, self.target = folder / "staging", folder / "pods/target"

    def ids(self) -> list[str]:
        return [volume.id for volume in self.pool.volumes.all()]

    def call(self, name: str) -> None:
        """Make one CSI call for the only volume of the world, or for the one that was deleted last."""
        volume = (self.ids() or [self._remembered()])[0]
        staged: dict[str, Any] = {"volume_id": volume, "staging_target_path": str(self.staging)}
        published: dict[str, Any] = {"volume_id": volume, "target_path": str(self.target)}
        use: dict[str, Any] = {"volume_capability": CAPABILITY}
        node, controller = self.node, self.controller
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: controller.CreateVolume(
                csi.CreateVolumeRequest(name="pvc", volume_capabilities=[CAPABILITY]), None
            ),
            "delete": lambda: controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume), None),
            "stage": lambda: node.NodeStageVolume(csi.NodeStageVolumeRequest(**staged, **use), None),
            "unstage": lambda: node.NodeUnstageVolume(csi.NodeUnstageVolumeRequest(**staged), None),
            "publish": lambda: node.NodePublishVolume(csi.NodePublishVolumeRequest(**staged | published, **use), None),
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
            "data": [sorted(path.name for path in (self.pool.path / "volumes").glob("*/share/data/*"))],
            "names": len(list((self.pool.path / "names").iterdir())),
            "rubbish": [*(self.pool.path / "new").iterdir(), *(self.pool.path / "trash").iterdir()],
            "staged": len(mountinfo.at(mounts, self.staging)),
            "published": len(mountinfo.at(mounts, self.target)),
            "target": self.target.exists(),
            "records": [path.read_text() for path in records],
            "debts": len(list((self.folder / "state").iterdir())),
            "attached": len(list((self.pool.path / "volumes").glob("*/share/nodes/*.json"))),
        }

    def _remembered(self) -> str:
        path = self.folder / "id"
        return path.read_text() if path.exists() else "ub-000000000000-" + "0" * 32


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


def main(folder: Path, name: str) -> int:
    """Kill ``name`` everywhere; return the number of kills."""
    world = World(folder)
    if name == "delete":
        world.call("create")
    else:
        for earlier in ("create", "stage", "publish"):
            if name == earlier:
                break
            world.call(earlier)
            if UNDO[name] == earlier:
                break
    before = world.state()
    world.call(name)
    after = World(folder).state()
    world.call(UNDO[name])
    kills = 0
    while killed(world, name, kills + 1):
        kills += 1
        world = World(folder)  # the next driver; its start sweeps
        if kills % 2:
            world.call(name)
            _same(world.state(), after, f"{name} repeated after a kill at line {kills}")
        world.call(UNDO[name])
        _same(World(folder).state(), before, f"{UNDO[name]} after {name} was killed at line {kills}")
    return kills


def _same(found: dict[str, object], wanted: dict[str, object], when: str) -> None:
    wrong = {key: (found[key], wanted[key]) for key in wanted if key != "records" and found[key] != wanted[key]}
    assert not wrong, f"{when}: {wrong}"
    assert len(found["records"]) == len(wanted["records"]), when  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), sys.argv[2])}\n")
