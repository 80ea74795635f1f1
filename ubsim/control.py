"""What a tester may do to a simulated node: one JSON object a line in, one a line out.

    {"do": "fail", "operation": "expose", "errno": "EPERM", "count": 1}  ->  {"ok": true}

``ubnode sim`` and the pytest plugin speak it, over ``<root>/run/ubsim/control.sock`` (root only). Orders that
change the super-node go to every node of it, so that all have the same picture: first with ``"dry": true``, which only
asks whether it can happen, then for good. The others go to one node.
"""

import json
import math
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ubhost.errors import HostFault, InvalidRequest, UbError, Unsupported
from ubsim import kernel, record, ubse_service
from ubsim.faults import Fault, errno_named
from ubsim.orders import ORDERS, Clear, Fail, Happening, LoseEid, Order, ReadLog, Status, Ubse
from ubsim.ubcore import Refused
from ubsim.ubse import Rejected

if TYPE_CHECKING:
    from ubsim.simulated_node import SimulatedNode

OPERATIONS = frozenset({*kernel.OPERATIONS.values(), *ubse_service.OPERATIONS.values()})
"""Every operation that can fail or be slow on order."""


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
            why = error.strerror if isinstance(error, Refused) else str(error)
            return json.dumps({"ok": False, "error": why}).encode()

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
            case Happening():
                self._node.become(given.change, dry=dry)
            case _:
                raise InvalidRequest(f"nobody obeys {type(given).__name__}")
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
        if asked.count < 1 or asked.skip < 0 or not 0 <= asked.delay_s < math.inf:
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


def broadcast(folder: Path, names: Iterable[str], what: Mapping[str, object]) -> None:
    """Give every node below ``folder`` an order: first whether it could obey, then for good.

    Raises:
        InvalidRequest: one cannot; nothing has happened anywhere.
    """
    sockets = [record.control_socket(folder, name) for name in names]
    for dry in (True, False):
        for path in sockets:
            order(path, {**what, "dry": dry})


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
