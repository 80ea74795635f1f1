"""Which cgroup files a configuration may set for a class of pods, and with which values. Pure.

The files that nri-qos works with itself (weight, quota, cpuset) are not among them, nor ``memory.max``, which kills
when it is lowered, nor anything of ``cgroup.*``. A file that the kernel does not have is skipped and reported.

Source: Linux Documentation/admin-guide/cgroup-v2.rst; openEuler's qos_level files: kernel/sched/core.c and
mm/memcontrol.c of OLK-6.6; reference/nri.md sections 2.2 and 3.1.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from nri_qos.settings import PAGE, line

_NUMBER = r"[1-9]\d{0,17}"  # longer ones are more than any machine has
_BYTES = rf"max|0|{_NUMBER}"
_PERCENT = r"max|100(\.00?)?|\d{1,2}(\.\d{1,2})?"
_LIMIT = rf"(max|{_NUMBER})"
KNOBS: Mapping[str, str] = {
    "cpu.max.burst": rf"0|{_NUMBER}",  # microseconds
    "cpu.uclamp.min": _PERCENT,
    "cpu.uclamp.max": _PERCENT,
    "cpu.qos_level": r"-[12]|[0-2]",  # openEuler: -1 is offline, 0 online; the others with several levels only
    "memory.min": _BYTES,
    "memory.low": _BYTES,
    "memory.high": _BYTES,
    "memory.swap.high": _BYTES,
    "memory.swap.max": _BYTES,
    "memory.zswap.max": _BYTES,
    "memory.oom.group": r"[01]",
    "memory.qos_level": r"-1|0",
    "io.weight": r"(default )?([1-9]\d{0,3}|10000)",
    "io.bfq.weight": r"(default )?([1-9]\d{0,2}|1000)",
    "pids.max": _LIMIT,
}
BY_DEVICE: Mapping[str, str] = {
    "io.max": rf"(\b[rw](bps|iops)={_LIMIT} ?)+",  # bytes and operations a second
    "io.latency": rf"target={_LIMIT}",  # microseconds
    "io.weight": r"default|[1-9]\d{0,3}|10000",
    "io.bfq.weight": r"default|[1-9]\d{0,2}|1000",
    "rdma.max": rf"(\bhca_(handle|object)=(max|0|{_NUMBER}) ?)+",
}
SET = ("cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus", "cpuset.mems", "memory.high")
"""Files that nri-qos sets by itself."""

OWN = (*SET, "memory.reclaim", "cgroup.kill", "cpu.pressure")
"""Files that nri-qos works with by itself."""

_HUGETLB = re.compile(r"hugetlb\.\d{1,9}[KMG]B\.max", re.ASCII)
_DEVICE = re.compile(r"\d+:\d+|[A-Za-z0-9][\w.!-]*", re.ASCII)
LONGEST = 80  # characters of a wrong value that are shown
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
        elif not re.fullmatch(pattern, value, re.ASCII):
            yield f"{file}: {value[:LONGEST]!r} is not a value of it"
        elif doubles := _doubles(value):
            yield f"{file}: {', '.join(doubles)} is given twice"
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


def _doubles(value: str) -> list[str]:
    """Return what a line of a device names more than once: which of them counts is anybody's guess."""
    names = [word.partition("=")[0] for word in value.split() if "=" in word]
    return sorted({name for name in names if names.count(name) > 1})


def _pattern(file: str) -> str | None:
    name, space, device = file.partition(" ")
    if space:
        return BY_DEVICE.get(name) if _DEVICE.fullmatch(device) else None
    return _BYTES if _HUGETLB.fullmatch(file) else KNOBS.get(file)
