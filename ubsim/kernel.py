"""The simulated ubcore driver of one node: netlink messages in, netlink messages out, files that follow.

A message arrives complete, as it would go to AF_NETLINK for family UBCORE_GENL, with the namespace it speaks of as an
open descriptor. The answer is what the kernel would send.

Source: reference/ub.md sections 2 and 3; kernel drivers/ub/urma/ubcore/ubcore_genl{,_admin}.c.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from ubhost.errors import HostFault
from ubhost.kernel.netns import inode, is_netns, living
from ubhost.netlink import Malformed, acknowledgement, frames
from ubhost.ubcore.message import Attribute, Command, Message, decode
from ubsim.cables import Obituaries
from ubsim.faults import Faults, When
from ubsim.ubcore import Refused, Ubcore
from ubsim.views import Views

LOG_LENGTH = 4096
OPERATIONS: Mapping[Command, str] = {
    Command.EXPOSE_DEV_NS: "expose",
    Command.UNEXPOSE_DEV_NS: "unexpose",
    Command.SET_DEV_EID_NS: "move_eid",
    Command.SET_DEV_NS: "set_dev_ns",
    Command.SET_DEV_NS_MODE: "set_dev_sharing",
    Command.SET_EID_NS_MODE: "set_eid_sharing",
    Command.SET_SL: "set_service_level",
    Command.SHOW_SYSTEM: "show_system",
}
"""What the commands are called in the log and in faults: as the provider's methods, where it has one."""

