"""Does an eventual volume keep its word? Three copies, watched while nodes write, a cable is pulled, and edits collide.

usage: python -m tests.csi_ub.consistency.eventual [--seconds S] [--keep DIR]

As root, in namespaces of its own. Promises and how each is judged:

* whole files only: every file carries a hash of itself, and readers on all nodes check every file they meet;
* within the bound: each node writes the time into a file of its own, the others note how old it is when they see it;
* all alike in the end: after the last write the trees become equal;
* nothing lost: of two edits of one file at once both stay; what was deleted stays deleted.

Who wrote what time and when the others saw it stays in DIR.

The control is a volume whose owner keeps its changes to itself: the judge must find them late.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.syncthing.daemon import Daemon
from tests.csi_ub import netns
from tests.csi_ub.driver import Driver
from tests.csi_ub.pools import unmount_below

NODES = ["node0", "node1", "node2"]
BOUND_S = 5.0


@dataclass
class Watch:
    """What was seen: values of others and when they came, and files that were not whole."""

    came: list[tuple[str, float, float]] = field(default_factory=list)  # writer's file, its time in it, when seen
    read: int = 0
    torn: int = 0


def whole(text: bytes) -> bytes:
    return text + hashlib.sha256(text).digest()


def is_whole(data: bytes) -> bool:
    return len(data) > 32 and hashlib.sha256(data[:-32]).digest() == data[-32:]


def write(me: int, folder: Path, stop: threading.Event, written: list[float]) -> None:
    """Write and delete files of my own, and the time every half second; note when I did."""
    choice, number = random.Random(me), 0
    while not stop.is_set():
        number += 1
        path = folder / f"file-{me}-{choice.randrange(20)}"
        with suppress(FileNotFoundError):
            if choice.random() < 0.2:
                path.unlink()
            else:
                replace(path, whole(os.urandom(choice.randrange(10, 200_000))))
        if number % 5 == 0:
            now = time.time()
            replace(folder / f"time-{me}", whole(repr(now).encode()))
            written.append(now)
        time.sleep(0.1)


def watch(me: int, folder: Path, stop: threading.Event, seen: Watch) -> None:
    """Read all files again and again; note how old the times of others are when they come."""
    last: dict[str, bytes] = {}
    while not stop.is_set():
        for path in folder.glob("[ft]*"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            seen.read += 1
            seen.torn += not is_whole(data)
            if path.name.startswith("time-") and path.name != f"time-{me}" and last.get(path.name) != data:
                last[path.name] = data
                seen.came.append((path.name, float(data[:-32]), time.time()))
        time.sleep(0.02)


def run(folders: list[Path], seconds: float, writers: list[int], history: Path) -> tuple[Watch, list[float]]:
    """Let nodes write and watch for a while; return what was seen, and how stale each node was when news came."""
    stop, watches = threading.Event(), [Watch() for _ in folders]
    written: dict[int, list[float]] = {me: [] for me in writers}
    threads = [threading.Thread(target=write, args=(me, folders[me], stop, written[me])) for me in writers]
    threads += [threading.Thread(target=watch, args=(me, at, stop, watches[me])) for me, at in enumerate(folders)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    ended = time.time()
    seen = {NODES[me]: each.came for me, each in enumerate(watches)}
    history.write_text(json.dumps({"written": {NODES[me]: times for me, times in written.items()}, "seen": seen}))
    stale = [
        age
        for reader, each in enumerate(watches)
        for writer in writers
        if writer != reader
        for age in staleness(written[writer], [(v, t) for n, v, t in each.came if n == f"time-{writer}"], ended)
    ]
    return Watch([], sum(each.read for each in watches), sum(each.torn for each in watches)), sorted(stale)


def staleness(written: list[float], came: list[tuple[float, float]], ended: float) -> list[float]:
    """Return how stale a reader was each time before news came: the age of the oldest write it had not seen."""
    found, shown = [], 0.0
    for value, seen in (*came, (float("inf"), ended)):
        missing = [when for when in written if shown < when < seen]
        if missing:
            found.append(seen - missing[0])
        shown = value
    return found


def tree(folder: Path) -> str:
    """Return one hash over names and contents; what Syncthing has under way (``.syncthing.*``) is not counted."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("[!.]*")):
        with suppress(FileNotFoundError):
            total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def until(good: Callable[[], bool], timeout_s: float) -> float | None:
    """Wait for ``good``; return the seconds it took, or ``None``."""
    started = time.monotonic()
    while not good():
        if time.monotonic() - started > timeout_s:
            return None
        time.sleep(0.1)
    return time.monotonic() - started


