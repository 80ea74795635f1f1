"""What the ubcore driver can be told, one method a command.

An acknowledgement says that the driver took the command, not that it took effect: whoever must be sure reads
back (``ubhost.providers`` does).

Source: reference/ub.md sections 2 and 3 (umdk urma_admin; kernel ubcore_genl_admin.c).
"""

import ctypes
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count

from ubhost.errors import HostFault, Unsupported
from ubhost.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, Frame
from ubhost.ubcore.message import MAX_DEVICE_NAME, Attribute, Command, Message, Value, decode
from ubhost.ubcore.transport import Connect


class Refused(HostFault):
    """The driver answered a command with an errno, kept in ``code``; the cause is the same as ``OSError``."""

    def __init__(self, command: Command, subject: str, code: int) -> None:
        name = errno.errorcode.get(code, str(code))
        super().__init__(f"ubcore refused {command.name} of {subject}: {name} ({os.strerror(code)})")
        self.command = command
        self.code = code


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """The two namespace switches; ``None`` where the driver is too old to say."""

    dev_sharing: bool | None = None
    eid_sharing: bool | None = None


class _UpdateEid(ctypes.Structure):
    """Argument of ADD_EID and DEL_EID, read by the driver at the address we send."""

    _fields_ = (("dev_name", ctypes.c_char * MAX_DEVICE_NAME), ("eid_index", ctypes.c_uint32), ("ns_fd", ctypes.c_int))


class _SetEidMode(ctypes.Structure):
    _fields_ = (("dev_name", ctypes.c_char * MAX_DEVICE_NAME), ("eid_mode", ctypes.c_bool))


class _SetSl(ctypes.Structure):
    _fields_ = (("dev_name", ctypes.c_char * MAX_DEVICE_NAME), ("sl", ctypes.c_uint32), ("priority", ctypes.c_uint32))


