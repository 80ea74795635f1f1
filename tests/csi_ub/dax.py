"""DAX devices of nodes that are folders: what sysfs tells of one, and a plain file in place of its memory.

Two such nodes share two regions, and have engines without drivers.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from csi_ub.config import DaxRegion, PoolType
from csi_ub.engines.base import Reach
from csi_ub.engines.dax import DaxEngine
from csi_ub.model import AccessMode, Attachment, Spec, Volume, VolumeType
from csi_ub.peers.channel import Peers
from csi_ub.pool import Pool
from csi_ub.pools import space
from csi_ub.reasons import Unreachable

MiB = 1 << 20
RWX = AccessMode.MULTI_NODE_MULTI_WRITER
SECRET = b"what the last owner had in it"


def memory(path: Path, size: int) -> Path:
    """Make the memory that the devices of several nodes are to be; it holds what its last owner left, everywhere."""
    with path.open("wb") as file:
        file.truncate(size)
    soil(path)
    return path


def soil(path: Path) -> None:
    """Leave something on every page."""
    with path.open("r+b") as file:
        for place in range(0, path.stat().st_size, 4096):
            os.pwrite(file.fileno(), SECRET, place)


def is_clean(path: Path) -> bool:
    return not any(path.read_bytes())


def device(root: Path, name: str, file: Path, driver: str = "device_dax") -> Path:
    """Let the node at ``root`` have ``file`` as its device ``name``; return where its sysfs tells of it."""
    facts, dev = root / "sys/bus/dax/devices" / name, root / "dev"
    drivers = root / "sys/bus/dax/drivers" / driver
    for folder in (facts, dev, drivers):
        folder.mkdir(parents=True, exist_ok=True)
    (facts / "size").write_text(f"{file.stat().st_size}\n")
    (facts / "align").write_text(f"{2 * MiB}\n")
    (facts / "driver").symlink_to(drivers)
    (dev / name).hardlink_to(file)
    return facts


def manifest(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return found


class Wire(Peers):
    """Peers in one process: what is asked of another node is answered by its verbs, unless it is ``silent``."""

    nodes: "dict[str, Wire]" = {}  # noqa: RUF012 - each test has a class of its own
    silent: "set[str]" = set()  # noqa: RUF012

    def ask(self, node: str, verb: str, content: dict[str, object], timeout_s: float = 1) -> dict[str, object]:
        if node in self.silent:
            raise Unreachable(f"node {node} does not answer {verb}")
        return self.nodes[node].verbs[verb](content)


@dataclass
class World:
    """Node0 and node1 share two regions, ``small`` of node0 and ``large``, each of which has its device twice."""

    folder: Path
    wire: type[Wire]
    pools: dict[str, Pool]
    shared: tuple[DaxRegion, ...]
    quotas: dict[str, int]

    def memory(self, region: str) -> Path:
        return self.folder / region

    def root(self, node: str) -> Path:
        return self.folder / node

    def engine(self, node: str) -> DaxEngine:
        """Return the engine of a node that was started just now."""
        root, peers = self.root(node), self.wire(node)
        pools = (self.pools[node],)
        engine = DaxEngine(root / "dev", root / "run/memory", self.quotas, root / "sys", self.shared, pools, peers)
        for verb, answer in engine.verbs().items():
            peers.offer(verb, answer)
        self.wire.nodes[node] = peers
        return engine

    def record(self, node: str = "node0", name: str = "pvc", size: int = 0, **spec: object) -> tuple[Volume, Pool]:
        """Make a volume as CreateVolume does, but for ``prepare``."""
        engine, pool = self.engine(node), self.pools[node]
        want = Spec(type=VolumeType.MEMORY, **spec)  # type: ignore[arg-type]
        volume = Volume("", name, node, pool.name, want, size=size, engine=engine.name)
        with pool.volumes.name_lock(name):
            return pool.create(replace(volume, size=engine.room_for(volume, 0, pool))), pool

    def create(self, node: str = "node0", name: str = "pvc", size: int = 0, **spec: object) -> Volume:
        volume, pool = self.record(node, name, size, **spec)
        return self.engine(node).prepare(volume, pool)

    def reach(self, volume: Volume, node: str = "node0") -> Reach:
        owner = self.engine(volume.owner)
        pool = self.pools[volume.owner]
        context = owner.context(pool.volumes.find(volume.id) or volume, pool)
        return Reach(volume.id, volume.owner, context, pool if volume.owner == node else None)

    def stage(self, volume: Volume, node: str) -> Path:
        engine, reach = self.engine(node), self.reach(volume, node)
        os.close(engine.stage(reach))
        engine.attach(reach, Attachment(node, RWX, boot=f"boot of {node}"))
        return engine.place(reach)

    def delete(self, volume: Volume) -> None:
        pool, engine = self.pools[volume.owner], self.engine(volume.owner)
        pool.delete(volume.id, lambda it: engine.retire(it, pool), lambda it: engine.prepare(it, pool))


def build(folder: Path) -> World:
    """Make the two nodes below ``folder``."""
    pools = {}
    for node in ("node0", "node1"):
        (folder / node / "pool").mkdir(parents=True)
        pools[node] = Pool("default", folder / node / "pool", space(PoolType.DIR))
        pools[node].open()
    shared = []
    for number, (name, size) in enumerate((("small", 4 * MiB), ("large", 8 * MiB))):
        file = memory(folder / name, size)
        devices = {"node0": f"dax{number}.0", "node1": f"dax{number + 2}.0"}
        for node, each in devices.items():
            device(folder / node, each, file)
        shared.append(DaxRegion(name, "node0", devices, coherent=True))
    return World(folder, type("OwnWire", (Wire,), {"nodes": {}, "silent": set()}), pools, tuple(shared), {})
