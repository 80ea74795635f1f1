"""Values of cgroup files: when two are the same, what may be written, and in which order. Pure.

Source: Linux Documentation/admin-guide/cgroup-v2.rst; reference/nri.md section 3.1, measured on real kernels.
"""

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nri_qos import cpulist
from ubhost import quantity
from ubhost.errors import InvalidRequest

Place = tuple[str, str]
"""A cgroup, relative to the root of the hierarchy, and a file in it; or one line of it, as in ``io.max 8:0``."""

UNLIMITED: Mapping[str, str] = {
    "io.max": "rbps=max wbps=max riops=max wiops=max",
    "io.latency": "target=0",
    "io.weight": "default",
    "io.bfq.weight": "default",
    "rdma.max": "hca_handle=max hca_object=max",
}
"""Files with a line for each device, and what a line says that limits nothing."""

PERIOD_US = 50_000
"""Of ``cpu.max`` for offline work: a long period lets it run in long bursts, which online work waits for."""

LEAST_QUOTA_US = 1_000  # the kernel refuses less
PAGE = mmap.PAGESIZE  # bytes: 4096, or 65536 with some arm64 kernels
IN_PAGES = frozenset(f"memory.{name}" for name in ("min", "low", "high", "swap.high", "swap.max", "zswap.max"))
"""Files with bytes, of which the kernel keeps whole pages."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``cgroup/file`` is to say ``value``; ``None`` puts back what it said before we changed it.

    ``original`` is what it would say without us, where the runtime wrote our value before we could see another.
    """

    cgroup: str
    file: str
    value: str | None
    original: str | None = None

    @property
    def place(self) -> Place:
        return self.cgroup, self.file

    @property
    def depth(self) -> int:
        return self.cgroup.count("/")


def cpu_max(cpus: float) -> str:
    """Return the value of ``cpu.max`` that allows ``cpus`` CPUs: at least 1000 microseconds in a period."""
    return f"{max(round(cpus * PERIOD_US), LEAST_QUOTA_US)} {PERIOD_US}"


def burst(micros: int, cpus: float) -> str:
    """Return the value of ``cpu.max.burst`` beside a quota of ``cpus``: the kernel takes no more than the quota."""
    return str(min(micros, int(cpu_max(cpus).partition(" ")[0])))


def memory(value: float) -> str:
    """Return ``value`` bytes as the kernel keeps them, in whole pages. Never 0, which stops a cgroup for good."""
    return str(max(int(value) // PAGE, 1) * PAGE)


def line(file: str, value: str) -> str:
    """Return ``value`` of one device with everything that it leaves open: what is not named is not limited."""
    if "=" not in value:
        return value
    named = dict(word.split("=") for word in value.split())
    return " ".join(
        f"{key}={named.get(key, rest)}" for key, _, rest in (w.partition("=") for w in UNLIMITED[file].split())
    )


def is_same(file: str, one: str, other: str) -> bool:
    """Whether the kernel takes both texts for the same value of ``file``."""
    return _plain(file, one) == _plain(file, other)


def in_order(settings: Iterable[Setting], now: Mapping[Place, str]) -> list[Setting]:
    """Return ``settings`` in an order that the kernel accepts and that leaves no window.

    ``cpu.idle`` locks ``cpu.weight``, so it is lifted first and set last. A burst is lowered before its quota and
    raised after. What is tightened goes from children to parents, what is loosened from parents to children.
    """

    def key(setting: Setting) -> tuple[int, int]:
        loosens = _loosens(setting, now.get(setting.place, ""))
        if setting.file == "cpu.idle":
            rank = 0 if setting.value == "0" else 9
        elif setting.file == "cpu.max.burst":
            rank = 5 if loosens else 1
        else:
            rank = 3
        return rank, setting.depth if loosens else -setting.depth

    return sorted(settings, key=key)


def _loosens(setting: Setting, now: str) -> bool:
    if setting.value is None:
        return True
    try:
        return amount(setting.file, setting.value) >= amount(setting.file, now)
    except (ValueError, InvalidRequest):
        return True


def amount(file: str, text: str) -> float:
    """Return how much a value allows, to compare two of the same file; infinity for "max" and an empty set.

    Raises:
        ValueError, InvalidRequest: it is no value of that file.
    """
    if file.startswith("cpuset."):
        return float(len(cpulist.parse(text))) or float("inf")
    words = text.split()
    if not words or words[0] == "max":
        return float("inf")
    return float(words[0]) / (float(words[1]) if file == "cpu.max" and len(words) > 1 else 1.0)


def _plain(file: str, text: str) -> object:
    text = text.strip()
    try:
        if " " in file:  # a line of one device
            return frozenset(text.replace("target=max", "target=0").split())
        if file in ("cpuset.cpus", "cpuset.mems"):
            return cpulist.parse(text)
        if file == "cpu.max":
            quota, period = [*text.split(), "100000"][:2]
            return quota, int(period)
        if file.endswith(".weight"):  # io.weight: "default 100", and lines of single devices
            return " ".join(text.removeprefix("default ").split())
        if file in IN_PAGES and (size := quantity.number(text)) is not None:
            return size // PAGE
    except (ValueError, InvalidRequest):
        return text
    return " ".join(text.split())
