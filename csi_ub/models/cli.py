"""``ubnode model``: bring versions of a model into a volume, and switch between them."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from csi_ub.connect import remembered
from csi_ub.engines.syncthing import SyncthingEngine
from csi_ub.models import manifest
from csi_ub.models.store import ModelStore
from csi_ub.models.switching import Standing, SwitchPolicy, missing
from csi_ub.reasons import Unreachable
from csi_ub.syncthing.keeper import standings
from csi_ub.volumes import Volumes
from ubhost.arguments import Parser
from ubhost.errors import NotFound
from ubhost.roots import Roots
from ubhost.show.table import size as size_text


def main(argv: Sequence[str]) -> int:
    """Do one command; return the exit code."""
    arguments = _parser().parse_args(argv)
    model = _model(remembered(Roots.from_environ()), arguments.volume)
    store = model.store
    match arguments.command:
        case "push":
            pushed = _push(store, arguments.folder)
            if arguments.switch:
                model.switch(pushed, now=arguments.now, timeout_s=arguments.timeout)
        case "list":
            _list(model)
        case "switch":
            model.switch(arguments.version, now=arguments.now, timeout_s=arguments.timeout)
        case "rollback":
            model.switch(None, now=arguments.now, timeout_s=arguments.timeout)
        case "verify":
            _with_progress("verifying", store, arguments.version, store.verify)
        case "warm":
            _with_progress("warming", store, arguments.version, store.warm)
        case _:
            removed = store.gc(
                arguments.keep, arguments.grace, [each.current for each in model.others() if each.current]
            )
            print("\n".join(f"removed: {version}" for version in removed) or "nothing to remove")
    return 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model volume of this node. ``is_agreed``: a switch waits for the nodes that have a copy of their own."""

    store: ModelStore
    node: str
    is_copied: bool
    is_agreed: bool

    def others(self) -> list[Standing]:
        return standings(self.store.share, self.node) if self.is_copied else []

    def switch(self, version: str | None, *, now: bool, timeout_s: float) -> None:
        """Put a version in force (``None``: the one before), and wait until it is.

        Raises:
            Unreachable: some nodes do not have all of it in time; it comes into force when they do.
        """
        is_only_wanted = self.is_agreed and not now
        if version is None:
            id_ = self.store.rollback(is_only_wanted=is_only_wanted)
        else:
            id_ = self.store.switch(version, is_only_wanted=is_only_wanted)
        deadline = time.monotonic() + timeout_s
        while self.store.current() != id_:
            if time.monotonic() > deadline:
                late = ", ".join(missing(id_, self.others())) or "none: does ub-csi run here?"
                raise Unreachable(
                    f"version {id_[:12]} is not in force after {timeout_s:g} s, {str(self.store.current())[:12]} stays "
                    f"until these nodes have all of it: {late}. With --now nobody waits for them"
                )
            time.sleep(0.1)
        print(f"in force: {id_}")


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
    parser = Parser(prog="ubnode model", description=__doc__)
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
        if name in ("push", "switch", "rollback"):
            command.add_argument("--now", action="store_true", help="do not wait for nodes that do not have it yet")
            command.add_argument("--timeout", type=float, default=60, help="seconds to wait for all nodes (60)")
        if name in ("switch", "verify", "warm"):
            command.add_argument("version", help="id of a version, or the beginning of it")
        if name == "gc":
            command.add_argument("--keep", type=int, default=2, help="former versions to keep (default 2)")
            command.add_argument("--grace", type=float, default=60, help="seconds a version outlives its end (60)")
    return parser


def _model(volumes: Volumes, name: str) -> Model:
    """Return a model volume of this node, by its id or name.

    Raises:
        NotFound: no such volume here.
        InvalidRequest: it is not of type model.
    """
    found = volumes.model(name)
    if found is None:
        raise NotFound(f"volume {name!r} does not exist on node {volumes.node}: models are pushed on their owner")
    volume, pool = found
    engine = volumes.engines.named(volume.engine)
    is_copied = engine.name == SyncthingEngine.name
    is_agreed = is_copied and volume.spec.switch_policy is SwitchPolicy.ALL_READY
    if not engine.spans_machines:
        share = pool.volumes.home / volume.id / "share"
    else:  # nobody writes behind the back of an engine that serves other machines
        folder = engine.stage(volumes.reach(volume, pool))
        try:
            share = Path(f"/proc/self/fd/{folder}").readlink().parent
        finally:
            os.close(folder)
    return Model(ModelStore(share), volumes.node, is_copied, is_agreed)


def _push(store: ModelStore, folder: Path) -> str:
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
    return pushed.id


def _list(model: Model) -> None:
    versions, wanted = model.store.listed(), model.store.wanted()[:1]
    for version in versions:
        since = datetime.fromtimestamp(version.since, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if version.since else "never"
        mark = "in force since" if version.is_current else "wanted since" if version.id in wanted else "last in force"
        print(f"{version.id}  {size_text(version.size):>10}  {mark} {since}")
    if not versions:
        print("no versions")
    for other in model.others():
        whole = sum(version.id in other.whole for version in versions)
        print(f"node {other.node}: {whole} of {len(versions)} whole, in force {(other.current or '-')[:12]}")


def _with_progress(what: str, store: ModelStore, version: str, do: object) -> None:
    size = next((each.size for each in store.listed() if each.id.startswith(version)), 0)
    progress = Progress(what, size)
    assert callable(do)
    do(version, progress)
    progress.end()
    print(f"{what} done: {size_text(size)}, {progress.rate()}")
