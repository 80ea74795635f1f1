"""What has to be read about a container before it is created: on a thread of its own, and not for long.

A handler must answer from memory, but where a container's devices sit, and which sockets and segments the network
plugin prepared for its pod, is written down elsewhere. So a worker reads it while the handler waits a tenth of a
second at most; a read that hangs is given up on, and nothing more is asked until it comes back.

Source: reference/nri.md sections 4.3 (3) and 5 (A13); design sections 5 and 8.
"""

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nri_qos.model import Container
from ubhost.errors import UbError
from ubhost.roots import Roots
from ubhost.zerocopy import injection

PATIENCE_S = 0.1
FOLDERS = {"b": "block", "c": "char"}

Mount = tuple[str, str, tuple[str, ...]]  # source, destination, options


@dataclass(frozen=True, slots=True)
class Found:
    device_nodes: frozenset[int] = frozenset()  # NUMA nodes of its devices
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Lookup:
    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._asked: queue.Queue[tuple[Container, queue.Queue[Found]]] = queue.Queue()
        self._is_busy = threading.Event()
        threading.Thread(target=self._run, name="lookup", daemon=True).start()

    def find(self, container: Container) -> Found:
        """Return what is known of ``container``; nothing if that takes too long or cannot be read."""
        if self._is_busy.is_set():
            return Found()
        answer: queue.Queue[Found] = queue.Queue(1)
        self._is_busy.set()
        self._asked.put((container, answer))
        try:
            return answer.get(timeout=PATIENCE_S)
        except queue.Empty:
            return Found()

    def _run(self) -> None:
        while True:
            container, answer = self._asked.get()
            try:
                found = self._read(container)
            except (OSError, ValueError, UbError):
                found = Found()
            self._is_busy.clear()
            answer.put(found)

    def _read(self, container: Container) -> Found:
        given = injection(self._roots, container.pod_id)
        env = {name: value for name, value in given.env.items() if name not in container.env}
        nodes = {device_node(self._roots.sys, *device) for device in container.devices}
        return Found(frozenset(node for node in nodes if node is not None), given.mounts, env)


def device_node(sys: Path, kind: str, major: int, minor: int) -> int | None:
    """Return the NUMA node of a device file, ``None`` if it is near none.

    The device or one of those it sits on says so: PCI devices in ``numa_node``, UB entities in ``numa``; -1 is none.
    """
    folder = FOLDERS.get(kind)
    if folder is None:
        return None
    root = sys.resolve()
    device = (sys / "dev" / folder / f"{major}:{minor}").resolve()
    while device != root and root in device.parents:
        for name in ("numa_node", "numa"):
            number = _number(device / name)
            if number is not None and 0 <= number < 1024:
                return number
        device = device.parent
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip(), 0)
    except (OSError, ValueError):
        return None
