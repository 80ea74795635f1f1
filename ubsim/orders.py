"""The orders that ``ubsim.control`` takes: what their keys are, and what those mean that change the super-node. Pure.

A ``Happening`` goes to every node; the others concern one node only.
"""

from collections.abc import Mapping

import msgspec

from ubsim import changes
from ubsim.faults import When
from ubsim.scenario import Region, SuperNode
from ubsim.words import size_of


class Order(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of all orders; a subclass's fields are the keys beside ``do``."""


class Status(Order, frozen=True):
    """What is up, held, exposed and on order."""


class ReadLog(Order, frozen=True):
    """What happened, oldest first."""


class Clear(Order, frozen=True):
    """Forget all faults on order."""


class Fail(Order, frozen=True):
    """Let calls of ``operation`` fail with ``errno``, or take ``delay_s`` longer, or both."""

    operation: str
    errno: str = ""
    device: str = ""
    skip: int = 0
    count: int = 1
    delay_s: float = 0.0
    when: When = When.BEFORE


class LoseEid(Order, frozen=True):
    """The fabric takes the EID in slot ``index`` of a kernel device back, or gives it again."""

    device: str
    index: int
    lost: bool = True


class Ubse(Order, frozen=True):
    """UBSE is stopped or started; who holds what survives, as in its own store."""

    up: bool


class Happening(Order, frozen=True):
    """Something that changes the super-node as a whole."""

    def change(self, world: SuperNode) -> SuperNode:
        """Return ``world`` after it.

        Raises:
            InvalidRequest: it cannot happen.
        """
        raise NotImplementedError


class Port(Happening, frozen=True):
    port: str
    state: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.set_port(world, self.port, self.state)


class Cable(Happening, frozen=True):
    end: str
    up: bool | None = None
    latency_us: float | None = None
    mbps: int | None = None

    def change(self, world: SuperNode) -> SuperNode:
        return changes.set_link(world, self.end, up=self.up, latency_us=self.latency_us, mbps=self.mbps)


class Plug(Happening, frozen=True):
    node: str
    device: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.plug(world, self.node, self.device)


class Unplug(Happening, frozen=True):
    node: str
    device: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.unplug(world, self.node, self.device)


class Health(Happening, frozen=True):
    node: str
    device: str
    healthy: bool

    def change(self, world: SuperNode) -> SuperNode:
        return changes.set_health(world, self.node, self.device, healthy=self.healthy)


class Borrow(Happening, frozen=True):
    """``lease`` is the name under which UBSE was asked for it, "" for a tester's own."""

    borrower: str
    lender: str
    size: str
    lease: str = ""

    def change(self, world: SuperNode) -> SuperNode:
        return changes.borrow(world, self.borrower, self.lender, size_of(self.size), self.lease)


class GiveBack(Happening, frozen=True):
    borrower: str
    numa: int

    def change(self, world: SuperNode) -> SuperNode:
        return changes.give_back(world, self.borrower, self.numa)


class Lease(Happening, frozen=True):
    """What UBSE does for FD_CREATE: ``blocks`` device nodes of ``block`` bytes each."""

    borrower: str
    lender: str
    name: str
    blocks: int
    block: int

    def change(self, world: SuperNode) -> SuperNode:
        return changes.lease(world, self.borrower, self.lender, self.name, self.blocks, self.block)


class EndLease(Happening, frozen=True):
    borrower: str
    name: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.end_lease(world, self.borrower, self.name)


class Share(Happening, frozen=True):
    """Export ``size`` bytes of ``owner`` and import them on ``importers``."""

    name: str
    owner: str
    importers: tuple[str, ...]
    size: str
    cacheable: bool = False
    info: str = ""

    def change(self, world: SuperNode) -> SuperNode:
        region = Region(self.name, self.owner, self.importers, size_of(self.size), (), self.cacheable, info=self.info)
        return changes.share(world, region)


class Attach(Happening, frozen=True):
    """Import a shared region on one more node."""

    name: str
    node: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.attach(world, self.name, self.node)


class Detach(Happening, frozen=True):
    """Unimport a shared region on one node; refused while it has it open."""

    name: str
    node: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.detach(world, self.name, self.node)


class Unshare(Happening, frozen=True):
    """Unimport everywhere, then unexport; refused while any node has it open."""

    name: str

    def change(self, world: SuperNode) -> SuperNode:
        return changes.unshare(world, self.name)


ORDERS: Mapping[str, type[Order]] = {
    "status": Status,
    "log": ReadLog,
    "clear": Clear,
    "fail": Fail,
    "eid": LoseEid,
    "ubse": Ubse,
    "port": Port,
    "link": Cable,
    "plug": Plug,
    "unplug": Unplug,
    "health": Health,
    "borrow": Borrow,
    "return": GiveBack,
    "lease": Lease,
    "end-lease": EndLease,
    "share": Share,
    "unshare": Unshare,
    "attach": Attach,
    "detach": Detach,
}
