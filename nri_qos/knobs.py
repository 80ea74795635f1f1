"""Which cgroup files a configuration may set for a class of pods, and with which values. Pure.

The files that nri-qos works with itself (weight, quota, cpuset) are not among them, nor ``memory.max``, which kills
when it is lowered, nor anything of ``cgroup.*``. A file that the kernel does not have is skipped and reported.

Source: Linux Documentation/admin-guide/cgroup-v2.rst; openEuler's qos_level files: kernel/sched/core.c and
mm/memcontrol.c of OLK-6.6; reference/nri.md sections 2.2 and 3.1.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from nri_qos.settings import PAGE, line

_BYTES = r"max|0|[1-9]\d*"
_PERCENT = r"max|100(\.00?)?|\d{1,2}(\.\d{1,2})?"
_LIMIT = r"(max|[1-9]\d*)"
KNOBS: Mapping[str, str] = {
    "cpu.max.burst": r"\d+",  # microseconds
    "cpu.uclamp.min": _PERCENT,
    "cpu.uclamp.max": _PERCENT,
    "cpu.qos_level": r"-?\d",  # openEuler: -1 is offline
    "memory.min": _BYTES,
    "memory.low": _BYTES,
    "memory.high": _BYTES,
    "memory.swap.high": _BYTES,
    "memory.swap.max": _BYTES,
    "memory.zswap.max": _BYTES,
    "memory.oom.group": r"[01]",
    "memory.qos_level": r"-?\d",
    "io.weight": r"(default )?([1-9]\d{0,3}|10000)",
    "io.bfq.weight": r"(default )?([1-9]\d{0,2}|1000)",
    "pids.max": r"max|[1-9]\d*",
}
BY_DEVICE: Mapping[str, str] = {
    "io.max": rf"(\b[rw](bps|iops)={_LIMIT} ?)+",  # bytes and operations a second
    "io.latency": rf"target={_LIMIT}",  # microseconds
    "io.weight": r"default|[1-9]\d{0,3}|10000",
    "io.bfq.weight": r"default|[1-9]\d{0,2}|1000",
    "rdma.max": r"(\bhca_(handle|object)=(max|\d+) ?)+",
}
SET = ("cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus", "cpuset.mems", "memory.high")
"""Files that nri-qos sets by itself."""

OWN = (*SET, "memory.reclaim", "cgroup.kill", "cpu.pressure")
"""Files that nri-qos works with by itself."""

_HUGETLB = re.compile(r"hugetlb\.\d+[KMG]B\.max")
_DEVICE = re.compile(r"\d+:\d+|[A-Za-z0-9][\w.!-]*", re.ASCII)
CONTROLLERS = ("cpu", "cpuset", "memory", "io")


def check(files: Mapping[str, str]) -> Iterator[str]:
    """Return what is wrong with the files of one class and their values."""
    for file, value in files.items():
        pattern = _pattern(file)
        if pattern is None:
            yield (
                f"{file} cannot be set, only {', '.join(KNOBS)}, hugetlb.<size>.max, and for a device, as in "
                f"'io.max sda', {', '.join(BY_DEVICE)}"
            )
        elif not re.fullmatch(pattern, value):
            yield f"{file}: {value!r} is not a value of it"
        elif file == "memory.high" and value != "max" and int(value) < PAGE:
            yield f"{file}: {value} is less than a page ({PAGE}), which the kernel takes for 0: it stops a pod for good"


def value(file: str, configured: str) -> str:
    """Return the whole value of a file for what is configured."""
    name, _, device = file.partition(" ")
    return line(name, configured) if device else configured


def offered(names: Collection[str]) -> dict[str, bool]:
    """Return for each file that we know whether it is among ``names``, those of one cgroup of a pod."""
    sizes = [name for name in names if _HUGETLB.fullmatch(name)]
    return {file: file in names for file in sorted({*KNOBS, *BY_DEVICE, *OWN, *sizes})}


def _pattern(file: str) -> str | None:
    name, space, device = file.partition(" ")
    if space:
        return BY_DEVICE.get(name) if _DEVICE.fullmatch(device) else None
    return _BYTES if _HUGETLB.fullmatch(file) else KNOBS.get(file)
