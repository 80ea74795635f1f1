"""Reads the node's CPUs and memory from sysfs. Reads only; slow or broken sysfs is the caller's thread to lose.

Missing attributes are tolerated where a kernel or a virtual machine leaves them out: no NUMA is one node, no
topology is one thread a core.

Source: Linux Documentation/ABI/stable/sysfs-devices-node, Documentation/ABI/stable/sysfs-devices-system-cpu;
reference/nri.md section 4.3.
"""

from collections.abc import Mapping
from pathlib import Path

from nri_qos import cpulist
from nri_qos.model import Machine
from ubhost.errors import HostFault, InvalidRequest
from ubhost.model import NumaNode


def read_machine(sys: Path, previous: Machine | None = None) -> Machine:
    """Return what ``sys`` (the root of sysfs) tells; cores and caches are those of ``previous`` if its CPUs are.

    Raises:
        HostFault: the online CPUs cannot be told, or a file says something that is no list of ids.
    """
    folder = sys / "devices/system/cpu"
    nodes = _read_nodes(sys / "devices/system/node")
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


def _read_nodes(folder: Path) -> tuple[NumaNode, ...]:
    present = _ids(folder / "online")
    if present is None:
        return ()
    order = sorted(present)
    return tuple(_read_node(folder / f"node{node}", node, order) for node in order)


def _read_node(folder: Path, node: int, order: list[int]) -> NumaNode:
    distances = (_text(folder / "distance") or "").split()
    meminfo = _meminfo(folder / "meminfo")
    return NumaNode(
        id=node,
        cpus=tuple(sorted(_ids(folder / "cpulist") or ())),
        memory_total=meminfo.get("MemTotal"),
        memory_free=_reclaimable(meminfo),
        distances={other: int(far) for other, far in zip(order, distances, strict=False) if far.isdigit()},
    )


def _reclaimable(meminfo: Mapping[str, int]) -> int | None:
    """Return the bytes that a new container could get: free, or cache that the kernel would drop for it."""
    if "MemFree" not in meminfo:
        return None
    return sum(meminfo.get(key, 0) for key in ("MemFree", "Inactive(file)", "SReclaimable"))


def _meminfo(path: Path) -> dict[str, int]:
    """Read lines such as ``Node 0 MemFree:  123 kB`` into bytes."""
    values = {}
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) >= 4 and words[3].isdigit():
            values[words[2].rstrip(":")] = int(words[3]) * (1024 if words[-1] == "kB" else 1)
    return values


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
        if text.strip().isdigit() and int(text) > level and cpus:
            level, shared = int(text), cpus
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
