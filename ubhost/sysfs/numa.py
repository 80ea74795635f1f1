"""NUMA nodes, those without CPUs included: ``/sys/devices/system/node``.

Source: Linux Documentation/admin-guide/mm/numaperf.rst, Documentation/ABI/stable/sysfs-devices-node.
"""

from collections.abc import Mapping

from ubhost.model import HugePages, NumaNode
from ubhost.sysfs.attributes import Folder, Unreadable

MAX_NODES = 1024
MAX_CPUS = 8192


def read_numa(folder: Folder, *, with_hugepages: bool = True, cache_is_free: bool = False) -> tuple[NumaNode, ...]:
    """Return every node that is on line, by id.

    Args:
        folder: of the nodes.
        with_hugepages: read their huge pages, too.
        cache_is_free: ``memory_free`` counts what the kernel would drop for a new container.

    Raises:
        Unreadable: an attribute makes no sense.
    """
    nodes = dict(folder.numbered("node", MAX_NODES))
    online = _list(folder, "online")
    orders = (list(nodes), list(nodes) if online is None else list(online))  # a node comes or goes while we look
    made = []
    for id_, node in nodes.items():
        if online is not None and id_ not in online:
            continue
        memory = _memory(node)
        made.append(
            NumaNode(
                id=id_,
                cpus=_list(node, "cpulist") or (),
                memory_total=memory.get("MemTotal"),
                memory_free=_free(memory, cache_is_free=cache_is_free),
                distances=_distances(node, orders),
                hugepages=tuple(_hugepages(node / "hugepages")) if with_hugepages else (),
            )
        )
    return tuple(made)


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


def _list(folder: Folder, name: str) -> tuple[int, ...] | None:
    text = folder.text(name)
    try:
        return None if text is None else parse_cpulist(text)
    except ValueError as error:
        raise Unreadable(f"{folder.path}/{name}: {error}") from error


def _distances(folder: Folder, orders: tuple[list[int], list[int]]) -> dict[int, int]:
    """The kernel prints one number for each node that is on line, in order."""
    text = folder.text("distance")
    if text is None:
        return {}
    numbers = text.split()
    ids = next((order for order in orders if len(order) == len(numbers)), None)
    if ids is None or not all(n.isascii() and n.isdigit() and len(n) < 6 for n in numbers):
        raise Unreadable(f"{folder.path}/distance: {text[:80]!r} makes no sense: expected {len(orders[0])} distances")
    return dict(zip(ids, map(int, numbers), strict=True))


def _free(memory: Mapping[str, int], *, cache_is_free: bool) -> int | None:
    if "MemFree" not in memory or not cache_is_free:
        return memory.get("MemFree")
    return sum(memory.get(key, 0) for key in ("MemFree", "Inactive(file)", "SReclaimable"))


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
