"""Everything that a simulated super-node makes on a machine, to compare before and after."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ubhost.kernel import mountinfo
from ubhost.kernel.rtnl import Rtnl

OURS = (b"ubsim.daemon", b"csi_ub")  # modules that a Python runs
IP_NETNS = {"/run/netns"}  # which ip makes a mount of when it first names a namespace, and keeps


@dataclass(frozen=True)
class Traces:
    links: frozenset[str]
    mounts: frozenset[str]
    namespaces: frozenset[str]
    processes: frozenset[str]
    files: frozenset[str]


def traces(folder: Path) -> Traces:
    """Return what is there now; files are those below ``folder``."""
    with Rtnl() as links:
        names = frozenset(link.name for link in links.links())
    netns = Path("/run/netns")
    return Traces(
        names,
        frozenset(mount.target for mount in mountinfo.read()) - IP_NETNS,
        frozenset(path.name for path in netns.iterdir()) if netns.is_dir() else frozenset(),
        frozenset(_daemons()),
        frozenset(str(path) for path in folder.rglob("*")) if folder.exists() else frozenset(),
    )


def _daemons() -> Iterator[str]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if any(name in words for name in OURS):
                    yield folder.name