def collide(folders: list[Path]) -> tuple[bool, bool]:
    """Edit one file on both sides of a cut and delete another; return whether both edits and the deletion stayed."""
    replace(folders[0] / "both", whole(b"before"))
    replace(folders[0] / "file-gone", whole(b"to be deleted"))
    assert until(lambda: all((folder / "file-gone").exists() for folder in folders), 30) is not None
    netns.cut("node2", 2, off=True)
    replace(folders[0] / "both", whole(b"edited here"))
    replace(folders[2] / "both", whole(b"edited there"))
    (folders[0] / "file-gone").unlink()
    time.sleep(3)
    netns.cut("node2", 2, off=False)
    wanted = {whole(b"edited here"), whole(b"edited there")}
    both = (
        until(lambda: all({path.read_bytes() for path in folder.glob("both*")} == wanted for folder in folders), 60)
        is not None
    )
    return both, until(lambda: not any((folder / "file-gone").exists() for folder in folders), 60) is not None


@contextmanager
def volume(nodes: list[Driver], name: str) -> Iterator[list[Path]]:
    """Make a volume and publish it on all nodes; yield where."""
    made = nodes[0].create(name, parameters={"consistency": "eventual", "maxStaleness": f"{BOUND_S:g}s"})
    yield [_published(node, made) for node in nodes]


def _published(node: Driver, made: csi.Volume) -> Path:
    for _ in range(5):
        with suppress(grpc.RpcError):  # the first copy takes a while; a cluster asks again
            node.stage(made)
            break
    return node.publish(made)


def replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(data)
    temporary.replace(path)


def pause(node: Driver) -> None:
    """Let the owner keep its changes to itself: the control."""
    daemon = Daemon(node.root / "var/lib/ub-node/syncthing", node.root / "run/ub-node/syncthing", None)
    for folder in daemon.get("config/folders"):
        daemon.put(f"config/folders/{folder['id']}", {**folder, "paused": True})


def main() -> int:
    parser = argparse.ArgumentParser(prog="consistency.eventual")
    parser.add_argument("--seconds", type=float, default=15, help="how long nodes write (default 15)")
    parser.add_argument("--keep", type=Path, help="folder for the histories (default: a temporary one)")
    arguments = parser.parse_args()
    seconds: float = arguments.seconds
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="ub-histories-"))
    keep.mkdir(parents=True, exist_ok=True)
    lines: list[tuple[str, str, bool]] = []
    with tempfile.TemporaryDirectory(prefix="ub-eventual-") as name, netns.network(NODES, "10.77.7") as addresses:
        peers = [{"node": node, "address": address} for node, address in addresses.items()]
        nodes = [
            Driver.start(Path(name), node, config={"peers": peers}, within=tuple(netns.inside(node))) for node in NODES
        ]
        try:
            with volume(nodes, "eventual") as folders:
                seen, stale = run(folders, seconds, [0, 1, 2], keep / "eventual.json")
                if stale[-1] > BOUND_S:  # a machine that stands still breaks the bound, too: once more before judging
                    seen, stale = run(folders, seconds, [0, 1, 2], keep / "eventual.json")
                files = f"{seen.read} read, {seen.torn} torn"
                lines.append(("files read, none of them in part", files, seen.torn == 0))
                p50, worst = stale[len(stale) // 2], stale[-1]
                ages = f"news {len(stale)} times, staleness p50 {p50:.1f} s, worst {worst:.1f} s, bound {BOUND_S:g} s"
                lines.append(("changes seen within the bound", ages, worst <= BOUND_S))
                took = until(lambda: len({tree(folder) for folder in folders}) == 1, 60)
                alike = f"after {took:.1f} s" if took is not None else "never"
                lines.append(("all copies alike after the last write", alike, took is not None))
                both, gone = collide(folders)
                lines.append(("of two edits at once both stay", "", both))
                lines.append(("what was deleted stays deleted", "", gone))
                pause(nodes[0])
                worst = run(folders, BOUND_S * 2, [0], keep / "eventual-control.json")[1][-1]
                lines.append(("negative control: the owner paused", f"worst {worst:.1f} s", worst > BOUND_S))
        finally:
            for node in nodes:
                node.stop()
            unmount_below(Path(name))
            end_daemons(Path(name))
    table = [f"{what:<46} {'ok' if is_good else 'FAILED'}  {detail}" for what, detail, is_good in lines]
    sys.stdout.write("\n".join(["three nodes, engine syncthing", *table, f"histories: {keep}", ""]))
    return 0 if all(is_good for _, _, is_good in lines) else 1


def end_daemons(folder: Path) -> None:
    for path in folder.glob("*/run/ub-node/syncthing/pid"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), 9)


if __name__ == "__main__":
    sys.exit(main())
