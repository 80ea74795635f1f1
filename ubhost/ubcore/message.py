"""Messages of generic netlink family ``UBCORE_GENL`` version 1: values to bytes and back. No socket here.

Source: reference/ub.md section 2 (kernel drivers/ub/urma/ubcore/ubcore_genl_define.h, ubcore_genl.c).
"""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ubhost.errors import InvalidRequest
from ubhost.netlink import GENERIC, NLM_F_ACK, NLM_F_REQUEST, Frame, Malformed, attribute, attributes

FAMILY_NAME = "UBCORE_GENL"
FAMILY_VERSION = 1
MAX_DEVICE_NAME = 64  # bytes, with the NUL

Value = int | str | bytes


class Command(IntEnum):
    QUERY_STATS = 1
    QUERY_RES = 2
    ADD_EID = 3
    DEL_EID = 4
    SET_EID_MODE = 5
    SET_DEV_NS_MODE = 6
    SET_DEV_NS = 7
    EXPOSE_DEV_NS = 8
    UNEXPOSE_DEV_NS = 9
    SET_DEV_EID_NS = 10
    GET_TOPO_INFO = 11
    SET_SL = 12
    SET_GENL_PID = 13
    ADMIN_INSERT_MAIN_UE_EID = 35
    ADMIN_DELETE_MAIN_UE_EID = 36
    ADMIN_LOOKUP_MAIN_UE_EID = 37
    ADMIN_FLUSH_MAIN_UE_EID = 38
    ADMIN_INSERT_MAIN_UE_EID_BATCH = 39
    PERF_START = 40
    PERF_STOP = 41
    PERF_SHOW = 42
    SET_EID_NS_MODE = 43
    SHOW_TPID_LIST = 44
    SHOW_TPID_REUSE = 45
    SHOW_SYSTEM = 46


class Attribute(IntEnum):
    HDR_COMMAND = 1
    HDR_ARGS_LEN = 2
    HDR_ARGS_ADDR = 3
    DEV_NS_MODE = 4
    DEV_NAME = 5
    NS_FD = 6
    EID_IDX = 7
    MSG_SEQ = 8
    MSG_TYPE = 9
    TRANSPORT_TYPE = 10
    SRC_ID = 11
    DST_ID = 12
    PAYLOAD = 13
    UPDATE_EID_RET = 14
    EID = 15
    MAIN_UE_EID = 16
    EID_NUM = 17
    EID_LIST = 18
    STATUS = 19
    EID_NS_MODE = 20
    SL = 21
    PRIORITY = 22
    PERF_STAT = 23
    TOOL_QUERY_KEY = 24
    TOOL_QUERY_KEY_TYPE = 25
    TOOL_QUERY_KEY_EXT = 26
    TOOL_QUERY_KEY_CNT = 27
    STATS = 28
    TPID_QUERY_FLAG = 29
    TPID = 30


_U8, _U16, _U32, _U64, _S32 = (struct.Struct(f) for f in ("=B", "=H", "=I", "=Q", "=i"))

_NUMBERS: Mapping[Attribute, struct.Struct] = {
    Attribute.HDR_COMMAND: _U32,
    Attribute.HDR_ARGS_LEN: _U32,
    Attribute.HDR_ARGS_ADDR: _U64,
    Attribute.DEV_NS_MODE: _U8,
    Attribute.NS_FD: _U32,
    Attribute.EID_IDX: _U16,
    Attribute.MSG_SEQ: _U32,
    Attribute.MSG_TYPE: _U32,
    Attribute.TRANSPORT_TYPE: _U32,
    Attribute.UPDATE_EID_RET: _S32,
    Attribute.EID_NUM: _U32,
    Attribute.STATUS: _S32,
    Attribute.EID_NS_MODE: _U8,
    Attribute.SL: _U32,
    Attribute.PRIORITY: _U32,
}
"""Every attribute that is a number; DEV_NAME is a string, all others are bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One request or one data reply; attributes are sent in the order of the mapping.

    ``family`` is the number the kernel gave to the family at boot.
    """

    command: Command
    attributes: Mapping[Attribute, Value] = field(default_factory=dict)
    family: int = 0
    flags: int = NLM_F_REQUEST | NLM_F_ACK
    sequence: int = 0
    port: int = 0

    def encode(self) -> bytes:
        """Return the complete netlink message.

        Raises:
            InvalidRequest: a value does not fit its attribute; it is named.
        """
        body = GENERIC.pack(self.command, FAMILY_VERSION, 0)
        body += b"".join(attribute(kind, _payload(kind, value)) for kind, value in self.attributes.items())
        return Frame(self.family, body, self.flags, self.sequence, self.port).encode()


def decode(frame: Frame) -> Message:
    """Read a request or a data reply. Attributes of a newer kernel are skipped, as the kernel skips ours.

    Raises:
        Malformed: with EOPNOTSUPP for an unknown command or version, EINVAL or ERANGE for a bad attribute.
    """
    if len(frame.body) < GENERIC.size:
        raise Malformed(f"ubcore message of {len(frame.body)} bytes has no generic netlink header")
    command, version, _ = GENERIC.unpack_from(frame.body)
    if command not in _COMMANDS or version != FAMILY_VERSION:
        raise Malformed(f"ubcore has no command {command} in version {version}", errno.EOPNOTSUPP)
    values = {
        Attribute(kind): _value(Attribute(kind), payload)
        for kind, payload in attributes(frame.body[GENERIC.size :])
        if kind in _ATTRIBUTES
    }
    return Message(Command(command), values, frame.kind, frame.flags, frame.sequence, frame.port)


_COMMANDS = frozenset(int(c) for c in Command)
_ATTRIBUTES = frozenset(int(a) for a in Attribute)


def _payload(kind: Attribute, value: Value) -> bytes:
    if number := _NUMBERS.get(kind):
        try:
            return number.pack(value)
        except struct.error:
            raise InvalidRequest(f"ubcore attribute {kind.name} cannot be {value!r}") from None
    if kind is Attribute.DEV_NAME:
        return _name(value)
    if not isinstance(value, bytes):
        raise InvalidRequest(f"ubcore attribute {kind.name} takes bytes, not {value!r}")
    return value


def _name(value: Value) -> bytes:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequest(f"{value!r} is not a device name")
    packed = value.encode() + b"\0"
    if len(packed) > MAX_DEVICE_NAME:
        raise InvalidRequest(f"device name {value!r} is longer than {MAX_DEVICE_NAME - 1} bytes")
    return packed


def _value(kind: Attribute, payload: bytes) -> Value:
    if number := _NUMBERS.get(kind):
        if len(payload) != number.size:
            raise Malformed(f"ubcore attribute {kind.name} has {len(payload)} bytes, not {number.size}", errno.ERANGE)
        return int(number.unpack(payload)[0])
    if kind is not Attribute.DEV_NAME:
        return payload
    name = payload.rstrip(b"\0")
    if not name or len(name) >= MAX_DEVICE_NAME:
        raise Malformed(f"ubcore device name of {len(name)} bytes", errno.ERANGE)
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed(f"ubcore device name {name!r} is not ASCII") from None
