"""``ubnode bug-report``: one archive with what a maintainer needs."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ubhost.arguments import Parser
from ubhost.errors import InvalidRequest
from ubhost.roots import Roots
from ubhost.version import version
from ubnode.bugreport.archive import contents, write
from ubnode.bugreport.gather import Left, Taken, gather

_MIB = 1 << 20


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    if not 1 <= arguments.most <= 1024:
        raise InvalidRequest(f"--most {arguments.most} is not 1 to 1024 MiB")
    now = int(time.time())
    path: Path = arguments.output or Path(f"ub-node-report-{os.uname().nodename}-{now}.tar.gz")
    if not path.name.endswith(".tar.gz"):
        raise InvalidRequest(f"--output {path} does not end with .tar.gz")
    if os.geteuid():
        print("not root: much of a node is not for everybody's eyes and will be missing", file=sys.stderr)
    head = Taken("ABOUT.txt", f"ubnode {version()}, UB_ROOT {Roots.from_environ().root}, {time.ctime(now)}\n".encode())
    pieces = [head, *gather(Roots.from_environ().root, arguments.most * _MIB)]
    if arguments.list:
        print(contents(pieces), end="")
        return 0
    size = write(path, pieces, now)
    taken = [piece for piece in pieces if isinstance(piece, Taken)]
    print(contents(pieces), end="")
    secrets = sum(piece.secrets for piece in taken)
    print(
        f"\n{path}: {len(taken)} pieces, {size / 1024:.0f} KiB, {secrets} secrets removed, "
        f"{sum(isinstance(piece, Left) for piece in pieces)} left out\n"
        "It names pods, addresses and file systems of this node: look through it before you hand it on."
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ubnode bug-report",
        description="Write one archive with what a maintainer needs. Changes nothing on the node, sends nothing.",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="(ub-node-report-HOST-TIME.tar.gz, here)")
    parser.add_argument("--most", type=int, default=16, metavar="MIB", help="size before packing (16)")
    parser.add_argument("--list", action="store_true", help="say what would be taken, write nothing")
    return parser
