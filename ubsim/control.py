"""What a tester may do to a simulated node: one JSON object a line in, one a line out.

    {"do": "fail", "operation": "expose", "errno": "EPERM", "count": 1}  ->  {"ok": true}

``ubnode sim`` and the pytest plugin speak it, over ``<root>/run/ubsim/control.sock`` (root only). Orders that
change the super-node go to every node of it, so that all have the same picture: first with ``"dry": true``, which only
asks whether it can happen, then for good. The others go to one node.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ubhost.errors import HostFault, InvalidRequest, UbError, Unsupported
from ubsim import changes
from ubsim.expansion import size_of
from ubsim.faults import Fault, When, errno_named
from ubsim.scenario import Region
from ubsim.ubse import Rejected

if TYPE_CHECKING:
    from ubsim.simulated_node import SimulatedNode

OPERATIONS = frozenset(
    {
        "expose", "unexpose", "move_eid", "set_dev_ns", "set_dev_sharing", "set_eid_sharing", "set_service_level",
        "show_system", "devices", "allocate", "free", "bandwidth", "set_bandwidth", "reset_bandwidth", "activate",
        "nodes", "cpu_links", "numa_memory", "local_node",
    }
)  # fmt: skip
"""Every operation that can fail or be slow on order."""


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


class Port(Order, frozen=True):
    port: str
    state: str


class Cable(Order, frozen=True):
    end: str
    up: bool | None = None
    latency_us: float | None = None
    mbps: int | None = None


class Plug(Order, frozen=True):
    node: str
    device: str


class Unplug(Order, frozen=True):
    node: str
    device: str


class Health(Order, frozen=True):
    node: str
    device: str
    healthy: bool


class Borrow(Order, frozen=True):
    borrower: str
    lender: str
    size: str


class GiveBack(Order, frozen=True):
    borrower: str
    numa: int


class Share(Order, frozen=True):
    """Export ``size`` bytes of ``owner`` and import them on ``importers``."""

    name: str
    owner: str
    importers: tuple[str, ...]
    size: str
    cacheable: bool = False


class Unshare(Order, frozen=True):
    """Unimport everywhere, then unexport; refused while any node has it open."""

    name: str


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
    "share": Share,
    "unshare": Unshare,
}


class Control:
    """The orders that one node takes."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node

    def answer(self, line: bytes) -> bytes:
        try:
            content = json.loads(line)
            if not isinstance(content, dict) or content.get("do") not in ORDERS:
                raise InvalidRequest(f"an order is an object whose `do` is one of {', '.join(ORDERS)}")
            dry = bool(content.pop("dry", False))
            given = msgspec.convert(content, ORDERS[content.pop("do")])
            return json.dumps({"ok": True, **self._obey(given, dry=dry)}).encode()
        except (UbError, Rejected, ValueError, OSError) as error:
            return json.dumps({"ok": False, "error": str(error)}).encode()

    def _obey(self, given: Order, *, dry: bool) -> dict[str, Any]:
        match given:
            case Status():
                return self._status()
            case ReadLog():
                return {"log": self._node.log.read()}
            case Clear():
                self._node.faults.clear()
            case Fail():
                self._node.faults.order(self._fault(given))
            case LoseEid():
                self._node.lose_eid(given.device, given.index, lost=given.lost)
            case Ubse(up=up):
                (self._node.open_ubse if up else self._node.close_ubse)()
            case _:
                self._node.become(_change(given), dry=dry)
        if dry:
            return {}
        self._node.log.add("order", detail=f"{type(given).__name__.lower()} {msgspec.to_builtins(given)}")
        return {}

    def _status(self) -> dict[str, Any]:
        ubcore, ubse = self._node.kernel.state, self._node.ubse.state
        return {
            "sharing": "shared" if ubcore.is_shared else "exclusive",
            "namespaces": len(ubcore.others),
            "devices": [
                {
                    "name": urma.name,
                    "bonding": urma.bonding,
                    "members": list(urma.members),
                    "eid": str(urma.eid),
                    "healthy": urma.is_healthy,
                    "held": urma.holder is not None,
                    "exposed": len(ubcore.namespaces_of(urma.bonding, *urma.members)),
                }
                for urma in ubse.devices.values()
            ],
            "faults": [
                {**asdict(fault), "when": fault.when.value, "devices": sorted(fault.devices)}
                for fault in self._node.faults.pending()
            ],
        }

    def _fault(self, asked: Fail) -> Fault:
        if asked.operation not in OPERATIONS:
            raise InvalidRequest(f"{asked.operation!r} is none of {', '.join(sorted(OPERATIONS))}")
        if not asked.errno and not asked.delay_s:
            raise InvalidRequest("a fault needs an errno or a delay")
        if asked.count < 1 or asked.skip < 0 or asked.delay_s < 0:
            raise InvalidRequest("count must be at least 1, skip and delay not negative")
        number = errno_named(asked.errno) if asked.errno else 0
        devices = self._concerned(asked.device)
        return Fault(asked.operation, number, devices, asked.skip, asked.count, asked.delay_s, asked.when)

    def _concerned(self, name: str) -> frozenset[str]:
        """``urma_1`` stands for itself and for the kernel devices it is made of."""
        if not name:
            return frozenset()
        urma = self._node.ubse.state.devices.get(name)
        if urma is not None:
            return frozenset({name, urma.bonding, *urma.members})
        if name not in self._node.kernel.state.devices:
            raise InvalidRequest(f"there is no device {name!r}")
        return frozenset({name})


def _change(given: Order) -> changes.Change:
    match given:
        case Port(port=port, state=state):
            return lambda world: changes.set_port(world, port, state)
        case Cable(end=end):
            return lambda world: changes.set_link(world, end, up=given.up, latency_us=given.latency_us, mbps=given.mbps)
        case Plug(node=node, device=device):
            return lambda world: changes.plug(world, node, device)
        case Unplug(node=node, device=device):
            return lambda world: changes.unplug(world, node, device)
        case Health(node=node, device=device, healthy=healthy):
            return lambda world: changes.set_health(world, node, device, healthy=healthy)
        case Borrow(borrower=borrower, lender=lender, size=size):
            return lambda world: changes.borrow(world, borrower, lender, size_of(size))
        case GiveBack(borrower=borrower, numa=numa):
            return lambda world: changes.give_back(world, borrower, numa)
        case Share(name=name, owner=owner, importers=importers):
            region = Region(name, owner, importers, size_of(given.size), (), given.cacheable)
            return lambda world: changes.share(world, region)
        case Unshare(name=name):
            return lambda world: changes.unshare(world, name)
        case _:
            raise InvalidRequest(f"{type(given).__name__} changes nothing")


def order(path: Path, what: Mapping[str, object], *, timeout_s: float = 30.0) -> dict[str, Any]:
    """Give the node behind the control socket ``path`` an order; return its answer.

    Raises:
        Unsupported: no node listens there.
        InvalidRequest: it cannot do that; it says why.
        HostFault: it broke off.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(json.dumps(dict(what)).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Unsupported(f"no simulated node listens at {path}") from error
    except OSError as error:
        raise HostFault(f"simulated node at {path}: {error.strerror or error}") from error
    if not line:
        raise HostFault(f"simulated node at {path} broke off")
    answer: dict[str, Any] = json.loads(line)
    if not answer.pop("ok"):
        raise InvalidRequest(str(answer["error"]))
    return answer
