"""What a tester may do to a simulated node: one JSON object a line in, one a line out.

    {"do": "fail", "operation": "expose", "errno": "EPERM", "count": 1}  ->  {"ok": true}

``ubnode sim`` and the pytest plugin speak it, over ``<root>/run/ubsim/control.sock`` (root only).
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ubhost.errors import HostFault, InvalidRequest, UbError, Unsupported
from ubsim.faults import Fault, When, errno_named
from ubsim.ubcore import Refused
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


class Control:
    """The orders that one node takes."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node

    def answer(self, line: bytes) -> bytes:
        try:
            order = json.loads(line)
            if not isinstance(order, dict):
                raise InvalidRequest("an order is a JSON object")
            return json.dumps({"ok": True, **self._do(order)}).encode()
        except (UbError, Refused, Rejected, ValueError) as error:
            return json.dumps({"ok": False, "error": str(error)}).encode()

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        match order.pop("do", None):
            case "status":
                return self._status()
            case "log":
                return {"log": self._node.log.read()}
            case "fail":
                self._node.faults.order(_fault(order))
            case "clear":
                self._node.faults.clear()
            case unknown:
                raise InvalidRequest(f"there is no order {unknown!r}")
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
                    "exposed": len(ubcore.devices[urma.bonding].logical) if urma.bonding in ubcore.devices else 0,
                }
                for urma in ubse.devices.values()
            ],
            "faults": [{**asdict(fault), "when": fault.when.value} for fault in self._node.faults.pending()],
        }


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    operation: str
    errno: str = ""
    device: str = ""
    skip: int = 0
    count: int = 1
    delay_s: float = 0.0
    when: str = "before"


def _fault(order: Mapping[str, Any]) -> Fault:
    asked = msgspec.convert(order, _Order)
    if asked.operation not in OPERATIONS:
        raise InvalidRequest(f"{asked.operation!r} is none of {', '.join(sorted(OPERATIONS))}")
    if not asked.errno and not asked.delay_s:
        raise InvalidRequest("a fault needs an errno or a delay")
    if asked.count < 1 or asked.skip < 0 or asked.delay_s < 0:
        raise InvalidRequest("count must be at least 1, skip and delay not negative")
    return Fault(
        asked.operation,
        errno_named(asked.errno) if asked.errno else 0,
        asked.device,
        asked.skip,
        asked.count,
        asked.delay_s,
        When(asked.when),
    )


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
