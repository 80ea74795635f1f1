"""Which CPUs and nodes belong to which container, on disk: what the runtime cannot tell after a restart of ours.

The runtime knows what runs. It does not know that a container which is just being restarted had CPUs of its own. Lives
where the containers do, and is gone after a reboot. A file that cannot be read is told and done without.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nri_qos import cpulist
from nri_qos.model import Placement
from nri_qos.pools import Key
from ubhost import statefile
from ubhost.errors import HostFault, InvalidRequest

VERSION = 1
_log = logging.getLogger(__name__)


class Saved(msgspec.Struct, forbid_unknown_fields=True):
    """One reservation as it is written."""

    pod: str
    container: str
    exclusive: str
    nodes: str | None
    memory: int
    cpus: int
    shared: bool = False


def load(path: Path) -> dict[Key, Placement]:
    """Return what an earlier run saved; nothing if there is nothing that can be used."""
    try:
        content = statefile.read(path, VERSION) or {"reservations": []}
        saved = msgspec.convert(content.get("reservations"), list[Saved])
        return {(each.pod, each.container): _placement(each) for each in saved}
    except (HostFault, InvalidRequest, msgspec.ValidationError) as error:
        _log.error("reservations of an earlier run are lost", extra={"path": str(path), "error": str(error)})
        return {}


def save(path: Path, placements: Mapping[Key, Placement]) -> None:
    """Write ``placements``; a failure is told, and the next change tries again."""
    saved = [
        Saved(
            pod,
            container,
            cpulist.render(place.exclusive),
            None if place.nodes is None else cpulist.render(place.nodes),
            place.memory,
            place.cpus,
            place.is_shared,
        )
        for (pod, container), place in sorted(placements.items())
    ]
    try:
        statefile.write(path, VERSION, {"reservations": msgspec.to_builtins(saved)})
    except HostFault as error:
        _log.error("reservations cannot be saved", extra={"error": str(error)})


def _placement(saved: Saved) -> Placement:
    nodes = None if saved.nodes is None else cpulist.parse(saved.nodes)
    return Placement(cpulist.parse(saved.exclusive), nodes, saved.memory, saved.cpus, saved.shared)
