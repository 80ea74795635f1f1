"""Kill the making and the deleting of a memory volume before each line, and see that nobody reads another's memory.

usage: kill_memory.py FOLDER [EVERY]

Memory starts dirty. However often the driver is killed, a volume whose CreateVolume was answered has memory that is all
zeroes, no two volumes have the same, and none is lost. Prints the number of kills.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub import supervisor
from csi_ub.config import DaxRegion, PoolType
from csi_ub.controller import Controller
from csi_ub.engines import Engines
from csi_ub.engines.dax import DaxEngine
from csi_ub.peers.channel import Peers
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.volumes import Volumes
from tests.csi_ub import dax
from tests.csi_ub.driver import capability
from tests.csi_ub.kill_everywhere import killed

REGION = DaxRegion("only", "node0", {"node0": "dax0.0"}, coherent=True)


class World:
    """A driver without its socket, started afresh on what an earlier one left."""

    def __init__(self, folder: Path) -> None:
        self.memory = folder / "memory"
        self.pool = Pool("default", folder / "pool", space(PoolType.DIR))
        self.pool.open()
        facts, dev, quotas = folder / "sys", folder / "dev", {"*": 1 << 30}
        peers = Peers("node0")
        engine = DaxEngine(dev, folder / "run", quotas, facts, (REGION,), (self.pool,), peers, lambda _: [])
        volumes = Volumes("node0", (self.pool,), Engines({engine.name: engine}))
        supervisor.look_after(volumes)
        self.controller: Any = Controller(volumes)

    def call(self, name: str) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: self.controller.CreateVolume(
                csi.CreateVolumeRequest(name="pvc", volume_capabilities=[capability()], parameters={"type": "memory"}),
                None,
            ),
            "delete": lambda: [
                self.controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume.id), None)
                for volume in self.pool.volumes.all()
            ],
        }
        calls[name]()


def main(folder: Path, every: int = 1) -> int:
    dax.device(folder, REGION.devices["node0"], dax.memory(folder / "memory", 4 * dax.MiB))
    (folder / "pool").mkdir()
    kills = 0
    for name in ("create", "delete"):
        line = 1
        while True:
            world = World(folder)
            if name == "delete":
                world.call("create")
            dax.soil(world.memory)
            if not killed(world, name, line):  # type: ignore[arg-type] # all it does with a world is to call
                break
            line, kills = line + every, kills + 1
            if name == "create" and kills % 2:  # the cluster gave up, and asks for another
                world.call("delete")
            world = World(folder)
            if name == "delete":
                world.call("delete")
            world.call("create")
            assert dax.is_clean(world.memory), f"{name} was killed before line {line - every}"
            assert len(list(world.pool.volumes.all())) == 1
            world.call("delete")
        World(folder).call("delete")
    return kills


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), *map(int, sys.argv[2:]))}\n")
