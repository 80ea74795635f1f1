"""SMC by netlink: bytes by hand from linux/smc.h, and a kernel that is played here.

Two real kernels are joined over SMC-R in the e2e guests.
"""

import errno
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ubhost.errors import Exhausted, HostFault, NotFound
from ubhost.kernel.netlink import NETLINK_GENERIC
from ubhost.netlink import NLMSG_DONE, Frame, acknowledgement, attribute, frames
from ubhost.smc import Connection, Fallback, Mode, Smc, pnet_id, user_eid

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="bytes below are written for a little-endian host")

FAMILY = 0x1C
Answer = Callable[[int | None, Frame, bytes], list[Frame]]


class Played:
    """Netlink sockets whose kernel is a function."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.heard: list[tuple[int | None, bytes]] = []

    @contextmanager
    def open(self, netns: int | None, protocol: int) -> Iterator[Any]:
        yield _Socket(self, netns)

    def ask(self, netns: int | None, request: bytes) -> list[Frame]:
        self.heard.append((netns, request))
        return self._answer(netns, next(frames(request)), request)


class _Socket:
    port = 9

    def __init__(self, played: Played, netns: int | None) -> None:
        self._played, self._netns = played, netns

    def family(self, name: str) -> int:
        return FAMILY

    def ask(self, request: bytes) -> list[Frame]:
        return self._played.ask(self._netns, request)


def dump(*bodies: bytes) -> Answer:
    return lambda _, frame, __: [
        *(Frame(FAMILY, b"\0\1\0\0" + body) for body in bodies), Frame(NLMSG_DONE, bytes(4))
    ]  # fmt: skip


def kernel(eids: list[str], refuse: int = 0) -> Played:
    """User EIDs as the kernel keeps them: padded with spaces."""

    def answer(netns: int | None, frame: Frame, request: bytes) -> list[Frame]:
        if frame.body[0] == 9:
            return dump(*(attribute(1, eid.ljust(32).encode() + b"\0") for eid in eids))(netns, frame, request)
        return list(frames(acknowledgement(request, refuse)))

    return Played(answer)


def test_a_user_eid_is_added_with_these_bytes_and_only_once() -> None:
    played = kernel([])
    Smc(played.open).add_user_eid("UB-1")
    expected = "3c000000 1c00 0500 02000000 09000000 0a 01 0000 2500 0100" + b"UB-1".ljust(32).hex() + "00 000000"
    assert played.heard[-1][1] == bytes.fromhex(expected)
    there = kernel(["UB-1"])
    Smc(there.open).add_user_eid("UB-1")
    assert len(there.heard) == 1  # it only looked


def test_a_fifth_user_eid_does_not_fit() -> None:
    with pytest.raises(Exhausted, match="4 and no more"):
        Smc(kernel(["A", "B", "C", "D"], errno.EINVAL).open).add_user_eid("UB-1")
    with pytest.raises(HostFault, match="EPERM"):
        Smc(kernel(["A"], errno.EPERM).open).add_user_eid("UB-1")


def test_a_user_eid_is_removed_only_where_it_is() -> None:
    played = kernel(["UB-1"])
    Smc(played.open).remove_user_eid("UB-2")
    assert len(played.heard) == 1
    Smc(played.open).remove_user_eid("UB-1")
    assert played.heard[-1][1][16] == 11


def test_a_pnet_id_is_said_to_the_host_of_the_device_and_in_the_pod_of_the_netdev() -> None:
    played = Played(lambda _, __, request: list(frames(acknowledgement(request, 0))))
    Smc(played.open).join("UB1", netdev="net1", netns=17, device="mlx5_0", port=2)
    (host, device), (pod, netdev) = played.heard
    assert (host, pod) == (None, 17)
    assert device[16:] == b"\2\1\0\0" + attribute(1, b"UB1\0") + attribute(3, b"mlx5_0\0") + attribute(4, b"\2")
    assert netdev[16:] == b"\2\1\0\0" + attribute(1, b"UB1\0") + attribute(2, b"net1\0")


def answering(code: int) -> Smc:
    return Smc(Played(lambda _, __, request: list(frames(acknowledgement(request, code)))).open)


def test_what_was_said_or_forgotten_already_is_no_error() -> None:
    answering(errno.EEXIST).join("UB1", netdev="net1", netns=17, device="mlx5_0")
    answering(errno.ENOENT).leave("UB1")
    with pytest.raises(HostFault, match="PNET id UB1 for RDMA device mlx5_0: EPERM"):
        answering(errno.EPERM).join("UB1", netdev="net1", netns=17, device="mlx5_0")


def test_devices_are_named_in_nests() -> None:
    device = attribute(6, attribute(1, struct.pack("=I", 0)) + attribute(10, b"rxe0\0") + attribute(8, b""))
    assert Smc(Played(dump(device)).open).devices() == ("rxe0",)
    assert Smc(Played(dump(device)).open).is_available()
    assert not Smc(Played(dump()).open).is_available()


def test_reasons_for_falling_back_are_counted() -> None:
    entry = attribute(8, attribute(4, struct.pack("=I", 0x03030000)) + attribute(5, struct.pack("=H", 3)))
    assert Smc(Played(dump(entry)).open).fallbacks() == (Fallback(0x03030000, 3),)


def diag(mode: int, reason: int | None = None) -> bytes:
    extra = b"" if reason is None else attribute(5, struct.pack("=II", reason, 0))
    return struct.pack("=BBBB48xIQ", 43, 1, mode, 0, 0, 0) + extra


def test_each_connection_says_how_it_travels() -> None:
    answer = [Frame(20, diag(0)), Frame(20, diag(1, 0x03030007)), Frame(20, diag(2)), Frame(NLMSG_DONE, bytes(4))]
    played = Played(lambda *_: answer)
    assert Smc(played.open).connections(17) == (
        Connection(Mode.SMC_R),
        Connection(Mode.TCP, 0x03030007),
        Connection(Mode.SMC_D),
    )
    netns, request = played.heard[0]
    assert netns == 17
    assert request[16:20] == b"\x2b\0\0\x10"
    assert len(request) == 16 + 4 + 48


def test_a_kernel_without_smc_says_so() -> None:
    with pytest.raises(NotFound, match="SMC_GEN_NETLINK"):
        Smc().devices()
    assert not Smc().is_available()
    refused = Played(lambda _, __, request: list(frames(acknowledgement(request, errno.ENOENT))))
    with pytest.raises(NotFound, match="no SMC diag"):
        Smc(refused.open).connections()


def test_names_are_the_same_on_every_host_and_fit_the_kernel() -> None:
    assert user_eid("ub") == user_eid("ub") != user_eid("ub2")
    assert len(user_eid("ub")) <= 32
    assert set(user_eid("ub")) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
    assert len(pnet_id("x" * 300)) == 16
    assert pnet_id("ub").isalnum()
    assert NETLINK_GENERIC == 16
