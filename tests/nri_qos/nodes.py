"""Machines to decide about, and the trees below a root that say the same."""

import os
from pathlib import Path

from nri_qos import cpulist
from nri_qos.model import Machine
from ubhost.model import NumaNode

GIB = 1 << 30


def machine(
    *nodes: str, threads: int = 1, remote: int = 0, memory: int = 16 * GIB, isolated: str = "", near: int = 21
) -> Machine:
    """Return a machine with one NUMA node for each CPU list of ``nodes``, and ``remote`` borrowed nodes behind them.

    ``threads`` hardware threads with successive numbers make a core; a node is one last-level cache.
    """
    cpus = [cpulist.parse(text) for text in nodes] + [frozenset[int]()] * remote

    def distance(a: int, b: int) -> int:
        return 10 if a == b else 80 if max(a, b) >= len(nodes) else near

    numa = tuple(
        NumaNode(n, tuple(sorted(own)), memory, memory, {m: distance(n, m) for m in range(len(cpus))})
        for n, own in enumerate(cpus)
    )
    online = frozenset[int]().union(*cpus)
    siblings = {}
    for own in cpus:
        ordered = sorted(own)
        for at in range(0, len(ordered), threads):
            siblings.update(dict.fromkeys(ordered[at : at + threads], frozenset(ordered[at : at + threads])))
    caches = {cpu: min(own) for own in cpus for cpu in own}
    return Machine(online, numa, siblings, caches, cpulist.parse(isolated))


def write(machine: Machine, root: Path) -> None:
    """Write the sysfs files from which ``read_machine`` makes ``machine``, and an empty cgroup v2 tree."""
    system = root / "sys/devices/system"
    _write(system / "cpu/online", cpulist.render(machine.online))
    _write(system / "cpu/isolated", cpulist.render(machine.isolated))
    for cpu in machine.online:
        folder = system / f"cpu/cpu{cpu}"
        _write(folder / "topology/thread_siblings_list", cpulist.render(machine.core(cpu)))
        shared = [other for other in machine.online if machine.caches.get(other) == machine.caches.get(cpu)]
        for index, (level, cpus) in enumerate([(1, machine.core(cpu)), (1, machine.core(cpu)), (3, shared)]):
            _write(folder / f"cache/index{index}/level", str(level))
            _write(folder / f"cache/index{index}/shared_cpu_list", cpulist.render(cpus))
    _write(system / "node/online", cpulist.render(node.id for node in machine.nodes))
    for node in machine.nodes:
        folder = system / f"node/node{node.id}"
        _write(folder / "cpulist", cpulist.render(node.cpus))
        _write(folder / "distance", " ".join(str(node.distances[other.id]) for other in machine.nodes))
        sizes = {"MemTotal": node.memory_total, "MemFree": node.memory_free, "Inactive(file)": 0}
        lines = [f"Node {node.id} {key}: {size // 1024:>12} kB" for key, size in sizes.items() if size is not None]
        _write(folder / "meminfo", "\n".join(lines))
    _write(root / "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc")


def add_device(root: Path, where: str, numa: str, numbers: str) -> None:
    """Put a character device below a PCI device that says where it sits."""
    parent = root / "sys/devices" / where
    (parent / "misc/dev0").mkdir(parents=True)
    (parent / "numa_node").write_text(numa + "\n")
    (root / "sys/dev/char").mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/char" / numbers).symlink_to(f"../../devices/{where}/misc/dev0")


def hang(root: Path) -> Path:
    """Let sysfs hang where the CPUs are told: opening that to read waits for a writer. Return its path."""
    online = root / "sys/devices/system/cpu/online"
    online.unlink()
    os.mkfifo(online)
    return online


def put(path: Path, text: str) -> None:
    """Let a file of the kernel's say ``text``, at once: nobody ever reads half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text + "\n", encoding="ascii")
    temporary.replace(path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="ascii")
