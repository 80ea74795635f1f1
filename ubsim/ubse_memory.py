"""The memory desk of the UBSE stand-in: memory of other nodes, lent as device nodes (FD) or as a NUMA node.

What is lent is a change of the whole super-node, so it is broadcast to all its daemons: the lender exports, the
borrower imports, and both show it in sysfs. A name belongs to the user who created it.

Source: reference/ub.md sections 5 and 6.3 (ubs_engine_mem.h: 128 MiB to 256 GiB, blocks of 128 MiB).
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ubhost.errors import UbError
from ubhost.ubse import memory
from ubhost.ubse.status import Status
from ubhost.ubse.wire import MemOp
from ubsim.changes import lendable
from ubsim.scenario import Region, SuperNode
from ubsim.ubse import Rejected

BLOCK = 128 << 20  # obmm.memory.block.size, UBSE's default


class Kind(Enum):
    FD = "fd"
    NUMA = "numa"


class Stage(Enum):
    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


@dataclass(slots=True)
class Loan:
    kind: Kind
    uid: int
    stage: Stage = Stage.CREATING


Request = memory.FdCreate | memory.FdWithLender | memory.NumaCreate | memory.NumaWithLender


class Desk:
    """Loans of node ``borrower``. ``world`` is the super-node as it is now, ``happen`` changes it everywhere."""

    def __init__(
        self, borrower: str, dev: Path, world: Callable[[], SuperNode], happen: Callable[[dict[str, object]], None]
    ) -> None:
        self._borrower = borrower
        self._dev = dev
        self._world = world
        self._happen = happen
        self._loans: dict[str, Loan] = {}
        self._lock = threading.Lock()
        self.handlers: Mapping[int, Callable[[bytes, int], bytes]] = {
            MemOp.FD_CREATE: lambda body, uid: self._create(Kind.FD, memory.FdCreate.decode(body), uid),
            MemOp.FD_WITH_LEND: lambda body, uid: self._create(Kind.FD, memory.FdWithLender.decode(body), uid),
            MemOp.FD_GET: lambda body, uid: self._get(Kind.FD, memory.decode_mem_name(body), uid),
            MemOp.FD_LIST: lambda _, uid: memory.encode_list(self._fd(name) for name in self._mine(Kind.FD, uid)),
            MemOp.FD_DELETE: lambda body, uid: self._delete(Kind.FD, memory.decode_mem_name(body), uid),
            MemOp.NUMA_CREATE: lambda body, uid: self._create(Kind.NUMA, memory.NumaCreate.decode(body), uid),
            MemOp.NUMA_WITH_LEND: lambda body, uid: self._create(Kind.NUMA, memory.NumaWithLender.decode(body), uid),
            MemOp.NUMA_GET: lambda body, uid: self._get(Kind.NUMA, memory.decode_mem_name(body), uid),
            MemOp.NUMA_LIST: lambda _, uid: memory.encode_list(self._numa(name) for name in self._mine(Kind.NUMA, uid)),
            MemOp.NUMA_DELETE: lambda body, uid: self._delete(Kind.NUMA, memory.decode_mem_name(body), uid),
        }

    def _create(self, kind: Kind, asked: Request, uid: int) -> bytes:
        size = _size(asked)
        if not asked.name:
            raise Rejected(Status.INVALID_ARG, "memory needs a name")
        if not memory.MIN_SIZE <= size <= memory.MAX_SIZE:
            raise Rejected(Status.ENGINE_OUT_OF_RANGE, f"{asked.name}: {size} bytes are not 128 MiB to 256 GiB")
        with self._lock:
            if asked.name in self._loans:
                raise Rejected(_standing(self._loans[asked.name]), f"there is memory {asked.name}")
            self._loans[asked.name] = Loan(kind, uid)
        try:
            self._lend(kind, asked, -(-size // BLOCK) * BLOCK)
        except BaseException:
            with self._lock:
                del self._loans[asked.name]
            raise
        self._loans[asked.name].stage = Stage.READY
        return self._get(kind, asked.name, uid)

    def _lend(self, kind: Kind, asked: Request, size: int) -> None:
        lender = self._lender(asked, size)
        to: dict[str, object] = {"borrower": self._borrower, "lender": lender}
        try:
            if kind is Kind.NUMA:
                self._happen({"do": "borrow", **to, "size": str(size), "lease": asked.name})
            else:
                self._happen({"do": "lease", **to, "name": asked.name, "blocks": size // BLOCK, "block": BLOCK})
        except UbError as error:
            raise Rejected(Status.ENGINE_ALLOCATE, f"{asked.name}: {error}") from error
        if isinstance(asked, memory.FdCreate | memory.FdWithLender):
            for region in self._regions(asked.name):
                device = self._dev / f"obmm_shmdev{region.memids[1]}"
                os.chown(device, asked.owner.uid, asked.owner.gid)
                if asked.mode:
                    device.chmod(asked.mode & 0o777)

    def _lender(self, asked: Request, size: int) -> str:
        """Return the node that lends: the one that was asked for, or the directly linked one that has most."""
        world = self._world()
        if isinstance(asked, memory.FdWithLender | memory.NumaWithLender):
            slot = asked.lender.slot_id
            candidates = [n.name for n in world.nodes if n.slot_id == slot and n.name != self._borrower]
        elif asked.distance is not memory.Distance.L0:
            raise Rejected(Status.NOT_SUPPORTED, f"{asked.name}: only directly linked lenders are granted")
        else:
            candidates = [node.name for node in world.nodes if self._is_linked(world, node.name)]
        able = [name for name in candidates if lendable(world, name) >= size]
        if not able:
            raise Rejected(Status.ENGINE_ALLOCATE, f"{asked.name}: nobody can lend {size} bytes")
        return max(able, key=lambda name: (lendable(world, name), name))

    def _is_linked(self, world: SuperNode, other: str) -> bool:
        """In a Clos every node is one switch away."""
        pairs = {frozenset((link.a.node, link.b.node)) for link in world.links if link.is_up}
        if frozenset((self._borrower, other)) in pairs:
            return True
        switches = [{next(iter(p - {n}), "") for p in pairs if n in p} for n in (self._borrower, other)]
        return other != self._borrower and any(
            s not in {n.name for n in world.nodes} for s in switches[0] & switches[1]
        )

    def _get(self, kind: Kind, name: str, uid: int) -> bytes:
        loan = self._loan(kind, name, uid)
        if loan.stage is not Stage.READY:
            raise Rejected(_standing(loan), f"memory {name} is {loan.stage.value}")
        return self._fd(name).encode() if kind is Kind.FD else self._numa(name).encode()

    def _delete(self, kind: Kind, name: str, uid: int) -> bytes:
        with self._lock:
            loan = self._loan(kind, name, uid)
            if loan.stage is not Stage.READY:
                raise Rejected(_standing(loan), f"memory {name} is {loan.stage.value}")
            loan.stage = Stage.DELETING
        try:
            self._happen({"do": "end-lease", "borrower": self._borrower, "name": name})
        except UbError as error:
            loan.stage = Stage.READY
            raise Rejected(Status.RESOURCE_BUSY, f"memory {name}: {error}") from error
        with self._lock:
            del self._loans[name]
        return b""

    def _loan(self, kind: Kind, name: str, uid: int) -> Loan:
        loan = self._loans.get(name)
        if loan is None or loan.kind is not kind:
            raise Rejected(Status.ENGINE_NOT_EXIST, f"there is no memory {name!r}")
        if loan.uid != uid:
            raise Rejected(Status.ENGINE_AUTH_FAILED, f"memory {name} was created by uid {loan.uid}, not by uid {uid}")
        return loan

    def _mine(self, kind: Kind, uid: int) -> list[str]:
        loans = sorted(self._loans.items())
        return [name for name, loan in loans if (loan.kind, loan.uid, loan.stage) == (kind, uid, Stage.READY)]

    def _regions(self, name: str) -> list[Region]:
        regions = self._world().regions
        return [r for r in regions if r.lease == name and r.importers == (self._borrower,)]

    def _fd(self, name: str) -> memory.FdMemory:
        regions = self._regions(name)
        ids = tuple(region.memids[1] for region in regions)
        return memory.FdMemory(name, ids, sum(region.size for region in regions), BLOCK)

    def _numa(self, name: str) -> memory.NumaRegion:
        return memory.NumaRegion(name, next((r.numa for r in self._regions(name) if r.numa is not None), -1))


def _size(asked: Request) -> int:
    return asked.lender.size if isinstance(asked, memory.FdWithLender | memory.NumaWithLender) else asked.size


def _standing(loan: Loan) -> Status:
    """Return the code for a name that is there, by how far it is."""
    return {
        Stage.CREATING: Status.ENGINE_CREATING,
        Stage.READY: Status.ENGINE_EXISTED,
        Stage.DELETING: Status.ENGINE_DELETING,
    }[loan.stage]
