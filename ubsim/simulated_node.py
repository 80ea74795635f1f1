"""One simulated node inside a daemon: its tree, its driver, its UBSE, its netdevs, its doors.

State survives nothing: this is the kernel. Files below ``<root>/run/ubsim`` belong to it alone. What happens to the
super-node while it runs is a new ``SuperNode`` value (``ubsim.changes``), which ``become`` makes the node follow.
"""

import contextlib
import errno
import grp
import json
import os
import selectors
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.kernel.netns import living, own_inode
from ubhost.kernel.rtnl import Refused
from ubhost.model import Eid, UbHost, UrmaDevice
from ubhost.provider import Sharing
from ubhost.roots import Roots
from ubhost.ubse import shm
from ubhost.ubse.wire import Module
from ubsim import consistency, contexts, sockets, sysfs, tree
from ubsim.cables import LinkEvents, Obituaries
from ubsim.caller import Caller
from ubsim.changes import Change
from ubsim.control import Control, broadcast
from ubsim.faults import Faults
from ubsim.hosts import host_of, is_usable, peers_of, rate_limit
from ubsim.kernel import Kernel, Log
from ubsim.netdevs import Fabric, Home, Netdev, netdev_of
from ubsim.region_service import RegionService, listing
from ubsim.scenario import Node, SuperNode
from ubsim.shared_memory import DIRECTORY
from ubsim.ubcore import Refused as DriverRefused
from ubsim.ubcore import Ubcore
from ubsim.ubse_memory import Desk
from ubsim.ubse_service import Service
from ubsim.ubse_shm import SharedDesk
from ubsim.uevents import Subscribers, announce
from ubsim.views import Views


