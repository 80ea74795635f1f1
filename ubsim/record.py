"""What a running super-node consists of, on disk: enough to take it down again, whatever happened to it.

``<dir>/super-node.json`` is written before anything it speaks of is made, so that ``sim down`` finds all of it even if
``sim up`` was killed half-way. ``<dir>/scenario.yaml`` is a copy of the scenario. Each node has its root beside them.

A process is known by its id and its start time, since ids are used again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ubhost import statefile
from ubsim.netdevs import Netdev

VERSION = 1
FILE = "super-node.json"
SCENARIO = "scenario.yaml"
NETNS = "run/ubsim/host.netns"  # below the root of a node that has a namespace of its own


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    started: int  # clock ticks after boot, /proc/PID/stat field 22
    nodes: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class Record:
    """``netns`` is the inode of the namespace that has the bridge; ``namespaces`` has the paths of
    those that single nodes have."""

    name: str
    nodes: tuple[str, ...]
    bridge: str
    netns: int
    netdevs: tuple[Netdev, ...] = ()
    namespaces: Mapping[str, str] = field(default_factory=dict)
    is_mounted: bool = False
    processes: tuple[Process, ...] = ()


def write(folder: Path, record: Record) -> None:
    """Raises HostFault."""
    statefile.write(folder / FILE, VERSION, msgspec.to_builtins(record), durable=False)


def read(folder: Path) -> Record | None:
    """Return the record of ``folder``; ``None`` if no super-node is there.

    Raises:
        Damaged: there is one that cannot be read.
    """
    content = statefile.read(folder / FILE, VERSION)
    if content is None:
        return None
    try:
        return Record(
            name=content["name"],
            nodes=tuple(content["nodes"]),
            bridge=content["bridge"],
            netns=content["netns"],
            netdevs=tuple(Netdev(**netdev) for netdev in content["netdevs"]),
            namespaces=content["namespaces"],
            is_mounted=content["is_mounted"],
            processes=tuple(Process(p["pid"], p["started"], tuple(p["nodes"])) for p in content["processes"]),
        )
    except (KeyError, TypeError) as error:
        raise statefile.Damaged(f"{folder / FILE} lacks {error}") from error


def start_time(pid: int) -> int | None:
    """Return when the process ``pid`` began; ``None`` if there is none, or only its corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def root_of(folder: Path, node: str) -> Path:
    return folder / node


def control_socket(folder: Path, node: str) -> Path:
    return root_of(folder, node) / "run" / "ubsim" / "control.sock"
