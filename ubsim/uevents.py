"""Kobject uevents of a simulated node: every subscriber gets every notice, as one datagram in the kernel's form.

The kernel announces that devices came, went or moved between namespaces. It is silent about the state of a URMA port
and about lost EIDs: these are asynchronous events of the device (URMA_EVENT_PORT_DOWN, EID_CHANGE), for whoever has it
open. Their stand-in is a ``change`` notice with the event in the property ``UB_EVENT``.

Source: Linux lib/kobject_uevent.c; reference/ub.md sections 3 (rule 6) and 9.
"""

import contextlib
import socket
import threading

from ubhost.model import PortState, UbHost
from ubsim.ubcore import Ubcore

UBCORE = "/devices/virtual/ubcore"


class Subscribers:
    """Those who listen. One that does not read is dropped: it will look at everything when it comes back."""

    def __init__(self) -> None:
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._sequence = 0

    def add(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with self._lock:
            self._connections.append(connection)

    def tell(self, action: str, path: str, subsystem: str, **properties: object) -> None:
        with self._lock:
            self._sequence += 1
            values = {"ACTION": action, "DEVPATH": path, "SUBSYSTEM": subsystem, **properties, "SEQNUM": self._sequence}
            lines = [f"{action}@{path}", *(f"{key}={value}" for key, value in values.items())]
            datagram = "".join(f"{line}\0" for line in lines).encode()
            self._connections = [one for one in self._connections if _is_sent(one, datagram)]

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections = []

    def follow(self, before: Ubcore, after: Ubcore) -> None:
        """Tell what changed between two states of the driver."""
        for name in sorted(before.devices.keys() | after.devices.keys()):
            old, new = before.devices.get(name), after.devices.get(name)
            path = f"{UBCORE}/{name}"
            if old is None:
                self.tell("add", path, "ubcore")
            elif new is None:
                self.tell("remove", path, "ubcore")
            elif old.home != new.home:
                self.tell("remove", path, "ubcore")
                self.tell("add", path, "ubcore")
            elif [slot.eid for slot in old.slots] != [slot.eid for slot in new.slots]:
                self.tell("change", path, "ubcore", UB_EVENT="EID_CHANGE")


def announce(subscribers: Subscribers, before: UbHost, after: UbHost) -> None:
    """Tell of entities, memory and ports; of devices the driver tells itself."""
    for path, subsystem, old, new in (
        ("/devices/ub/{}", "ub", {e.number for e in before.entities}, {e.number for e in after.entities}),
        ("/devices/system/node/node{}", "node", {n.id for n in before.numa}, {n.id for n in after.numa}),
        (
            "/devices/obmm/obmm_shmdev{}",
            "obmm",
            {m.id for m in before.shared_memory},
            {m.id for m in after.shared_memory},
        ),
    ):
        for gone in sorted(old - new):
            subscribers.tell("remove", path.format(gone), subsystem)
        for come in sorted(new - old):
            subscribers.tell("add", path.format(come), subsystem)
    ports = {entity.number: entity.ports for entity in before.entities}
    for entity in after.entities:
        if entity.number in ports and entity.ports != ports[entity.number]:
            subscribers.tell("change", f"/devices/ub/{entity.number}", "ub", UB_EVENT="PORT_CHANGE")
    known = {device.name: device.ports for device in before.devices}
    for device in after.devices:
        if device.name in known and device.ports != known[device.name]:
            event = "PORT_ACTIVE" if device.ports[0].state is PortState.ACTIVE else "PORT_DOWN"
            subscribers.tell("change", f"/devices/virtual/ubcore/{device.name}", "ubcore", UB_EVENT=event)


def _is_sent(connection: socket.socket, datagram: bytes) -> bool:
    try:
        connection.send(datagram)
    except OSError:
        with contextlib.suppress(OSError):
            connection.close()
        return False
    return True