class SimulatedNode:
    """``netns`` is the descriptor of the node's own namespace, ``None`` if it lives in ours."""

    def __init__(
        self,
        super_node: SuperNode,
        name: str,
        roots: Roots,
        netdevs: tuple[Netdev, ...],
        netns: int | None,
        fabric: Fabric,
        doors: selectors.BaseSelector,
        links: selectors.BaseSelector,
    ) -> None:
        self.name = name
        self.super_node = super_node
        self._roots = roots
        self._netdevs = {netdev.bonding: netdev for netdev in netdevs if netdev.node == name}
        self._bridge = next(iter(self._netdevs.values())).bridge  # of the host's own device, which never goes
        self._netns = netns
        self._fabric = fabric
        self._selector = doors
        self._links = links
        self._doors: dict[Path, socket.socket] = {}
        self._lock = threading.Lock()
        self._rates: dict[Netdev, int] = {}  # what is set now
        self.faults, self.log, self.uevents = Faults(), Log(), Subscribers()
        self._host = self._host_of(super_node)
        tree.write(roots.root, sysfs.entries(self._host))
        init = own_inode() if netns is None else os.fstat(netns).st_ino
        self.kernel = Kernel(
            _boot(super_node, self._host, init),
            Views(roots.root),
            Obituaries(netns),
            self._planned_eid,
            faults=self.faults,
            log=self.log,
            outside=living() | {init},
        )
        self.kernel.on_change = self.uevents.follow
        desks = {
            Module.MEM: Desk(name, roots.dev, lambda: self.super_node, self._let_happen).handlers,
            shm.MODULE: SharedDesk(name, lambda: self.super_node, self._let_happen).handlers,
        }
        self.ubse = Service(super_node, self.node, desks, faults=self.faults, log=self.log)
        self.regions = RegionService(roots.root.parent, name)
        self.regions.follow(super_node)
        self._home_events = None if netns is None else LinkEvents(netns)
        self._home = Home(netns, name)

    @property
    def node(self) -> Node:
        return self.super_node.node(self.name)

    def open(self) -> None:
        """Open the doors; from now on the selectors' data are the functions to call."""
        run = self._roots.simulator
        run.mkdir(parents=True, exist_ok=True)
        run.chmod(0o700)
        control = Control(self)
        self._door(run / "kernel.sock", socket.SOCK_SEQPACKET, 0o600, self._serve_kernel)
        self._door(run / "control.sock", socket.SOCK_STREAM, 0o600, lambda c: sockets.serve_lines(c, control.answer))
        self._door(run / "obmm.sock", socket.SOCK_STREAM, 0o600, self._serve_regions)
        self._door(run / "uburma.sock", socket.SOCK_SEQPACKET, 0o666, self._serve_contexts)
        self._door(run / "uevents.sock", socket.SOCK_SEQPACKET, 0o600, self.uevents.add, keeps=True)
        self._list_regions()
        self.open_ubse()
        self._selector.register(self.kernel.obituaries, selectors.EVENT_READ, self.kernel.bury)
        if self._home_events is not None:
            events = self._home_events
            self._links.register(events, selectors.EVENT_READ, lambda: self._settle(events.names()))
        for netdev in self._netdevs.values():
            self._home.settle(netdev)
        self._set_cables()

    def open_ubse(self) -> None:
        path, ration = self._roots.ubse_socket, sockets.Ration()
        if path in self._doors:
            return
        self._door(path, socket.SOCK_STREAM, 0o660, lambda c: sockets.serve_ubse(c, ration, self.ubse.call))
        with contextlib.suppress(KeyError, PermissionError):
            os.chown(path, -1, grp.getgrnam("ubse").gr_gid)

    def close_ubse(self) -> None:
        """UBSE goes away: its socket stays behind, with nobody listening."""
        door = self._doors.pop(self._roots.ubse_socket, None)
        if door is not None:
            self._selector.unregister(door)
            door.close()

    def close(self) -> None:
        self.uevents.close()
        for path, door in self._doors.items():
            door.close()
            path.unlink(missing_ok=True)

    def become(self, change: Change, *, dry: bool = False) -> None:
        """Let something happen to the super-node, and follow with everything that this node shows of it.

        ``dry`` only asks whether it could happen.

        Raises:
            InvalidRequest: it cannot happen.
            DriverRefused: EBUSY, shared memory that would go is still open.
            HostFault: the machine refused.
        """
        with self._lock:
            after = change(self.super_node)
            consistency.refuse_impossible(after, where=after.name)
            self.regions.refuse_busy(after)
            if dry:
                return
            self.regions.follow(after)
            old = {device.bonding: device for device in self.node.devices}
            new = {device.bonding: device for device in after.node(self.name).devices}
            gone, come = [old[b] for b in old.keys() - new.keys()], [new[b] for b in new.keys() - old.keys()]
            for device in gone:
                self._forget(device.bonding, *device.members)
            numbers = count()
            for device in come:
                taken = self._fabric.taken()
                number = next(n for n in numbers if not {f"ipourma{n}", f"ubp{n}"} & taken)
                self._netdevs[device.bonding] = netdev_of(after.node(self.name), device, number, self._bridge)
                self._fabric.lay(self._netdevs[device.bonding], self._netns)
            self.super_node = after
            before, self._host = self._host, self._host_of(after)
            tree.follow(self._roots.root, sysfs.entries(before), sysfs.entries(self._host))
            for value in self._host.devices:
                if value.name not in self.kernel.state.devices:
                    self._plug(value)
            self.ubse.follow(after)
            self._list_regions()
            self._set_cables()
            announce(self.uevents, before, self._host)

    def _let_happen(self, order: Mapping[str, object]) -> None:
        """Tell every node of the super-node, ourselves among them. Not to be called with our lock held."""
        broadcast(self._roots.root.parent, [node.name for node in self.super_node.nodes], order)

    def lose_eid(self, device: str, index: int, *, lost: bool) -> None:
        """The fabric takes one EID back, wherever it is, or gives it to the host again.

        Raises:
            Refused: there is no such device or slot.
        """
        if lost:
            self.kernel.change(lambda state: state.lose_eid(device, index))
            return
        eid = self._planned_eid(device, index)
        self.kernel.change(lambda state: state.add_eid(device, index, eid, state.devices[device].home))

    def _planned_eid(self, device: str, index: int) -> Eid:
        """Return the EID that the fabric has for a slot; it assigns them all, nobody chooses one."""
        eids = next((value.eids for value in self._host.devices if value.name == device), ())
        if not 0 <= index < len(eids):
            raise DriverRefused(errno.EINVAL, f"the fabric has no EID for slot {index} of {device}")
        return eids[index]

    def _plug(self, value: UrmaDevice) -> None:
        self.kernel.change(lambda state: state.plug(value.name, value.eids, max_eids=max(len(value.eids), 1)))

    def _forget(self, bonding: str, *members: str) -> None:
        for name in (bonding, *members):
            self.kernel.change(lambda state, name=name: state.unplug(name))  # type: ignore[misc]
            shutil.rmtree(self._roots.root / sysfs.VIRTUAL / name, ignore_errors=True)
        self._fabric.cut(self._netdevs.pop(bonding))

    def _host_of(self, super_node: SuperNode) -> UbHost:
        names = {(self.name, bonding): netdev.name for bonding, netdev in self._netdevs.items()}
        return host_of(super_node, self.name, names)

    def _door(
        self,
        path: Path,
        kind: socket.SocketKind,
        mode: int,
        serve: Callable[[socket.socket], None],
        *,
        keeps: bool = False,
    ) -> None:
        door = sockets.listen(path, kind, mode)
        self._doors[path] = door
        take = sockets.keep if keeps else sockets.accept
        self._selector.register(door, selectors.EVENT_READ, lambda: take(door, serve, f"{self.name} {path.name}"))

    def _serve_kernel(self, connection: socket.socket) -> None:
        sockets.serve_kernel(connection, self.kernel.answer)

    def _serve_contexts(self, connection: socket.socket) -> None:
        contexts.serve(connection, lambda: self.kernel.state)

    def _serve_regions(self, connection: socket.socket) -> None:
        if Caller.of(connection).is_root:
            self.regions.serve(connection)

    def _list_regions(self) -> None:
        """Tell ``ubsim.shared_memory`` what can be mapped, and whom to ask."""
        found = listing(self._roots.root.parent, self.super_node, self.name)
        path = self._roots.root / DIRECTORY
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(found))
        draft.rename(path)

    def links_changed(self, names: frozenset[str]) -> None:
        """Links with these names came, changed or went in the namespace of the bridge, which may be our home, too."""
        if any(netdev.peer in names for netdev in tuple(self._netdevs.values())):
            self._repair(names)
        if self._home_events is None:
            self._settle(names)

    def _repair(self, changed: frozenset[str]) -> None:
        """Lay again the cables that died with a pod's namespace."""
        with self._lock:
            for netdev in self._netdevs.values():
                if netdev.peer not in changed or self._fabric.is_laid(netdev):
                    continue
                try:
                    self._fabric.lay(netdev, self._netns)
                except (Refused, HostFault) as error:
                    self.log.add("netdev", netdev.bonding, str(error), "error")
                    continue
                self._rates.pop(netdev, None)
                self.log.add("netdev", netdev.bonding, f"{netdev.name} came home")
                self._home.settle(netdev)
            self._set_cables()

    def _settle(self, changed: frozenset[str]) -> None:
        with self._lock:
            for netdev in self._netdevs.values():
                if netdev.name in changed:
                    self._home.settle(netdev)

    def _set_cables(self) -> None:
        """A device that reaches nothing has a netdev without carrier; labelled links let so much through."""
        peers = peers_of(self.super_node, self.name)
        is_labelled = any(link.bandwidth_mbps for link in self.super_node.links)
        for device in self.node.devices:
            netdev = self._netdevs[device.bonding]
            self._fabric.set_carrier(netdev, on=is_usable(self.node, device, peers))
            rate = rate_limit(self.super_node, self.node, device) if is_labelled else 0
            if rate != self._rates.get(netdev, 0):
                self._fabric.set_rate(netdev, rate)
                self._rates[netdev] = rate


def _boot(super_node: SuperNode, host: UbHost, init: int) -> Ubcore:
    ubcore = Ubcore(init, is_shared=super_node.sharing is Sharing.SHARED, is_eid_shared=super_node.eid_sharing)
    for device in host.devices:
        ubcore = ubcore.plug(device.name, device.eids, max_eids=max(len(device.eids), 1))
    return ubcore
