"""The shared-memory desk of the UBSE stand-in: one node exports, each node that attaches imports.

The order is enforced: create, attach, detach, delete; and what a node has open it cannot detach. Memory is exported by
the node that asks, if it can spare it, else by the one that can spare most.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ubhost.errors import UbError
from ubhost.ubse import memory, shm
from ubhost.ubse.shm import Shm, ShmOp
from ubhost.ubse.status import Status
from ubsim.changes import lendable
from ubsim.scenario import Region, SuperNode
from ubsim.ubse import Rejected

Change = Mapping[str, object]


class SharedDesk:
    """Shared memory, asked for on ``node``. ``world`` is the super-node as it is, ``happen`` changes it everywhere."""

    def __init__(self, node: str, world: Callable[[], SuperNode], happen: Callable[[dict[str, object]], None]) -> None:
        self._node = node
        self._world = world
        self._happen = happen
        self.handlers: Mapping[int, Callable[[bytes, int], bytes]] = {
            ShmOp.CREATE: lambda body, _: self._create(shm.ShmCreate.decode(body)),
            ShmOp.ATTACH: lambda body, _: self._attach(memory.decode_mem_name(body)),
            ShmOp.DETACH: lambda body, _: self._detach(memory.decode_mem_name(body)),
            ShmOp.GET: lambda body, _: self._seen(self._region(memory.decode_mem_name(body))).encode(),
            ShmOp.LIST: lambda _, __: shm.encode_list(map(self._seen, self._regions())),
            ShmOp.DELETE: lambda body, _: self._delete(memory.decode_mem_name(body)),
        }

    def _create(self, asked: shm.ShmCreate) -> bytes:
        size = -(-asked.size // shm.BLOCK) * shm.BLOCK
        if not memory.MIN_SIZE <= size <= memory.MAX_SIZE:
            raise Rejected(Status.ENGINE_OUT_OF_RANGE, f"{asked.name}: {asked.size} bytes are not 128 MiB to 256 GiB")
        if any(region.name == asked.name for region in self._regions()):
            raise Rejected(Status.ENGINE_EXISTED, f"there is memory {asked.name}")
        world = self._world()
        able = [node.name for node in world.nodes if lendable(world, node.name) >= size]
        if not able:
            raise Rejected(Status.ENGINE_ALLOCATE, f"{asked.name}: nobody can lend {size} bytes")
        owner = max(able, key=lambda name: (name == self._node, lendable(world, name), name))
        told = {"name": asked.name, "owner": owner, "importers": [], "size": str(size), "info": asked.info}
        self._let({"do": "share", "cacheable": asked.is_cacheable, **told}, Status.ENGINE_ALLOCATE)
        return self._seen(self._region(asked.name)).encode()

    def _attach(self, name: str) -> bytes:
        if self._node not in self._region(name).attached:
            self._let({"do": "attach", "name": name, "node": self._node}, Status.ENGINE_RESOURCE)
        return self._seen(self._region(name)).encode()

    def _detach(self, name: str) -> bytes:
        if self._node not in self._region(name).attached:
            raise Rejected(Status.ENGINE_IMPORT_ABSENT, f"memory {name} is not attached on {self._node}")
        self._let({"do": "detach", "name": name, "node": self._node}, Status.RESOURCE_BUSY)
        return b""

    def _delete(self, name: str) -> bytes:
        if attached := self._region(name).attached:
            raise Rejected(Status.RESOURCE_BUSY, f"memory {name} is attached on {', '.join(attached)}")
        self._let({"do": "unshare", "name": name}, Status.RESOURCE_BUSY)
        return b""

    def _let(self, change: dict[str, object], refusal: Status) -> None:
        try:
            self._happen(change)
        except UbError as error:
            raise Rejected(refusal, str(error)) from error

    def _regions(self) -> list[Region]:
        return [region for region in self._world().regions if region.numa is None and not region.lease]

    def _region(self, name: str) -> Region:
        found = next((region for region in self._regions() if region.name == name), None)
        if found is None:
            raise Rejected(Status.ENGINE_NOT_EXIST, f"there is no shared memory {name!r}")
        return found

    def _seen(self, region: Region) -> Shm:
        found = Shm(region.name, region.size, region.is_cacheable, region.info, (), region.attached)
        if self._node not in region.attached:
            return found
        return replace(found, memids=(dict(region.users())[self._node],))
