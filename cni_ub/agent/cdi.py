"""The CDI file: which device nodes a container gets with a UB device.

Kubelet passes the names that Allocate answers with to the runtime, and the runtime adds to the container what this
file says under them. A device is its bonding device, the two entities below that, and the token device of the UMMU,
without which no URMA program runs.

Numbers of device nodes are left to the runtime, which looks at the node when a container starts: numbers change at a
reboot, and a file that outlived one would hand out somebody else's device. Names change too, which is why the file
is made again at every start.

Source: container-device-interface SPEC.md 0.5.0; reference/ub.md 1.3 and 7 (the CDI RFC).
"""

import json
import logging
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from cni_ub.agent import watchedfolder
from ubhost.provider import Device
from ubhost.roots import Roots

VERSION = "0.5.0"  # hostPath and names that begin with a digit; every runtime that knows CDI reads it
KIND = "unifiedbus.com/urma"
FILE = "unifiedbus.com-urma.json"
PERMISSIONS = "rw"  # not "m": a container has no business making device nodes

log = logging.getLogger(__name__)


def name(device: str) -> str:
    """Return the fully qualified CDI name of a device."""
    return f"{KIND}={device}"


def specification(devices: Iterable[tuple[str, tuple[str, ...]]], dev: Path) -> dict[str, Any] | None:
    """Return the content of the file; ``None`` without devices, since CDI knows no empty list.

    Args:
        devices: name of each device and its device nodes, relative to ``dev``.
        dev: where the host has its device nodes; containers have them in ``/dev``.
    """
    entries = [
        {"name": device, "containerEdits": {"deviceNodes": [_node(node, dev) for node in nodes]}}
        for device, nodes in devices
        if nodes
    ]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": entries} if entries else None


def _node(node: str, dev: Path) -> dict[str, str]:
    inside, outside = f"/dev/{node}", str(dev / node)
    entry = {"path": inside, "type": "c", "permissions": PERMISSIONS}
    return entry if outside == inside else {**entry, "hostPath": outside}


def character_devices(device: Device, dev: Path) -> tuple[str, ...]:
    """Return the device nodes that the device really has, relative to ``dev``; folders are followed, links are not.

    A node that is missing would keep a container from starting with a message nobody understands.
    """
    found: list[str] = []
    for node in device.nodes:
        path = PurePosixPath(node)
        if not path.parts or path.is_absolute() or ".." in path.parts:
            log.warning("a device node lies outside /dev", extra={"device": device.id, "node": node})
            continue
        found += _below(dev / path, path)
    return tuple(dict.fromkeys(found))


def _below(path: Path, relative: PurePosixPath) -> Iterator[str]:
    try:
        mode = path.lstat().st_mode
        inside = sorted(path.iterdir()) if stat.S_ISDIR(mode) else []
    except OSError:
        return
    if stat.S_ISCHR(mode):
        yield str(relative)
    for entry in inside:
        try:
            if stat.S_ISCHR(entry.lstat().st_mode):
                yield str(relative / entry.name)
        except OSError:
            continue


class CdiFile:
    """The file of one host. ``update`` may be called as often as one likes."""

    def __init__(self, roots: Roots) -> None:
        self.path = roots.root / "var" / "run" / "cdi" / FILE
        self._dev = roots.dev

    def update(self, devices: Iterable[Device]) -> None:
        """Make the file say what the devices are now.

        Raises:
            HostFault: it cannot be written.
        """
        content = specification(((d.id, character_devices(d, self._dev)) for d in devices), self._dev)
        if content is None:
            watchedfolder.remove(self.path)
            return
        watchedfolder.make(self.path.parent)
        if watchedfolder.put(self.path, json.dumps(content, indent=1).encode() + b"\n"):
            log.info("CDI file written", extra={"path": str(self.path), "devices": len(content["devices"])})