REQUIRED: Mapping[Command, tuple[Attribute, ...]] = {
    Command.EXPOSE_DEV_NS: (Attribute.DEV_NAME, Attribute.NS_FD),
    Command.UNEXPOSE_DEV_NS: (Attribute.DEV_NAME, Attribute.NS_FD),
    Command.SET_DEV_NS: (Attribute.DEV_NAME, Attribute.NS_FD),
    Command.SET_DEV_EID_NS: (Attribute.DEV_NAME, Attribute.EID_IDX, Attribute.NS_FD),
    Command.SET_DEV_NS_MODE: (Attribute.DEV_NS_MODE,),
    Command.SET_EID_NS_MODE: (Attribute.EID_NS_MODE,),
    Command.SET_SL: (Attribute.DEV_NAME, Attribute.SL, Attribute.PRIORITY),
    Command.SHOW_SYSTEM: (),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``outcome`` is "ok" or the name of an errno or UBSE status."""

    time: float
    operation: str
    device: str = ""
    detail: str = ""
    outcome: str = "ok"


class Log:
    """The last things that happened on a node."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=LOG_LENGTH)

    def add(self, operation: str, device: str = "", detail: str = "", outcome: str = "ok") -> None:
        self._events.append(Event(round(time.time(), 6), operation, device, detail, outcome))

    def read(self) -> list[dict[str, object]]:
        return [asdict(event) for event in tuple(self._events)]


class Kernel:
    """Safe for threads: one command at a time changes the state, as under the driver's locks.

    ``on_change`` is told of the state before and after, with the lock held; ``outside`` are the namespaces of the
    machine that are no part of the simulated host: they do not count as its namespaces.
    """

    def __init__(
        self, ubcore: Ubcore, views: Views, obituaries: Obituaries, *, faults: Faults, log: Log, outside: frozenset[int]
    ) -> None:
        self.state = ubcore
        self.faults = faults
        self.log = log
        self.on_change: Callable[[Ubcore, Ubcore], None] = lambda _before, _after: None
        self._views = views
        self.obituaries = obituaries
        self._outside = outside
        self._lock = threading.RLock()

    def answer(self, request: bytes, netns: int | None, *, is_root: bool) -> bytes:
        """Return the reply to one datagram with one message; ``netns`` is the descriptor that came with it."""
        try:
            (frame,) = frames(request)
            message = decode(frame)
        except ValueError:  # not one message
            return acknowledgement(request, errno.EINVAL) if len(request) >= 16 else b""
        except Malformed as error:
            return acknowledgement(request, error.code) if len(request) >= 16 else b""
        name, detail = str(message.attributes.get(Attribute.DEV_NAME, "")), _detail(message, netns)
        operation = OPERATIONS.get(message.command, message.command.name.lower())
        try:
            if not is_root:  # every command that we know is GENL_ADMIN_PERM
                raise Refused(errno.EPERM, "the caller lacks CAP_NET_ADMIN")
            self.faults.meet(operation, name)
            self._do(message, netns)
            self.faults.meet(operation, name, When.AFTER)
        except (OSError, HostFault) as refusal:  # a tree that cannot be written is a driver that fails
            code = getattr(refusal, "errno", None) or errno.EIO
            self.log.add(operation, name, detail, errno.errorcode.get(code, str(code)))
            return acknowledgement(request, code)
        self.log.add(operation, name, detail)
        return self._system(message) if message.command is Command.SHOW_SYSTEM else acknowledgement(request, 0)

    def change(self, change: Callable[[Ubcore], Ubcore]) -> None:
        """Let something happen to the driver that nobody asked it for: hot plug, a lost EID.

        Raises:
            Refused: it cannot happen.
        """
        with self._lock:
            self._bury()
            self._go(change(self.state))

    def bury(self) -> None:
        """Take note of the namespaces that died."""
        with self._lock:
            self._bury()

    def _do(self, message: Message, netns: int | None) -> None:
        with self._lock:
            self._bury()
            required = REQUIRED.get(message.command)
            if required is None:
                raise Refused(errno.EOPNOTSUPP, f"the simulator has no {message.command.name}")
            if any(kind not in message.attributes for kind in required):
                raise Refused(errno.EINVAL, f"{message.command.name} lacks an attribute")
            target = self._meet(message, netns)
            self._go(self._next(message, target))

    def _next(self, message: Message, netns: int) -> Ubcore:
        state, values = self.state, message.attributes
        name = str(values.get(Attribute.DEV_NAME, ""))
        match message.command:
            case Command.EXPOSE_DEV_NS:
                return state.expose(name, netns)
            case Command.UNEXPOSE_DEV_NS:
                return state.unexpose(name, netns)
            case Command.SET_DEV_NS:
                return state.set_home(name, netns)
            case Command.SET_DEV_EID_NS:
                return state.set_eid_netns(name, int(values[Attribute.EID_IDX]), netns)
            case Command.SET_DEV_NS_MODE:
                shared = bool(values[Attribute.DEV_NS_MODE])
                return state if shared == state.is_shared else self._with_all_living().set_sharing(shared=shared)
            case Command.SET_EID_NS_MODE:
                shared = bool(values[Attribute.EID_NS_MODE])
                return (
                    state if shared == state.is_eid_shared else self._with_all_living().set_eid_sharing(shared=shared)
                )
            case Command.SET_SL:
                return state.set_service_level(name, int(values[Attribute.PRIORITY]), int(values[Attribute.SL]))
            case _:
                return state.open_netns(netns) if netns else state

    def _meet(self, message: Message, netns: int | None) -> int:
        """Return the inode of the namespace that the request speaks of, and watch it; 0 if it speaks of none."""
        if netns is None:
            if Attribute.NS_FD in message.attributes:
                raise Refused(errno.EBADF, "failed to get ns by fd")
            return 0
        if not is_netns(netns):
            raise Refused(errno.EINVAL, "failed to get ns by fd")
        number = inode(netns)
        if number != self.state.init:
            self.obituaries.watch(netns)
        return number

    def _with_all_living(self) -> Ubcore:
        """The state that counts namespaces it was never told of: the mode depends on them all."""
        alive = living()
        self._outside &= alive
        state = self.state
        for netns in alive - self._outside:
            state = state.open_netns(netns)
        return state

    def _bury(self) -> None:
        for netns in self.obituaries.deaths():
            self.log.add("netns_exit", detail=f"net:[{netns}]")
            self._go(self.state.close_netns(netns))

    def _go(self, after: Ubcore) -> None:
        before = self.state
        if after is before:
            return
        self._views.follow(before, after)
        self.state = after
        self.on_change(before, after)

    def _system(self, request: Message) -> bytes:
        modes = {Attribute.DEV_NS_MODE: int(self.state.is_shared), Attribute.EID_NS_MODE: int(self.state.is_eid_shared)}
        return Message(
            Command.SHOW_SYSTEM, modes, request.family, flags=0, sequence=request.sequence, port=request.port
        ).encode()


def _detail(message: Message, netns: int | None) -> str:
    parts = [
        f"{kind.name.lower()}={value!r}" for kind, value in message.attributes.items() if kind is not Attribute.NS_FD
    ]
    if netns is not None and is_netns(netns):
        parts.append(f"net:[{inode(netns)}]")
    return " ".join(part for part in parts if not part.startswith("dev_name="))
