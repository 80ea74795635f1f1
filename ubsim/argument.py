"""What a command to the ubcore driver says, wherever it says it: in attributes, or in a struct in the caller's memory.

Source: reference/ub.md section 2 (kernel drivers/ub/urma/ubcore/ubcore_genl{,_admin}.c, ubcore_cmd.h).
"""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ubhost.netlink import NLM_F_DUMP
from ubhost.ubcore.message import Attribute, Command, Message
from ubsim.caller import Caller
from ubsim.ubcore import MAX_NAME, Refused

POINTER = (Attribute.HDR_ARGS_LEN, Attribute.HDR_ARGS_ADDR)
REQUIRED: Mapping[Command, tuple[Attribute, ...]] = {
    Command.ADD_EID: POINTER,
    Command.DEL_EID: POINTER,
    Command.SET_EID_MODE: POINTER,
    Command.EXPOSE_DEV_NS: (Attribute.DEV_NAME, Attribute.NS_FD),
    Command.UNEXPOSE_DEV_NS: (Attribute.DEV_NAME, Attribute.NS_FD),
    Command.SET_DEV_NS: (Attribute.DEV_NAME, Attribute.NS_FD),
    Command.SET_DEV_EID_NS: (Attribute.DEV_NAME, Attribute.EID_IDX, Attribute.NS_FD),
    Command.SET_DEV_NS_MODE: (Attribute.DEV_NS_MODE,),
    Command.SET_EID_NS_MODE: (Attribute.EID_NS_MODE,),
    Command.SET_SL: (Attribute.DEV_NAME, Attribute.SL, Attribute.PRIORITY),
    Command.SHOW_SYSTEM: (),
}
"""The commands that are simulated. The driver's others are answered as by a driver that lacks them."""

UNPRIVILEGED = frozenset(
    {
        Command.QUERY_STATS, Command.QUERY_RES, Command.GET_TOPO_INFO, Command.ADMIN_LOOKUP_MAIN_UE_EID,
        Command.PERF_START, Command.PERF_STOP, Command.PERF_SHOW, Command.SHOW_TPID_LIST, Command.SHOW_TPID_REUSE,
    }
)  # fmt: skip
"""All other commands are GENL_ADMIN_PERM."""

DUMPS = frozenset({Command.ADD_EID, Command.DEL_EID})
"""Commands that exist as dumps only."""

UPDATE_EID = struct.Struct(f"={MAX_NAME}sIi")  # device, slot, descriptor of a namespace or negative
SET_EID_MODE = struct.Struct(f"={MAX_NAME}s?")  # device, whether the fabric assigns its EIDs


@dataclass(frozen=True, slots=True)
class Argument:
    """``flag`` is the new mode: shared, or dynamic. ``netns_fd`` is a number in the caller's table."""

    device: str = ""
    index: int = 0
    netns_fd: int | None = None
    flag: bool = False
    priority: int = 0
    level: int = 0

    @classmethod
    def of(cls, message: Message, caller: Caller) -> "Argument":
        """Read what ``message`` says.

        Raises:
            Refused: EOPNOTSUPP, EPERM, EINVAL or EFAULT, in the order in which the kernel looks.
        """
        required = REQUIRED.get(message.command)
        is_dump = message.flags & NLM_F_DUMP == NLM_F_DUMP
        if required is None or is_dump != (message.command in DUMPS):
            raise Refused(errno.EOPNOTSUPP, f"no {message.command.name} in this form")
        if not caller.is_root and message.command not in UNPRIVILEGED:
            raise Refused(errno.EPERM, "the caller lacks CAP_NET_ADMIN")
        if any(kind not in message.attributes for kind in required):
            raise Refused(errno.EINVAL, f"{message.command.name} lacks an attribute")
        return cls._pointed_at(message, caller) if required is POINTER else cls._in_attributes(message)

    @classmethod
    def _in_attributes(cls, message: Message) -> "Argument":
        values = message.attributes
        mode = values.get(Attribute.DEV_NS_MODE, values.get(Attribute.EID_NS_MODE, 0))
        return cls(
            device=str(values.get(Attribute.DEV_NAME, "")),
            index=int(values.get(Attribute.EID_IDX, 0)),
            netns_fd=int(values[Attribute.NS_FD]) if Attribute.NS_FD in values else None,
            flag=bool(mode),
            priority=int(values.get(Attribute.PRIORITY, 0)),
            level=int(values.get(Attribute.SL, 0)),
        )

    @classmethod
    def _pointed_at(cls, message: Message, caller: Caller) -> "Argument":
        """The length that the caller gives is not looked at: the driver copies as much as its own struct has."""
        address = int(message.attributes[Attribute.HDR_ARGS_ADDR])
        if message.command is Command.SET_EID_MODE:
            raw, dynamic = SET_EID_MODE.unpack(caller.read(address, SET_EID_MODE.size))
            return cls(_name(raw), flag=dynamic)
        raw, index, netns = UPDATE_EID.unpack(caller.read(address, UPDATE_EID.size))
        return cls(_name(raw), index, netns_fd=netns if netns >= 0 else None)


def _name(raw: bytes) -> str:
    return raw[: MAX_NAME - 1].partition(b"\0")[0].decode("ascii", errors="replace")
