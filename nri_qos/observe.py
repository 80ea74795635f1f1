"""Reads the node's CPUs and memory from sysfs. Reads only; slow or broken sysfs is the caller's thread to lose.

Missing attributes are tolerated where a kernel or a virtual machine leaves them out: no NUMA is one node, no
topology is one thread a core.

Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu; reference/nri.md section 4.3.
"""

from pathlib import Path

from nri_qos import cpulist
from nri_qos.model import Machine
from ubhost import quantity
from ubhost.errors import HostFault, InvalidRequest
from ubhost.model import NumaNode
from ubhost.sysfs.attributes import Folder
from ubhost.sysfs.numa import read_numa


def read_machine(sys: Path, previous: Machine | None = None) -> Machine:
    """Return what ``sys`` (the root of sysfs) tells; cores and caches are those of ``previous`` if its CPUs are.

    Raises:
        HostFault: the online CPUs cannot be told, or a file says something that is no list of ids.
    """
    folder = sys / "devices/system/cpu"
    nodes = read_numa(Folder(sys / "devices/system/node"), with_hugepages=False, cache_is_free=True)
    online = _ids(folder / "online")
    if online is None:
        online = frozenset(cpu for node in nodes for cpu in node.cpus)
    if not online:
        raise HostFault(f"{folder / 'online'} names no CPU")
    if not nodes:
        nodes = (NumaNode(0, tuple(sorted(online))),)
    if previous is not None and previous.online == online:
        siblings, caches = previous.siblings, previous.caches
    else:
        siblings = {cpu: _siblings(folder, cpu) for cpu in sorted(online)}
        caches = {cpu: _cache(folder, cpu) for cpu in sorted(online)}
    return Machine(online, nodes, siblings, caches, _ids(folder / "isolated") or frozenset())


def _siblings(folder: Path, cpu: int) -> frozenset[int]:
    topology = folder / f"cpu{cpu}/topology"
    return _ids(topology / "thread_siblings_list") or _ids(topology / "core_cpus_list") or frozenset((cpu,))


def _cache(folder: Path, cpu: int) -> int:
    """Return the smallest CPU that shares the last-level cache: ids of caches are not unique on every machine."""
    level, shared = 0, frozenset((cpu,))
    for index in range(8):
        cache = folder / f"cpu{cpu}/cache/index{index}"
        text = _text(cache / "level")
        if text is None:
            break
        cpus = _ids(cache / "shared_cpu_list")
        here = quantity.number(text.strip()) or 0
        if here > level and cpus:
            level, shared = here, cpus
    return min(shared)


def _ids(path: Path) -> frozenset[int] | None:
    text = _text(path)
    if text is None:
        return None
    try:
        return cpulist.parse(text)
    except InvalidRequest as error:
        raise HostFault(f"{path}: {error}") from error


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HostFault(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
