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
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

from ubhost.errors import HostFault
from ubhost.kernel.netns import inode, is_netns, living
from ubhost.model import Eid
from ubhost.netlink import NLM_F_ACK, NLM_F_MULTI, NLMSG_DONE, STATUS, Frame, Malformed, acknowledgement, frames
from ubhost.ubcore.message import Attribute, Command, Message, Value, decode
from ubsim.argument import DUMPS, Argument
from ubsim.cables import Obituaries
from ubsim.caller import Caller
from ubsim.faults import Faults, When
from ubsim.ubcore import Refused, Ubcore
from ubsim.views import Views

LOG_LENGTH = 4096
EID_PROGRESS = (1, 0)  # what UPDATE_EID_RET says: the fabric is asked, it is done
OPERATIONS: Mapping[Command, str] = {
    Command.ADD_EID: "add_eid",
    Command.DEL_EID: "delete_eid",
    Command.SET_EID_MODE: "set_eid_mode",
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
    machine that are no part of the simulated host: they do not count as its namespaces. ``fabric`` says which EID a
    slot of a device gets, or refuses.
    """

    def __init__(
        self,
        ubcore: Ubcore,
        views: Views,
        obituaries: Obituaries,
        fabric: Callable[[str, int], Eid],
        *,
        faults: Faults,
        log: Log,
        outside: frozenset[int],
    ) -> None:
        self.state = ubcore
        self.faults = faults
        self.log = log
        self.on_change: Callable[[Ubcore, Ubcore], None] = lambda _before, _after: None
        self._views = views
        self.obituaries = obituaries
        self._fabric = fabric
        self._outside = outside
        self._lock = threading.RLock()

    def answer(self, request: bytes, netns: int | None, caller: Caller) -> bytes:
        """Return the reply to one datagram with one message; ``netns`` is the descriptor that came with it."""
        try:
            (frame,) = frames(request)
            message = decode(frame)
        except ValueError:  # not one message
            return acknowledgement(request, errno.EINVAL) if len(request) >= 16 else b""
        except Malformed as error:
            return acknowledgement(request, error.code) if len(request) >= 16 else b""
        operation = OPERATIONS.get(message.command, message.command.name.lower())
        asked = Argument(str(message.attributes.get(Attribute.DEV_NAME, "")))
        detail = _detail(message, netns)
        try:
            asked = Argument.of(message, caller)
            self.faults.meet(operation, asked.device)
            self._do(message.command, asked, netns, caller)
            self.faults.meet(operation, asked.device, When.AFTER)
        except (OSError, HostFault) as refusal:  # a tree that cannot be written is a driver that fails
            code = getattr(refusal, "errno", None) or errno.EIO
            self.log.add(operation, asked.device, detail, errno.errorcode.get(code, str(code)))
            return acknowledgement(request, code)
        self.log.add(operation, asked.device, detail)
        return self._told(message) + (b"" if message.command in DUMPS else _acknowledged(message, request))

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

    def _do(self, command: Command, asked: Argument, sent: int | None, caller: Caller) -> None:
        with self._lock:
            self._bury()
            in_memory = sent is None and command in DUMPS and asked.netns_fd is not None
            with caller.descriptor(asked.netns_fd or 0) if in_memory else nullcontext(sent) as netns:
                target = self._meet(asked, netns)
                self._go(self._next(command, asked, target))

    def _next(self, command: Command, asked: Argument, netns: int) -> Ubcore:
        state, name = self.state, asked.device
        match command:
            case Command.EXPOSE_DEV_NS:
                return state.expose(name, netns)
            case Command.UNEXPOSE_DEV_NS:
                return state.unexpose(name, netns)
            case Command.SET_DEV_NS:
                return state.set_home(name, netns)
            case Command.SET_DEV_EID_NS:
                return state.set_eid_netns(name, asked.index, netns)
            case Command.SET_DEV_NS_MODE:
                is_same = asked.flag == state.is_shared
                return state if is_same else self._with_all_living().set_sharing(shared=asked.flag)
            case Command.SET_EID_NS_MODE:
                is_same = asked.flag == state.is_eid_shared
                return state if is_same else self._with_all_living().set_eid_sharing(shared=asked.flag)
            case Command.SET_SL:
                return state.set_service_level(name, asked.priority, asked.level)
            case Command.SHOW_SYSTEM:
                return state.open_netns(netns) if netns else state
            case _:
                return self._next_eids(command, asked, netns)

    def _next_eids(self, command: Command, asked: Argument, netns: int) -> Ubcore:
        state, name, index = self.state, asked.device, asked.index
        if command is Command.SET_EID_MODE:
            return state.set_eid_mode(name, dynamic=asked.flag)
        if command is Command.DEL_EID:
            return state.delete_eid(name, index)
        return state.ask_for_eid(name, index, lambda: self._fabric(name, index), netns or None)

    def _meet(self, asked: Argument, netns: int | None) -> int:
        """Return the inode of the namespace that the request speaks of, and watch it; 0 if it speaks of none."""
        if netns is None:
            if asked.netns_fd is not None:
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

    def _told(self, request: Message) -> bytes:
        """The data of an answer, if the command has any."""
        reply = replace(request, attributes={}, flags=0)
        if request.command is Command.SHOW_SYSTEM:
            modes: dict[Attribute, Value] = {
                Attribute.DEV_NS_MODE: int(self.state.is_shared),
                Attribute.EID_NS_MODE: int(self.state.is_eid_shared),
            }
            return replace(reply, attributes=modes).encode()
        if request.command not in DUMPS:
            return b""
        said = [replace(reply, attributes={Attribute.UPDATE_EID_RET: ret}, flags=NLM_F_MULTI) for ret in EID_PROGRESS]
        end = Frame(NLMSG_DONE, STATUS.pack(0), NLM_F_MULTI, request.sequence, request.port)
        return b"".join(message.encode() for message in said) + end.encode()


def _acknowledged(message: Message, request: bytes) -> bytes:
    """As the kernel: only who asked for it hears that all went well."""
    return acknowledgement(request, 0) if message.flags & NLM_F_ACK else b""


def _detail(message: Message, netns: int | None) -> str:
    parts = [
        f"{kind.name.lower()}={value!r}" for kind, value in message.attributes.items() if kind is not Attribute.NS_FD
    ]
    if netns is not None and is_netns(netns):
        parts.append(f"net:[{inode(netns)}]")
    return " ".join(part for part in parts if not part.startswith("dev_name="))
