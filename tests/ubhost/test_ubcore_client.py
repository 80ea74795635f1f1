"""The client against a driver that is played here, in the same process, so that it can follow pointers."""

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ubhost.errors import HostFault, NotFound, Unsupported
from ubhost.netlink import NLM_F_DUMP, NLMSG_DONE, Frame, acknowledgement, frames
from ubhost.ubcore.client import Refused, SystemInfo, Ubcore
from ubhost.ubcore.message import Attribute, Command, Message, decode
from ubhost.ubcore.transport import KernelChannel, SimulatorChannel

Answer = Callable[[Message, bytes], list[Frame]]


class Played:
    """A channel whose driver is a function."""

    family, port = 0x33, 4711

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.heard: list[tuple[Message, int | None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def ask(self, request: bytes, netns: int | None = None) -> list[Frame]:
        (frame,) = frames(request)
        message = decode(frame)
        self.heard.append((message, netns))
        return self._answer(message, request)


def acknowledge(_: Message, request: bytes) -> list[Frame]:
    return list(frames(acknowledgement(request, 0)))


def refuse(code: int) -> Answer:
    return lambda _, request: list(frames(acknowledgement(request, code)))


def client(channel: Played) -> Ubcore:
    return Ubcore(lambda: channel)


def test_moving_an_eid_names_device_slot_and_namespace() -> None:
    channel = Played(acknowledge)
    client(channel).move_eid("udma1", 3, 17)
    ((message, netns),) = channel.heard
    assert message.command is Command.SET_DEV_EID_NS
    assert message.attributes == {Attribute.DEV_NAME: "udma1", Attribute.EID_IDX: 3, Attribute.NS_FD: 17}
    assert (message.family, message.port, netns) == (0x33, 4711, 17)


def test_a_refusal_names_the_command_the_object_and_the_reason() -> None:
    with pytest.raises(Refused, match=r"EXPOSE_DEV_NS of udma1: EPERM") as caught:
        client(Played(refuse(errno.EPERM))).expose("udma1", 17)
    assert caught.value.code == errno.EPERM
    assert isinstance(caught.value.__cause__, OSError)


def test_the_system_says_what_is_shared() -> None:
    def answer(message: Message, request: bytes) -> list[Frame]:
        reply = Message(Command.SHOW_SYSTEM, {Attribute.DEV_NS_MODE: 1, Attribute.EID_NS_MODE: 0}, message.family)
        return list(frames(reply.encode() + acknowledgement(request, 0)))

    assert client(Played(answer)).show_system() == SystemInfo(dev_sharing=True, eid_sharing=False)


def test_an_older_driver_leaves_eid_sharing_open() -> None:
    def answer(message: Message, _: bytes) -> list[Frame]:
        return list(frames(Message(Command.SHOW_SYSTEM, {Attribute.DEV_NS_MODE: 0}, message.family).encode()))

    assert client(Played(answer)).show_system() == SystemInfo(dev_sharing=False, eid_sharing=None)


def test_a_silent_driver_is_a_fault() -> None:
    with pytest.raises(HostFault, match="gave no answer"):
        client(Played(lambda *_: [])).set_dev_sharing(False)


def dump_of_results(*results: int) -> tuple[Answer, list[bytes]]:
    """A driver that reads the argument at the address in the message, and reports progress like the kernel's."""
    read: list[bytes] = []

    def answer(message: Message, _: bytes) -> list[Frame]:
        address, size = message.attributes[Attribute.HDR_ARGS_ADDR], message.attributes[Attribute.HDR_ARGS_LEN]
        assert isinstance(address, int)
        assert isinstance(size, int)
        assert message.flags & NLM_F_DUMP == NLM_F_DUMP
        read.append(ctypes.string_at(address, size))
        said = (Message(message.command, {Attribute.UPDATE_EID_RET: r}, message.family) for r in results)
        return [f for m in said for f in frames(m.encode())] + [Frame(NLMSG_DONE, struct.pack("=i", 0))]

    return answer, read


def test_adding_an_eid_passes_a_struct_by_address_and_waits_until_it_is_done() -> None:
    answer, read = dump_of_results(1, 1, 0)
    client(Played(answer)).add_eid("udma1", 2, netns=17)
    assert read == [b"udma1".ljust(64, b"\0") + struct.pack("=Ii", 2, 17)]


def test_deleting_an_eid_names_no_namespace() -> None:
    answer, read = dump_of_results(0)
    client(Played(answer)).delete_eid("udma1", 2)
    assert read == [b"udma1".ljust(64, b"\0") + struct.pack("=Ii", 2, -1)]


@pytest.mark.parametrize("results", [(), (1,), (1, -22)])
def test_an_eid_that_was_not_added_is_a_fault(results: tuple[int, ...]) -> None:
    answer, _ = dump_of_results(*results)
    with pytest.raises(HostFault, match="ADD_EID of udma1 eid2"):
        client(Played(answer)).add_eid("udma1", 2)


def test_a_dump_refused_at_its_start_says_why() -> None:
    def answer(*_: object) -> list[Frame]:
        return [Frame(NLMSG_DONE, struct.pack("=i", -errno.EPERM))]

    with pytest.raises(Refused, match="EPERM"):
        client(Played(answer)).add_eid("udma1", 2)


def test_changing_who_assigns_eids_passes_a_name_and_a_flag() -> None:
    read: list[bytes] = []

    def answer(message: Message, request: bytes) -> list[Frame]:
        address = message.attributes[Attribute.HDR_ARGS_ADDR]
        assert isinstance(address, int)
        read.append(ctypes.string_at(address, 65))
        return acknowledge(message, request)

    client(Played(answer)).set_eid_mode("udma1", dynamic=True)
    assert read == [b"udma1".ljust(64, b"\0") + b"\1"]


def test_a_driver_that_misses_a_struct_is_told_the_service_level_once_more_in_one() -> None:
    read: list[bytes] = []

    def answer(message: Message, request: bytes) -> list[Frame]:
        address = message.attributes.get(Attribute.HDR_ARGS_ADDR)
        if not isinstance(address, int):
            return refuse(errno.EINVAL)(message, request)
        read.append(ctypes.string_at(address, 72))
        return acknowledge(message, request)

    channel = Played(answer)
    client(channel).set_service_level("udma1", service_level=2, priority=5)
    assert channel.heard[0][0].attributes == {
        Attribute.DEV_NAME: "udma1", Attribute.PRIORITY: 5, Attribute.SL: 2,
    }  # fmt: skip
    assert read == [b"udma1".ljust(64, b"\0") + struct.pack("=II", 2, 5)]


def test_without_the_driver_its_family_is_not_found() -> None:
    with pytest.raises(NotFound, match="UB_ABSENT"):
        KernelChannel("UB_ABSENT")


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[tuple[Path, list[tuple[Message, int]]]]:
    """A socket like the simulator's, that acknowledges everything and notes the namespaces it was handed."""
    path, heard = tmp_path / "kernel.sock", []  # type: tuple[Path, list[tuple[Message, int]]]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            request, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
            heard.append((decode(next(frames(request))), os.fstat(descriptors[0]).st_ino))
            os.close(descriptors[0])
            connection.send(acknowledgement(request, 0))

    thread = threading.Thread(target=serve)
    thread.start()
    yield path, heard
    thread.join(timeout=60)
    listener.close()


def test_the_simulator_gets_the_same_bytes_and_the_namespace_itself(
    simulator: tuple[Path, list[tuple[Message, int]]],
) -> None:
    path, heard = simulator
    netns = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        Ubcore(lambda: SimulatorChannel(path)).expose("udma1", netns)
        ((message, inode),) = heard
        assert message.attributes == {Attribute.DEV_NAME: "udma1", Attribute.NS_FD: netns}
        assert inode == os.fstat(netns).st_ino
    finally:
        os.close(netns)


def test_without_a_simulator_the_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"kernel\.sock"):
        SimulatorChannel(tmp_path / "kernel.sock")
