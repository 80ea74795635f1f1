"""Framing, against bytes written by hand from linux/netlink.h, and against the kernel's own controller."""

import contextlib
import errno
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.errors import HostFault, NotFound
from ubhost.kernel.netlink import NETLINK_GENERIC, Netlink
from ubhost.netlink import NLMSG_ERROR, Frame, Malformed, acknowledgement, attribute, attributes, frames

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="bytes below are written for a little-endian host")

REQUEST = Frame(0x20, b"\x08\x01\x00\x00", flags=5, sequence=7, port=9).encode()


def test_a_header_is_length_type_flags_sequence_port() -> None:
    assert REQUEST.hex(" ", 4) == "14000000 20000500 07000000 09000000 08010000"


def test_an_attribute_is_padded_but_its_length_is_not() -> None:
    assert attribute(5, b"udma1\0").hex(" ", 2) == "0a00 0500 7564 6d61 3100 0000"


def test_an_acknowledgement_repeats_only_the_header() -> None:
    (frame,) = frames(acknowledgement(REQUEST, 0))
    assert (frame.kind, frame.flags, frame.sequence, frame.port) == (NLMSG_ERROR, 0x100, 7, 9)
    assert frame.status == 0
    assert frame.body == struct.pack("=i", 0) + REQUEST[:16]


def test_a_refusal_repeats_the_request() -> None:
    (frame,) = frames(acknowledgement(REQUEST, errno.EPERM))
    assert frame.status == errno.EPERM
    assert frame.body == struct.pack("=i", -errno.EPERM) + REQUEST
    assert frame.flags == 0


@given(st.lists(st.builds(Frame, st.integers(0, 65535), st.binary(max_size=30), st.integers(0, 65535))))
def test_a_datagram_comes_apart_into_the_messages_it_was_made_of(sent: list[Frame]) -> None:
    assert list(frames(b"".join(f.encode() for f in sent))) == sent


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=20))))
def test_attributes_come_apart_again(sent: list[tuple[int, bytes]]) -> None:
    assert list(attributes(b"".join(attribute(kind, payload) for kind, payload in sent))) == sent


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_as_malformed(data: bytes) -> None:
    for cut in (frames, attributes):
        with contextlib.suppress(Malformed):
            list(cut(data))


def test_a_length_beyond_the_datagram_is_refused() -> None:
    with pytest.raises(Malformed, match="claims 20 bytes, 18 are there"):
        list(frames(REQUEST[:18]))


def test_the_kernel_names_its_families() -> None:
    with Netlink(NETLINK_GENERIC) as netlink:
        assert netlink.family("nlctrl") == 0x10


def test_an_absent_family_is_not_found() -> None:
    with Netlink(NETLINK_GENERIC) as netlink, pytest.raises(NotFound, match="UB_NONE"):
        netlink.family("UB_NONE")


def test_an_absent_protocol_is_a_fault_of_the_host() -> None:
    with pytest.raises(HostFault, match="protocol 31"):
        Netlink(31)