class Ubcore:
    """One driver, reached through ``connect``; safe to share between threads."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._sequence = count(1)

    @contextmanager
    def connected(self) -> Iterator["Ubcore"]:
        """Give the same driver over one open channel, for many commands in a row by one thread."""
        with self._connect() as channel:
            yield Ubcore(lambda: nullcontext(channel))

    def show_system(self, netns: int | None = None) -> SystemInfo:
        """Return the namespace switches. ``netns`` is for simulators, which cannot see a namespace come to life.

        Raises:
            Refused: EOPNOTSUPP from a driver that lacks the command.
        """
        answer = self._data(Command.SHOW_SYSTEM, "the system", netns)

        def is_on(kind: Attribute) -> bool | None:
            return bool(answer[kind]) if kind in answer else None

        return SystemInfo(is_on(Attribute.DEV_NS_MODE), is_on(Attribute.EID_NS_MODE))

    def set_dev_sharing(self, on: bool) -> None:
        """Show every device in every namespace, or only where it was exposed.

        Raises:
            Refused: EPERM while any namespace but the first exists: do it at boot, before the container runtime.
        """
        self._do(Command.SET_DEV_NS_MODE, {Attribute.DEV_NS_MODE: int(on)}, "all devices")

    def set_eid_sharing(self, on: bool) -> None:
        self._do(Command.SET_EID_NS_MODE, {Attribute.EID_NS_MODE: int(on)}, "all EIDs")

    def move_device(self, device: str, netns: int) -> None:
        """Move the physical device; it disappears and appears again for everybody who watches."""
        self._do(Command.SET_DEV_NS, _in_namespace(device, netns), device, netns)

    def expose(self, device: str, netns: int) -> None:
        self._do(Command.EXPOSE_DEV_NS, _in_namespace(device, netns), device, netns)

    def unexpose(self, device: str, netns: int) -> None:
        """Take the logical device away; its EIDs return to the physical device's namespace."""
        self._do(Command.UNEXPOSE_DEV_NS, _in_namespace(device, netns), device, netns)

    def move_eid(self, device: str, index: int, netns: int) -> None:
        """Give EID slot ``index`` to a namespace in which the device is exposed."""
        what: dict[Attribute, Value] = {Attribute.DEV_NAME: device, Attribute.EID_IDX: index, Attribute.NS_FD: netns}
        self._do(Command.SET_DEV_EID_NS, what, f"{device} eid{index}", netns)

    def set_service_level(self, device: str, service_level: int, priority: int) -> None:
        """Map a jetty priority to a service level.

        Tools of today send attributes; drivers before them miss a struct in our memory and answer EINVAL.
        """
        what: dict[Attribute, Value] = {
            Attribute.DEV_NAME: device,
            Attribute.PRIORITY: priority,
            Attribute.SL: service_level,
        }
        try:
            self._do(Command.SET_SL, what, device)
        except Refused as refusal:
            if refusal.code != errno.EINVAL:
                raise
            self._with_pointer(Command.SET_SL, _SetSl(_c_name(device), service_level, priority), device, NLM_F_ACK)

    def add_eid(self, device: str, index: int, netns: int | None = None) -> None:
        """Ask the fabric manager for the EID of slot ``index``; the device must be in static mode."""
        self._update_eid(Command.ADD_EID, device, index, netns)

    def delete_eid(self, device: str, index: int) -> None:
        self._update_eid(Command.DEL_EID, device, index, None)

    def set_eid_mode(self, device: str, *, dynamic: bool) -> None:
        """Change who assigns EIDs. The driver drops every EID the device has."""
        argument = _SetEidMode(_c_name(device), dynamic)
        self._with_pointer(Command.SET_EID_MODE, argument, device, NLM_F_ACK)

    def _update_eid(self, command: Command, device: str, index: int, netns: int | None) -> None:
        argument = _UpdateEid(_c_name(device), index, -1 if netns is None else netns)
        subject = f"{device} eid{index}"
        answer = self._with_pointer(command, argument, subject, NLM_F_DUMP)
        results = [decode(f).attributes.get(Attribute.UPDATE_EID_RET) for f in answer if f.kind != NLMSG_DONE]
        if not results or results[-1] != 0:  # 1 means in progress: the driver repeats until it is done
            raise HostFault(f"ubcore did not finish {command.name} of {subject}: it said {results[-1:] or 'nothing'}")

    def _with_pointer(self, command: Command, argument: ctypes.Structure, subject: str, flags: int) -> list[Frame]:
        """Send a command whose argument the driver reads from our memory; ``argument`` lives until it answered."""
        with self._connect() as channel:
            what = {
                Attribute.HDR_ARGS_LEN: ctypes.sizeof(argument),
                Attribute.HDR_ARGS_ADDR: ctypes.addressof(argument),
            }
            request = Message(command, what, channel.family, NLM_F_REQUEST | flags, next(self._sequence), channel.port)
            return _checked(channel.ask(request.encode()), command, subject)

    def _do(self, command: Command, what: Mapping[Attribute, Value], subject: str, netns: int | None = None) -> None:
        with self._connect() as channel:
            request = Message(command, what, channel.family, sequence=next(self._sequence), port=channel.port)
            _checked(channel.ask(request.encode(), netns), command, subject)

    def _data(self, command: Command, subject: str, netns: int | None) -> Mapping[Attribute, Value]:
        with self._connect() as channel:
            request = Message(command, {}, channel.family, sequence=next(self._sequence), port=channel.port)
            answer = _checked(channel.ask(request.encode(), netns), command, subject)
            said = [frame for frame in answer if frame.kind not in (NLMSG_ERROR, NLMSG_DONE)]
            return decode(said[-1]).attributes if said else {}


def _in_namespace(device: str, netns: int) -> dict[Attribute, Value]:
    return {Attribute.DEV_NAME: device, Attribute.NS_FD: netns}


def _checked(answer: list[Frame], command: Command, subject: str) -> list[Frame]:
    """Return ``answer``, unless it says that the command failed."""
    if not answer:
        raise HostFault(f"ubcore gave no answer to {command.name} of {subject}")
    last = answer[-1]
    code = last.status if last.kind == NLMSG_ERROR else _done_status(last)
    if code:
        raise Refused(command, subject, code) from OSError(code, os.strerror(code))
    return answer


def _done_status(last: Frame) -> int:
    """A dump that failed at its start says so in the NLMSG_DONE."""
    return last.status if last.kind == NLMSG_DONE and len(last.body) >= 4 else 0


def _c_name(device: str) -> bytes:
    packed = device.encode()
    if len(packed) >= MAX_DEVICE_NAME:
        raise Unsupported(f"device name {device!r} is longer than {MAX_DEVICE_NAME - 1} bytes")
    return packed
