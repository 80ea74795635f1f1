"""Makes docs/compatibility.md from what ubnode doctor checks: ``python -m docs.compatibility``."""

import sys
from collections.abc import Iterator
from pathlib import Path

from ubhost.doctor.compatibility import TABLE, UB_GENERATIONS, Known, Version

HEAD = """\
# What works with what

Made from `ubhost/doctor/compatibility.py` by `docs/compatibility.py`; do not edit. `ubnode doctor` checks a node
against the same table. *Tried* is what our tests really ran with; where nothing was at hand, the documentation was
followed, and it says so.
"""
NAMES = {"containerd": "containerd", "crio": "CRI-O", "kubelet": "Kubernetes (kubelet)", "kernel": "Linux"}


def main() -> int:
    sys.stdout.write(document())
    return 0


def document() -> str:
    return "\n".join([HEAD, *_table(), "", *_ub()]) + "\n"


def page() -> Path:
    return Path(__file__).with_name("compatibility.md")


def _table() -> Iterator[str]:
    yield "| part | needed | tried | why | source |"
    yield "|---|---|---|---|---|"
    for known in TABLE:
        cells = (NAMES.get(known.part, known.part), _text(known.least), _tried(known), known.because, known.source)
        yield f"| {' | '.join(cells)} |"


def _tried(known: Known) -> str:
    return "no real one" if known.tried is None else f"below {_text(known.tried)}"


def _ub() -> Iterator[str]:
    yield "## UB hardware"
    yield ""
    yield "Driver, user space and UBSE go together; a container's liburma must be of the host kernel's generation."
    yield "No UB hardware was at hand: what is known is known from the public sources named."
    yield ""
    yield "| generation | kernel | system | URMA | UBSE | ours | source |"
    yield "|---|---|---|---|---|---|---|"
    for one in UB_GENERATIONS:
        ours = "yes" if one.is_known else "no"
        yield f"| {one.name} | {_text(one.kernel)} | {one.system} | {one.urma} | {one.ubse} | {ours} | {one.source} |"


def _text(version: Version) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    sys.exit(main())
