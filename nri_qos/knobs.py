"""Which cgroup files a configuration may set for a class of pods, and with which values. Pure.

The files that nri-qos works with itself (weight, quota, cpuset) are not among them, nor ``memory.max``, which kills
when it is lowered, nor anything of ``cgroup.*``. A file that the kernel does not have is skipped and reported.

Source: Linux Documentation/admin-guide/cgroup-v2.rst; openEuler's qos_level files: kernel/sched/core.c and
mm/memcontrol.c of OLK-6.6; reference/nri.md sections 2.2 and 3.1.
"""

import re
from collections.abc import Iterator, Mapping

_BYTES = r"max|0|[1-9]\d*"
_PERCENT = r"max|\d{1,3}(\.\d{1,2})?"
KNOBS: Mapping[str, str] = {
    "cpu.max.burst": r"\d+",  # microseconds
    "cpu.uclamp.min": _PERCENT,
    "cpu.uclamp.max": _PERCENT,
    "cpu.qos_level": r"-?\d",  # openEuler: -1 is offline
    "memory.min": _BYTES,
    "memory.low": _BYTES,
    "memory.high": r"max|[1-9]\d*",  # 0 stops a cgroup for good
    "memory.swap.high": _BYTES,
    "memory.swap.max": _BYTES,
    "memory.zswap.max": _BYTES,
    "memory.oom.group": r"[01]",
    "memory.qos_level": r"-?\d",
    "io.weight": r"(default )?([1-9]\d{0,3}|10000)",
    "io.bfq.weight": r"(default )?([1-9]\d{0,2}|1000)",
    "pids.max": r"max|[1-9]\d*",
}
_HUGETLB = re.compile(r"hugetlb\.\d+[KMG]B\.max")


def check(files: Mapping[str, str]) -> Iterator[str]:
    """Return what is wrong with the files of one class and their values."""
    for file, value in files.items():
        pattern = _BYTES if _HUGETLB.fullmatch(file) else KNOBS.get(file)
        if pattern is None:
            yield f"{file} cannot be set, only {', '.join(KNOBS)} and hugetlb.<size>.max"
        elif not re.fullmatch(pattern, value):
            yield f"{file}: {value!r} is not a value of it"
