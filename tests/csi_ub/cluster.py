"""Three nodes with networks of their own, and their data daemons."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ubproto.csi.v1 import csi_pb2 as csi

from tests.csi_ub import netns
from tests.csi_ub.driver import Driver, StartDriver

NODES = ["node0", "node1", "node2"]


@contextmanager
def cluster(start: StartDriver, pools: Mapping[str, Path] | None = None, **config: object) -> Iterator[list[Driver]]:
    """Start three drivers, each in a network namespace; their data daemons are ended afterwards.

    ``pools`` are file systems (btrfs) for the nodes; without them each has the pool of a driver that was told of none.
    """
    with netns.network(NODES) as addresses:
        peers = [{"node": name, "address": address} for name, address in addresses.items()]
        drivers = []
        for name in NODES:
            if pools:
                config["pools"] = [{"name": "default", "type": "btrfs", "path": str(pools[name])}]
            drivers.append(start(name, config={"peers": peers, **config}, within=tuple(netns.inside(name))))
        try:
            yield drivers
        finally:
            for driver in drivers:
                driver.stop()
                for kind in ("healer", "client", "brick"):
                    for pid in daemons(driver, kind):
                        os.kill(pid, signal.SIGKILL)


def daemons(driver: Driver, kind: str) -> list[int]:
    """Return the data daemons of a node that run."""
    pids = [int(path.read_text()) for path in (driver.root / "run/ub-node/gluster").glob(f"*.{kind}.pid")]
    return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    """Whether a process runs; one that ended has no command line, even while nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped: SIGSTOP is only on its way when kill(2) returns."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def kill(driver: Driver, kind: str) -> None:
    for pid in daemons(driver, kind):
        os.kill(pid, signal.SIGKILL)
        wait(lambda pid=pid: not is_running(pid))  # type: ignore[misc]


def wait(until: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def condition(driver: Driver, volume: csi.Volume, path: Path) -> csi.VolumeCondition:
    request = csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(path))
    return driver.rpc.NodeGetVolumeStats(request).volume_condition
