"""Interrupts that come to CPUs which are a container's own: told, not moved. Steering them is the node's business.

Source: Linux Documentation/core-api/irq/irq-affinity.rst; reference/nri.md section 5 (E22).
"""

from pathlib import Path

from nri_qos import cpulist
from ubhost import quantity
from ubhost.errors import InvalidRequest

# Where an interrupt comes to now, and where that is not told, where it may come to.
_FILES = ("effective_affinity_list", "smp_affinity_list")


def on(folder: Path, cpus: frozenset[int]) -> list[int]:
    """Return the interrupts of ``folder`` (/proc/irq) that come to one of ``cpus``."""
    if not cpus:
        return []
    try:
        numbers = sorted(int(entry.name) for entry in folder.iterdir() if quantity.number(entry.name) is not None)
    except OSError:
        return []
    return [number for number in numbers if _cpus(folder / str(number)) & cpus]


def _cpus(irq: Path) -> frozenset[int]:
    for name in _FILES:
        try:
            return cpulist.parse((irq / name).read_text(encoding="ascii"))
        except (OSError, InvalidRequest):
            continue
    return frozenset()
