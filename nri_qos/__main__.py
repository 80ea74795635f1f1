"""``nri-qos``: an NRI plugin that protects online pods and lets offline pods use what is left."""

import argparse
import contextlib
import fcntl
import gc
import logging
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from nri_qos import cgroup, resctrl, restore
from nri_qos.config import Config
from nri_qos.connection import Link, Stop
from nri_qos.daemon import Daemon, journal_of, resctrl_of
from nri_qos.stderr import PatientStderr
from ubhost import config, log, quantity
from ubhost.errors import Conflict, HostFault, InvalidRequest, UbError
from ubhost.notify import Manager
from ubhost.roots import Roots
from ubhost.version import version

SWITCH_S = 0.0005  # between threads, so that the loop does not keep a handler waiting (Python's default is 5 ms)
GC_THRESHOLDS = 200_000, 50, 50  # what we keep has no cycles, and a look through all of it takes tens of milliseconds
MAX_SOCKET_PATH = 107  # bytes, of sockaddr_un
_log = logging.getLogger("nri_qos")


@dataclass(frozen=True, slots=True)
class Options:
    """How we were started."""

    roots: Roots
    sockets: tuple[Path, ...]
    name: str
    index: str
    config_file: Path | None
    dry_run: bool
    restore: bool
    inherited_fd: int | None  # a runtime started us: its end of the connection

    @classmethod
    def parse(cls, argv: Sequence[str] | None, environ: Mapping[str, str]) -> "Options":
        """Read command line and environment.

        Raises:
            InvalidRequest: a value that no runtime would accept.
        """
        args = parser().parse_args(argv)
        roots = Roots.from_environ(environ)
        default = (roots.root / "var/run/nri/nri.sock", roots.root / "run/nri/nri.sock")
        options = cls(
            roots,
            (args.socket,) if args.socket else default,
            environ.get("NRI_PLUGIN_NAME") or args.name,
            environ.get("NRI_PLUGIN_IDX") or args.index,
            args.config,
            args.dry_run,
            args.restore,
            _inherited(environ),
        )
        options.check()
        return options

    def check(self) -> None:
        """Refuse what no runtime would accept.

        Raises:
            InvalidRequest: see above.
        """
        if not (len(self.index) == 2 and self.index.isascii() and self.index.isdigit()):
            raise InvalidRequest(f"index {self.index!r} is not two digits")
        if not self.name or not all(c.isascii() and (c.isalnum() or c in "_.+-") for c in self.name):
            raise InvalidRequest(f"name {self.name!r} has other characters than letters, digits and _.+-")
        for path in self.sockets[:1] if self.inherited_fd is None else ():
            if len(os.fsencode(path)) > MAX_SOCKET_PATH:
                raise InvalidRequest(f"socket {path} is longer than {MAX_SOCKET_PATH} bytes")
            with contextlib.suppress(OSError):  # it may come, or come back, later
                if not stat.S_ISSOCK(path.stat().st_mode):
                    raise InvalidRequest(f"socket {path} is not a socket")


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="nri-qos", description=__doc__.partition(": ")[2])
    parser.add_argument("--socket", type=Path, metavar="PATH", help="socket of the runtime (/var/run/nri/nri.sock)")
    parser.add_argument("--index", default="90", metavar="NN", help="two digits: plugins are called in this order (90)")
    parser.add_argument("--name", default="ub-qos", help="name shown by the runtime (ub-qos)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration, YAML")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="decide and report, change nothing")
    what.add_argument("--restore", action="store_true", help="put back what an earlier run changed, and end")
    parser.add_argument("--version", action="version", version=f"nri-qos {version()}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; return the exit code: 0 done, 1 failed, 2 usage."""
    try:
        options = Options.parse(argv, os.environ)
        settings = config.load(options.config_file, Config)
    except InvalidRequest as error:
        print(f"nri-qos: {error}", file=sys.stderr)
        return 2
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # what is imported stays
    gc.set_threshold(*GC_THRESHOLDS)
    stderr = PatientStderr()
    log.set_up(settings.log_level, cast("TextIO", stderr))
    try:
        return _run(options, settings)
    except UbError as error:
        _log.error("nri-qos cannot go on", extra={"error": str(error)})
        return 2 if isinstance(error, InvalidRequest) else 1
    finally:
        stderr.close()


def _run(options: Options, settings: Config) -> int:
    stop, manager = Stop(), Manager.from_environ()
    if options.restore:
        return _restore(options.roots)
    lock = None if options.dry_run else _only_one(options.roots.run, stop)
    if not stop.is_set:
        _log.info("nri-qos starts", extra={"version": version(), "root": str(options.roots.root)})
        daemon = Daemon(options.roots, settings, dry_run=options.dry_run, takes_config=options.config_file is None)
        link = Link(daemon.plugin, options.name, options.index, stop)
        with daemon, manager.serving("deciding; /readyz says whether the runtime is there"):
            if options.inherited_fd is not None:
                link.serve_inherited(options.inherited_fd)
            else:
                link.serve_for_ever(options.sockets)
    if lock is not None:
        os.close(lock)
    _log.info("nri-qos ends")
    return 0


def _restore(roots: Roots) -> int:
    """Put back what an earlier run changed; return the exit code."""
    lock = _try_lock(roots.run)
    if lock is None:
        raise Conflict("nri-qos runs on this node: end it first, or it changes again what is restored")
    outcome = restore.from_file(cgroup.folder(roots), journal_of(roots))
    outcome[restore.RESTORED] += resctrl.remove(resctrl_of(roots))
    os.close(lock)
    print(", ".join(f"{count} {what}" for what, count in outcome.items()))
    return 1 if outcome["failed"] else 0


def _inherited(environ: Mapping[str, str]) -> int | None:
    """Return the descriptor that a runtime which starts its plugins itself hands over, if one did."""
    text = environ.get("NRI_PLUGIN_SOCKET")
    if text is None:
        return None
    fd = quantity.number(text)
    try:
        if fd is None or not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise ValueError(text)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequest(f"NRI_PLUGIN_SOCKET={text[:80]} is not an open socket") from error
    os.set_inheritable(fd, False)
    return fd


def _only_one(folder: Path, stop: Stop) -> int | None:
    """Wait until no other nri-qos runs on this node; return the lock that says so, or ``None`` if asked to stop."""
    is_waiting = False
    while not stop.is_set:
        lock = _try_lock(folder)
        if lock is not None:
            return lock
        if not is_waiting:
            _log.warning("another nri-qos runs on this node, waiting for its end", extra={"folder": str(folder)})
        is_waiting = True
        stop.wait(1)
    return None


def _try_lock(folder: Path) -> int | None:
    path = folder / "nri-qos.lock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFault(f"cannot open {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


if __name__ == "__main__":
    sys.exit(main())
