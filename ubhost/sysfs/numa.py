"""NUMA nodes, those without CPUs included: ``/sys/devices/system/node``.

Source: Linux Documentation/admin-guide/mm/numaperf.rst, Documentation/ABI/stable/sysfs-devices-node.
"""

from ubhost.model import HugePages, NumaNode
from ubhost.sysfs.attributes import Folder, Unreadable

MAX_NODES = 1024
MAX_CPUS = 8192


def read_numa(folder: Folder) -> tuple[NumaNode, ...]:
    """Return every node that is on line, by id.

    Raises:
        Unreadable: an attribute makes no sense.
    """
    nodes = folder.numbered("node", MAX_NODES)
    ids = [id_ for id_, _ in nodes]
    return tuple(_node(id_, node, ids) for id_, node in nodes)


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Read a kernel list, ``0-3,8``.

    Raises:
        ValueError: it is not one, or names a CPU beyond 8191.
    """
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 16:
            raise ValueError(f"{part!r} is not a range of CPUs")
        low, high = int(first), int(last if dash else first)
        if not low <= high < MAX_CPUS:
            raise ValueError(f"{part!r} is not a range of CPUs below {MAX_CPUS}")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def _node(id_: int, folder: Folder, ids: list[int]) -> NumaNode:
    memory = _memory(folder)
    return NumaNode(
        id=id_,
        cpus=_cpus(folder),
        memory_total=memory.get("MemTotal"),
        memory_free=memory.get("MemFree"),
        distances=_distances(folder, ids),
        hugepages=tuple(_hugepages(folder / "hugepages")),
    )


def _cpus(folder: Folder) -> tuple[int, ...]:
    try:
        return parse_cpulist(folder.text("cpulist") or "")
    except ValueError as error:
        raise Unreadable(f"{folder.path}/cpulist: {error}") from error


def _distances(folder: Folder, ids: list[int]) -> dict[int, int]:
    """The kernel prints one number for each node that is on line, in order."""
    text = folder.text("distance")
    if text is None:
        return {}
    numbers = text.split()
    if len(numbers) != len(ids) or not all(n.isascii() and n.isdigit() and len(n) < 6 for n in numbers):
        raise Unreadable(f"{folder.path}/distance: {text[:80]!r} makes no sense: expected {len(ids)} distances")
    return dict(zip(ids, map(int, numbers), strict=True))


def _memory(folder: Folder) -> dict[str, int]:
    """``Node 0 MemTotal:  65842900 kB``, in bytes."""
    found = {}
    for line in folder.lines("meminfo"):
        words = line.split()
        if len(words) == 5 and words[0] == "Node" and words[4] == "kB":
            if not words[3].isdecimal() or len(words[3]) > 18:
                raise Unreadable(f"{folder.path}/meminfo: {line[:80]!r} makes no sense")
            found[words[2].rstrip(":")] = int(words[3]) * 1024
    return found


def _hugepages(folder: Folder) -> list[HugePages]:
    found = []
    for name in folder.names():
        size = name.removeprefix("hugepages-").removesuffix("kB")
        total, free = (folder / name).number("nr_hugepages"), (folder / name).number("free_hugepages")
        if size.isdecimal() and len(size) < 10 and total is not None and free is not None:
            found.append(HugePages(int(size), total, free))
    return sorted(found, key=lambda pages: pages.size_kib)
