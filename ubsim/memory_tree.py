"""NUMA nodes, CPUs and shared UB memory as the files of sysfs and /dev. Pure: values to entries.

Source: reference/ub.md section 6.1; Linux Documentation/ABI/stable/sysfs-devices-node, sysfs-devices-system-cpu.
"""

from collections.abc import Iterable, Iterator

from ubhost.model import MemoryPool, NumaNode, SharedMemory
from ubsim.tree import Entry, File, Link, Sparse
from ubsim.values import hexadecimal, number, present

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
OBMM = "sys/devices/obmm"
POOLS = "sys/kernel/obmm_mempool"


def numa_entries(nodes: tuple[NumaNode, ...]) -> Iterator[Entry]:
    if not nodes:
        return
    ids = [node.id for node in nodes]
    cpus = sorted(cpu for node in nodes for cpu in node.cpus)
    for name, members in (
        ("online", ids),
        ("possible", ids),
        ("has_memory", [node.id for node in nodes if node.memory_total]),
        ("has_cpu", [node.id for node in nodes if node.cpus]),
    ):
        yield File(f"{NODES}/{name}", f"{ranges(members)}\n")
    for name in ("online", "possible", "present"):
        yield File(f"{CPUS}/{name}", f"{ranges(cpus)}\n")
    for node in nodes:
        yield from _node_entries(node, ids)


def _node_entries(node: NumaNode, ids: list[int]) -> Iterator[Entry]:
    base = f"{NODES}/node{node.id}"
    yield File(f"{base}/cpulist", f"{ranges(node.cpus)}\n")
    yield File(f"{base}/cpumap", f"{_mask(node.cpus)}\n")
    if set(node.distances) == set(ids):
        yield File(f"{base}/distance", " ".join(str(node.distances[other]) for other in ids) + "\n")
    yield File(f"{base}/meminfo", "".join(_meminfo(node)))
    for pages in node.hugepages:
        folder = f"{base}/hugepages/hugepages-{pages.size_kib}kB"
        yield File(f"{folder}/nr_hugepages", f"{pages.total}\n", 0o644)
        yield File(f"{folder}/free_hugepages", f"{pages.free}\n")
        yield File(f"{folder}/surplus_hugepages", "0\n")
    for cpu in node.cpus:
        topology: dict[str, object] = {
            "physical_package_id": node.id,
            "core_id": cpu,
            "thread_siblings_list": cpu,
            "core_cpus_list": cpu,
            "package_cpus_list": ranges(node.cpus),
        }
        yield from present(f"{CPUS}/cpu{cpu}/topology", topology, is_fixed=True)
        yield Link(f"{CPUS}/cpu{cpu}/node{node.id}", base)
        yield Link(f"{base}/cpu{cpu}", f"{CPUS}/cpu{cpu}")


def _meminfo(node: NumaNode) -> Iterator[str]:
    for name, size in (("MemTotal", node.memory_total), ("MemFree", node.memory_free)):
        if size is not None:
            yield f"Node {node.id} {name + ':':<15} {size // 1024:>8} kB\n"


def region_entries(region: SharedMemory) -> Iterator[Entry]:
    base = f"{OBMM}/obmm_shmdev{region.id}"
    yield from present(
        base,
        {
            "type": region.type,
            "size": hexadecimal(region.size, 1),
            "allow_mmap": number(region.allow_mmap),
            "priv_len": 0,
        },
    )
    yield File(f"{base}/priv", "")
    if region.type is not None:
        numa = {"numa_id": -1 if region.numa is None else region.numa} if region.type == "import" else {}
        yield from present(f"{base}/{region.type}_info", {**region.details, **numa})
    if region.allow_mmap and region.size is not None:
        yield Sparse(f"dev/obmm_shmdev{region.id}", region.size, 0o600)


def ranges(values: Iterable[int]) -> str:
    """Return a kernel list: ``0-3,8``."""
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _mask(cpus: Iterable[int]) -> str:
    """Return a kernel bit mask in words of 32 bits: ``00000000,0000000f``."""
    value = sum(1 << cpu for cpu in cpus)
    words: list[str] = []
    while value or not words:
        words.append(f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    return ",".join(reversed(words))


def pool_entries(pool: MemoryPool) -> Iterator[Entry]:
    values = {
        "total": pool.total,
        "used": pool.used,
        "available_cleared": pool.available_cleared,
        "available_uncleared": pool.available_uncleared,
    }
    yield from present(f"{POOLS}/obmm-{pool.numa}", values)
