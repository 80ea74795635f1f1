"""What has to be read about a container before it is created: on a thread of its own, and not for long.

A handler must answer from memory, but where a container's devices sit, and what its pod was given, is written down
elsewhere, just before. So a worker reads it while the handler waits for a quarter of the runtime's patience at most; a
read that hangs is given up on, and nothing more is asked until it comes back. Records are written before the runtime
hears of the container, so no record is late. What can be late is the disk, and that is a doubt: ``failure`` in the
configuration says what becomes of it.

Source: reference/nri.md sections 4.3 (3) and 5 (A13); design sections 5 and 8.
"""

import queue
import threading
from dataclasses import dataclass
from pathlib import Path

from nri_qos import grants
from nri_qos.grants import NOTHING, Grants
from nri_qos.model import Container, Pod
from ubhost.errors import Busy, HostFault, UbError
from ubhost.roots import Roots

FOLDERS = {"b": "block", "c": "char"}


@dataclass(frozen=True, slots=True)
class Found:
    """``doubt`` is why not all is known."""

    device_nodes: frozenset[int] = frozenset()  # NUMA nodes of its devices
    grants: Grants = NOTHING
    doubt: UbError | None = None


class Lookup:
    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._asked: queue.Queue[tuple[Pod, Container, queue.Queue[Found]]] = queue.Queue()
        self._is_busy = threading.Event()
        threading.Thread(target=self._run, name="lookup", daemon=True).start()

    def find(self, pod: Pod, container: Container, patience_s: float) -> Found:
        """Return what is known of ``container``; nothing, and a doubt, if that takes too long or cannot be read."""
        late = Found(doubt=Busy(f"what was written down for it could not be read within {patience_s:g} s"))
        if self._is_busy.is_set():
            return late
        answer: queue.Queue[Found] = queue.Queue(1)
        self._is_busy.set()
        self._asked.put((pod, container, answer))
        try:
            return answer.get(timeout=patience_s)
        except queue.Empty:
            return late

    def _run(self) -> None:
        while True:
            pod, container, answer = self._asked.get()
            try:
                found = self._read(pod, container)
            except UbError as error:
                found = Found(doubt=error)
            except Exception as error:  # whatever a record makes of it: nobody would be answered any more
                found = Found(doubt=HostFault(f"what was written down for it cannot be read: {error}"))
            self._is_busy.clear()
            answer.put(found)

    def _read(self, pod: Pod, container: Container) -> Found:
        given = grants.read(self._roots, pod, container)
        devices = {*container.devices, *(("c", device.major, device.minor) for device in given.devices)}
        nodes = {device_node(self._roots.sys, *device) for device in devices}
        return Found(frozenset(node for node in nodes if node is not None), given)


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
