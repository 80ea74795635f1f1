"""Shared memory of a simulated super-node, served by the daemon of the node that exports it.

A cacheable region has a copy for each node (what its CPUs have cached: ``<root>/dev/obmm_shmdev<id>``) and one in
memory (``<owner root>/run/ubsim/memory/<name>``). Bytes go between them only when ownership changes, so that a reader
that did not take ownership again sees the old ones. A region that is not cacheable is one file for all nodes.

One connection is one open file of one process; it says ``open`` first. The end of the connection closes the file.
"""

import errno
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ubhost.errors import HostFault
from ubsim import record
from ubsim.ownership import PAGE, Access, Effect, SharedRegion
from ubsim.scenario import Region, SuperNode
from ubsim.ubcore import Refused


class RegionService:
    """The regions that node ``owner`` exports. Safe for threads."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self._regions: dict[str, tuple[Region, SharedRegion]] = {}
        self._keys = itertools.count(1)
        self._lock = threading.Lock()

    def refuse_busy(self, super_node: SuperNode) -> None:
        """Raise if ``super_node`` takes a region away that is still open.

        Raises:
            Refused: EBUSY; the node is named.
        """
        wanted = self._exported(super_node)
        with self._lock:
            for name, (region, state) in self._regions.items():
                kept = {node for node, _ in wanted[name].users()} if name in wanted else set()
                for node, _ in region.users():
                    if node not in kept:
                        state.refuse_release(node)

    def follow(self, super_node: SuperNode) -> None:
        """Serve what ``super_node`` says that the owner exports by name."""
        wanted = self._exported(super_node)
        with self._lock:
            for name in self._regions.keys() - wanted.keys():
                self._memory(name).unlink(missing_ok=True)
            self._regions = {
                name: (region, self._follow(*self._regions[name], region) if known else self._export(region))
                for name, region in wanted.items()
                for known in (name in self._regions,)
            }

    def _exported(self, super_node: SuperNode) -> dict[str, Region]:
        return {r.name: r for r in super_node.regions if r.owner == self._owner and r.numa is None}

    def serve(self, connection: socket.socket) -> None:
        """Obey the requests of one open file."""
        key: int | None = None
        name = ""
        try:
            with connection.makefile("rwb") as stream:
                for line in stream:
                    try:
                        request: dict[str, Any] = json.loads(line)
                        if key is None:
                            name = str(request.get("region"))
                            key = self._open(name, str(request.get("node")), cached=bool(request.get("cached")))
                        else:
                            self._set_access(name, key, request)
                        answer: dict[str, Any] = {"errno": 0}
                    except Refused as refusal:
                        answer = {"errno": refusal.errno, "reason": refusal.strerror}
                    except (ValueError, KeyError, TypeError) as error:
                        answer = {"errno": errno.EINVAL, "reason": str(error)}
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()
        finally:
            if key is not None:
                self._close(name, key)

    def _open(self, name: str, node: str, *, cached: bool) -> int:
        with self._lock:
            region, state = self._get(name)
            if cached is not region.is_cacheable:
                raise Refused(errno.EPERM, f"region {name} is {'' if region.is_cacheable else 'not '}cacheable")
            key = next(self._keys)
            self._regions[name] = (region, state.open(key, node, cached=cached))
            return key

    def _set_access(self, name: str, key: int, request: dict[str, Any]) -> None:
        with self._lock:
            region, state = self._get(name)
            access = Access[str(request["access"])]
            state, effects = state.set_access(key, int(request["start"]), int(request["end"]), access)
            self._carry_out(region, effects)
            self._regions[name] = (region, state)

    def _close(self, name: str, key: int) -> None:
        with self._lock:
            region, state = self._get(name)
            state, effects = state.close(key)
            self._carry_out(region, effects)
            self._regions[name] = (region, state)

    def _follow(self, before: Region, state: SharedRegion, region: Region) -> SharedRegion:
        """Let nodes come to a region and leave it, while others have it open."""
        if not region.is_cacheable:
            for node, memid in set(region.users()) - set(before.users()):
                _share_file(self._memory(region.name), device_of(self._folder, node, memid))
        return replace(state, members=frozenset(node for node, _ in region.users()))

    def _get(self, name: str) -> tuple[Region, SharedRegion]:
        if name not in self._regions:
            raise Refused(errno.ENOENT, f"{self._owner} exports no region {name!r}")
        return self._regions[name]

    def _export(self, region: Region) -> SharedRegion:
        """Fresh memory is zero. What is not cacheable gets one file for all nodes."""
        memory = self._memory(region.name)
        memory.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(memory, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, region.size)
        finally:
            os.close(descriptor)
        if not region.is_cacheable:
            for node, memid in region.users():
                _share_file(memory, device_of(self._folder, node, memid))
        return SharedRegion(region.size, frozenset(node for node, _ in region.users()))

    def _memory(self, name: str) -> Path:
        return memory_of(self._folder, self._owner, name)

    def _carry_out(self, region: Region, effects: Iterable[Effect]) -> None:
        ids = dict(region.users())
        for effect in effects:
            cache = device_of(self._folder, effect.node, ids[effect.node])
            memory = self._memory(region.name)
            source, target = (cache, memory) if effect.is_write_back else (memory, cache)
            _copy_page(source, target, effect.page)


def device_of(folder: Path, node: str, memid: int) -> Path:
    return record.root_of(folder, node) / "dev" / f"obmm_shmdev{memid}"


def listing(folder: Path, super_node: SuperNode, node: str) -> dict[int, dict[str, object]]:
    """Return what can be mapped on ``node``, by memid, and whom to ask: see ``ubsim.shared_memory``."""
    return {
        memid: {
            "name": region.name,
            "node": user,
            "size": region.size,
            "device": str(device_of(folder, user, memid)),
            "socket": str(record.root_of(folder, region.owner) / "run" / "ubsim" / "obmm.sock"),
        }
        for region in super_node.regions
        for user, memid in region.users()
        if user == node and region.numa is None
    }


def memory_of(folder: Path, owner: str, name: str) -> Path:
    return record.root_of(folder, owner) / "run" / "ubsim" / "memory" / name


def _share_file(memory: Path, device: Path) -> None:
    """Give ``memory`` another name, in the place of what is there."""
    device.parent.mkdir(parents=True, exist_ok=True)
    draft = device.with_name(f".{device.name}")
    draft.unlink(missing_ok=True)
    draft.hardlink_to(memory)
    draft.rename(device)


def _copy_page(source: Path, target: Path, page: int) -> None:
    try:
        with source.open("rb", buffering=0) as read, target.open("r+b", buffering=0) as write:
            os.pwrite(write.fileno(), os.pread(read.fileno(), PAGE, page * PAGE), page * PAGE)
    except OSError as error:
        raise HostFault(f"cannot copy page {page} of {source} to {target}: {error.strerror or error}") from error
