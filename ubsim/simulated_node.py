"""One simulated node inside a daemon: its tree, its driver, its UBSE, its netdevs, its doors.

State survives nothing: this is the kernel. Files below ``<root>/run/ubsim`` belong to it alone.
"""

import contextlib
import grp
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.kernel.netns import living, own_inode
from ubhost.kernel.rtnl import Refused
from ubhost.model import UbHost
from ubhost.provider import Sharing
from ubhost.roots import Roots
from ubsim import sockets, sysfs, tree
from ubsim.cables import LinkEvents, Obituaries
from ubsim.control import Control
from ubsim.faults import Faults
from ubsim.kernel import Kernel, Log
from ubsim.netdevs import Fabric, Home, Netdev
from ubsim.scenario import Node, SuperNode
from ubsim.ubcore import Ubcore
from ubsim.ubse_service import Service
from ubsim.views import Views

Register = Callable[[object, Callable[[], None]], None]


class SimulatedNode:
    """``netns`` is the descriptor of the node's own namespace, ``None`` if it lives in ours."""

    def __init__(
        self,
        super_node: SuperNode,
        node: Node,
        host: UbHost,
        roots: Roots,
        netdevs: tuple[Netdev, ...],
        netns: int | None,
    ) -> None:
        self.name = node.name
        self._roots = roots
        self._netdevs = netdevs
        self._netns = netns
        self._doors: dict[Path, socket.socket] = {}
        self.faults, self.log = Faults(), Log()
        tree.write(roots.root, sysfs.entries(host))
        init = own_inode() if netns is None else os.fstat(netns).st_ino
        self.kernel = Kernel(
            _boot(super_node, host, init),
            Views(roots.root),
            Obituaries(netns),
            faults=self.faults,
            log=self.log,
            outside=living() | {init},
        )
        self.ubse = Service(super_node, node, faults=self.faults, log=self.log)
        self._fabric_events, self._home_events = LinkEvents(), LinkEvents(netns)
        self._home = Home(netns, node.name)

    def open(self, selector: selectors.BaseSelector, fabric: Fabric) -> None:
        """Open the doors; from now on the selector's data are the functions to call."""
        run = self._roots.simulator
        run.mkdir(parents=True, exist_ok=True)
        run.chmod(0o700)
        control = Control(self)
        self._door(selector, run / "kernel.sock", socket.SOCK_SEQPACKET, 0o600, self._serve_kernel)
        self._door(
            selector, run / "control.sock", socket.SOCK_STREAM, 0o600, lambda c: sockets.serve_lines(c, control.answer)
        )
        self.open_ubse(selector)
        selector.register(self.kernel.obituaries, selectors.EVENT_READ, self.kernel.bury)
        selector.register(self._fabric_events, selectors.EVENT_READ, lambda: self._repair(fabric))
        selector.register(self._home_events, selectors.EVENT_READ, self._settle)
        for netdev in self._netdevs:
            self._home.settle(netdev)

    def open_ubse(self, selector: selectors.BaseSelector) -> None:
        path, ration = self._roots.ubse_socket, sockets.Ration()
        self._door(selector, path, socket.SOCK_STREAM, 0o660, lambda c: sockets.serve_ubse(c, ration, self.ubse.call))
        with contextlib.suppress(KeyError, PermissionError):
            os.chown(path, -1, grp.getgrnam("ubse").gr_gid)

    def close_ubse(self, selector: selectors.BaseSelector) -> None:
        """UBSE goes away: its socket stays behind, with nobody listening."""
        door = self._doors.pop(self._roots.ubse_socket, None)
        if door is not None:
            selector.unregister(door)
            door.close()

    def close(self) -> None:
        for path, door in self._doors.items():
            door.close()
            path.unlink(missing_ok=True)

    def _door(
        self,
        selector: selectors.BaseSelector,
        path: Path,
        kind: socket.SocketKind,
        mode: int,
        serve: Callable[[socket.socket], None],
    ) -> None:
        door = sockets.listen(path, kind, mode)
        self._doors[path] = door
        selector.register(door, selectors.EVENT_READ, lambda: sockets.accept(door, serve, f"{self.name} {path.name}"))

    def _serve_kernel(self, connection: socket.socket) -> None:
        sockets.serve_kernel(
            connection, lambda request, netns, is_root: self.kernel.answer(request, netns, is_root=is_root)
        )

    def _repair(self, fabric: Fabric) -> None:
        """Lay again the cables that died with a pod's namespace."""
        changed = self._fabric_events.names()
        for netdev in self._netdevs:
            if netdev.peer not in changed or fabric.is_laid(netdev):
                continue
            try:
                fabric.lay(netdev, self._netns)
            except (Refused, HostFault) as error:
                self.log.add("netdev", netdev.bonding, str(error), "error")
                continue
            self.log.add("netdev", netdev.bonding, f"{netdev.name} came home")
            self._home.settle(netdev)

    def _settle(self) -> None:
        changed = self._home_events.names()
        for netdev in self._netdevs:
            if netdev.name in changed:
                self._home.settle(netdev)


def _boot(super_node: SuperNode, host: UbHost, init: int) -> Ubcore:
    ubcore = Ubcore(init, is_shared=super_node.sharing is Sharing.SHARED, is_eid_shared=super_node.eid_sharing)
    for device in host.devices:
        ubcore = ubcore.plug(device.name, device.eids, max_eids=max(len(device.eids), 1))
    return ubcore
