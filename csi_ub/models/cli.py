"""``ubnode model``: bring versions of a model into a volume, and switch between them."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from csi_ub.cli import size_text
from csi_ub.driver import remembered
from csi_ub.engines.base import Reach
from csi_ub.model import VolumeType
from csi_ub.models import manifest
from csi_ub.models.store import ModelStore
from csi_ub.volumes import Volumes
from ubhost.errors import InvalidRequest, NotFound
from ubhost.roots import Roots


def main(argv: Sequence[str]) -> int:
    """Do one command; return the exit code."""
    arguments = _parser().parse_args(argv)
    store = _store(remembered(Roots.from_environ()), arguments.volume)
    match arguments.command:
        case "push":
            _push(store, arguments.folder, is_switched=arguments.switch)
        case "list":
            _list(store)
        case "switch":
            print(f"in force: {store.switch(arguments.version)}")
        case "rollback":
            print(f"in force: {store.rollback()}")
        case "verify":
            _with_progress("verifying", store, arguments.version, store.verify)
        case "warm":
            _with_progress("warming", store, arguments.version, store.warm)
        case _:
            removed = store.gc(arguments.keep, arguments.grace)
            print("\n".join(f"removed: {version}" for version in removed) or "nothing to remove")
    return 0


class Progress:
    """A line on a terminal that shows how far it is and how fast; silent elsewhere."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._started = self._shown = time.monotonic()

    def __call__(self, size: int) -> None:
        self._done += size
        now = time.monotonic()
        if sys.stderr.isatty() and (now - self._shown > 0.1 or self._done >= self._total):
            self._shown = now
            part = self._done / self._total if self._total else 1
            bar = "#" * round(30 * part)
            sys.stderr.write(f"\r{self._what:<10} [{bar:<30}] {part:4.0%}  {self.rate()}  ")
            sys.stderr.flush()

    def rate(self) -> str:
        return f"{size_text(int(self._done / max(time.monotonic() - self._started, 1e-6)))}/s"

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ubnode model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_ in (
        ("push", "bring the files of a folder in as a version"),
        ("list", "the versions, the one in force first"),
        ("switch", "put a version in force, for running pods too"),
        ("rollback", "put the version in force that was before"),
        ("verify", "read a version and compare every chunk with its hash"),
        ("warm", "read a version into the page cache"),
        ("gc", "remove versions that nobody needs"),
    ):
        command = commands.add_parser(name, help=help_)
        command.add_argument("--volume", required=True, help="id or name of a volume of type model")
        if name == "push":
            command.add_argument("folder", type=Path)
            command.add_argument("--switch", action="store_true", help="put it in force when it is whole")
        if name in ("switch", "verify", "warm"):
            command.add_argument("version", help="id of a version, or the beginning of it")
        if name == "gc":
            command.add_argument("--keep", type=int, default=2, help="former versions to keep (default 2)")
            command.add_argument("--grace", type=float, default=60, help="seconds a version outlives its end (60)")
    return parser


def _store(volumes: Volumes, name: str) -> ModelStore:
    """Return the store of a volume of this node, by its id or name.

    Raises:
        NotFound: no such volume here.
        InvalidRequest: it is not of type model.
    """
    for pool in volumes.pools:
        volume = pool.volumes.find(name) or pool.volumes.called(name)
        if volume is None:
            continue
        if volume.spec.type is not VolumeType.MODEL:
            raise InvalidRequest(f"volume {name} is of type {volume.spec.type.value}, not model")
        engine = volumes.engines.named(volume.engine)
        if not engine.spans_machines:
            return ModelStore(pool.volumes.home / volume.id / "share")
        folder = engine.stage(Reach(volume.id, volume.owner, engine.context(volume, pool), pool))
        try:  # nobody writes behind the back of an engine that serves other machines
            return ModelStore(Path(f"/proc/self/fd/{folder}").readlink().parent)
        finally:
            os.close(folder)
    raise NotFound(f"volume {name!r} does not exist on node {volumes.node}")


def _push(store: ModelStore, folder: Path, *, is_switched: bool) -> None:
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    reading = Progress("hashing", total)
    wanted = manifest.read(folder, reading)
    reading.end()
    copying = Progress("copying", wanted.size)
    pushed = store.push(folder, wanted, copying)
    copying.end()
    share = pushed.moved / pushed.size if pushed.size else 0
    print(f"version {pushed.id}")
    print(f"{size_text(pushed.size)}, of which {size_text(pushed.moved)} ({share:.1%}) were new; {copying.rate()}")
    if is_switched:
        print(f"in force: {store.switch(pushed.id)}")


def _list(store: ModelStore) -> None:
    versions = store.listed()
    for version in versions:
        since = datetime.fromtimestamp(version.since, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if version.since else "never"
        mark = "in force since" if version.is_current else "last in force"
        print(f"{version.id}  {size_text(version.size):>10}  {mark} {since}")
    if not versions:
        print("no versions")


def _with_progress(what: str, store: ModelStore, version: str, do: object) -> None:
    size = next((each.size for each in store.listed() if each.id.startswith(version)), 0)
    progress = Progress(what, size)
    assert callable(do)
    do(version, progress)
    progress.end()
    print(f"{what} done: {size_text(size)}, {progress.rate()}")
