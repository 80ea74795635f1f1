"""``make consistency``: strong volumes on three nodes, watched while daemons are killed and cables are pulled.

usage: python -m tests.csi_ub.consistency [--seconds S] [--keep DIR]

As root, in namespaces of its own (``packaging/in-namespaces``). Volumes with one replica and with three. Prints a table
and ends with 0 if every strong volume was strong and every negative control was caught. Histories stay in DIR.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc

from tests.csi_ub import netns
from tests.csi_ub.consistency.suites import LONGEST_S, Bench, Verdict, append, lock, race, register, turns
from tests.csi_ub.driver import Driver
from tests.csi_ub.pools import unmount_below

NODES = ["node0", "node1", "node2"]
CACHED = """
volume write-behind
  type performance/write-behind
  subvolumes client
end-volume
volume io-cache
  type performance/io-cache
  option cache-timeout 60
  subvolumes write-behind
end-volume
"""


@contextmanager
def cached(bench: Bench, folder: Path) -> Iterator[list[Path]]:
    """Mount the same brick again on two nodes, with the caches that a strong volume leaves out."""
    points = []
    for node in bench.nodes[1:]:
        source = next((node.root / "run/ub-node/gluster").glob("*.client.vol"))
        graph, point = folder / f"{node.node}.vol", folder / f"cached-{node.node}"
        graph.write_text(source.read_text() + CACHED)
        point.mkdir()
        flags = [
            "--attribute-timeout=600",
            "--entry-timeout=600",
            "--direct-io-mode=disable",
            "--auto-invalidation=off",
        ]
        subprocess.run(
            [*netns.inside(node.node), "glusterfs", "-f", str(graph), *flags, "-l", str(folder / "log"), str(point)],
            check=True,
        )
        points.append(point / "data")
    deadline = time.monotonic() + 10
    while not all(point.is_dir() for point in points) and time.monotonic() < deadline:
        time.sleep(0.05)
    yield points
    for point in points:
        subprocess.run(["umount", "-l", str(point.parent)], check=True)


def _delete(owner: Driver, volume_id: str) -> None:
    """Delete as a cluster does: a replica that was away learns only now that the nodes have let go."""
    deadline = time.monotonic() + LONGEST_S
    while True:
        try:
            owner.delete(volume_id)
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return


@contextmanager
def bench(folder: Path, seconds: float, keep: Path, replicas: int) -> Iterator[Bench]:
    with netns.network(NODES) as addresses:
        peers = [{"node": name, "address": address} for name, address in addresses.items()]
        nodes = [
            Driver.start(folder, name, config={"peers": peers}, within=tuple(netns.inside(name))) for name in NODES
        ]
        try:
            volume = nodes[0].create("register", parameters={"engine": "glusterfs", "replicas": str(replicas)})
            paths = []
            for node in nodes:
                node.stage(volume)
                paths.append(node.publish(volume))
            yield Bench(nodes, paths, seconds, keep, replicas)
            for node in nodes:
                node.unpublish(volume)
                node.unstage(volume)
            _delete(nodes[0], volume.volume_id)
        finally:
            for node in nodes:
                node.stop()
            unmount_below(folder)


def judge(replicas: int, seconds: float, keep: Path) -> list[Verdict]:
    """Return the verdicts on a volume with so many replicas; the control needs one brick only."""
    with (
        tempfile.TemporaryDirectory(prefix="ub-consistency-") as name,
        bench(Path(name), seconds, keep, replicas) as calm,
    ):
        harmed = replace(calm, is_harmful=True)
        verdicts = [
            register(calm, "register-open", "register, open for each operation"),
            register(calm, "register-held", "register, descriptor held"),
            append(calm, "append log, from three nodes"),
            race(calm),
            lock(calm),
            turns(calm, "turns", calm.paths[1:]),
            register(harmed, "register-open", "register, brick killed, cable pulled"),
            append(harmed, "append log, brick killed, cable pulled"),
        ]
        if replicas == 1:
            verdicts.append(control(calm, Path(name)))
    return verdicts


def control(calm: Bench, folder: Path) -> Verdict:
    """Let the judge look at the same volume with GlusterFS's usual caches, which it must find out."""
    with cached(calm, folder) as paths:
        return turns(calm, "control", paths, control=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="consistency", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="how long each suite runs (default 4)")
    parser.add_argument("--keep", type=Path, help="folder for the histories (default: a temporary one)")
    arguments = parser.parse_args()
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="ub-histories-"))
    keep.mkdir(parents=True, exist_ok=True)
    is_good = True
    for replicas in (1, 3):
        title = f"three nodes, engine glusterfs, replicas {replicas}"
        verdicts = judge(replicas, arguments.seconds, keep)
        print(f"{title:<46} {'operations':>10} {'violations':>10}")
        for each in verdicts:
            mark = "ok" if each.is_good else "FAILED"
            what = "negative control: with caches" if each.must_be_caught else each.what
            print(f"{what:<46} {each.operations:>10} {each.wrong:>10}  {mark}  {each.note}".rstrip())
        is_good = is_good and all(each.is_good for each in verdicts)
        print(flush=True)
    print(f"histories: {keep}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
