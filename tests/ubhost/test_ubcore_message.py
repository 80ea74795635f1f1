"""Each command byte by byte, from the attribute table of reference/ub.md section 2, and once more by pyroute2."""

import contextlib
import errno
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import genlmsg

from ubhost.errors import InvalidRequest
from ubhost.netlink import GENERIC, NLM_F_REQUEST, Frame, Malformed, attribute, frames
from ubhost.ubcore.message import MAX_DEVICE_NAME, Attribute, Command, Message, Value, decode

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="bytes below are written for a little-endian host")

NAME = "0a00 0500 7564 6d61 3100 0000"  # attribute 5: "udma1", NUL, padding
NS_FD = "0800 0600 1100 0000"  # attribute 6: 17
TARGET: dict[Attribute, Value] = {Attribute.DEV_NAME: "udma1", Attribute.NS_FD: 17}

PINNED: list[tuple[Command, dict[Attribute, Value], str, str]] = [
    (Command.SET_DEV_NS_MODE, {Attribute.DEV_NS_MODE: 0}, "06", "0500 0400 0000 0000"),
    (Command.SET_DEV_NS, TARGET, "07", f"{NAME} {NS_FD}"),
    (Command.EXPOSE_DEV_NS, TARGET, "08", f"{NAME} {NS_FD}"),
    (Command.UNEXPOSE_DEV_NS, TARGET, "09", f"{NAME} {NS_FD}"),
    (
        Command.SET_DEV_EID_NS,
        {Attribute.DEV_NAME: "udma1", Attribute.EID_IDX: 3, Attribute.NS_FD: 17},
        "0a",
        f"{NAME} 0600 0700 0300 0000 {NS_FD}",
    ),
    (
        Command.SET_SL,
        {Attribute.DEV_NAME: "udma1", Attribute.PRIORITY: 5, Attribute.SL: 2},
        "0c",
        f"{NAME} 0800 1600 0500 0000 0800 1500 0200 0000",
    ),
    (Command.SET_EID_NS_MODE, {Attribute.EID_NS_MODE: 1}, "2b", "0500 1400 0100 0000"),
    (Command.SHOW_SYSTEM, {}, "2e", ""),
    (
        Command.ADD_EID,
        {Attribute.HDR_ARGS_LEN: 72, Attribute.HDR_ARGS_ADDR: 0x0102030405060708},
        "03",
        "0800 0200 4800 0000 0c00 0300 0807 0605 0403 0201",
    ),
    (
        Command.DEL_EID,
        {Attribute.HDR_ARGS_LEN: 72, Attribute.HDR_ARGS_ADDR: 1},
        "04",
        "0800 0200 4800 0000 0c00 0300 0100 0000 0000 0000",
    ),
    (
        Command.SET_EID_MODE,
        {Attribute.HDR_ARGS_LEN: 65, Attribute.HDR_ARGS_ADDR: 1},
        "05",
        "0800 0200 4100 0000 0c00 0300 0100 0000 0000 0000",
    ),
    (
        Command.SHOW_SYSTEM,
        {Attribute.DEV_NS_MODE: 1, Attribute.EID_NS_MODE: 0},
        "2e",
        "0500 0400 0100 0000 0500 1400 0000 0000",
    ),
    (Command.ADD_EID, {Attribute.UPDATE_EID_RET: -17}, "03", "0800 0e00 efff ffff"),
]


@pytest.mark.parametrize(("command", "what", "number", "body"), PINNED, ids=[f"{p[0].name} {p[3]}" for p in PINNED])
def test_a_command_has_these_bytes(command: Command, what: dict[Attribute, Value], number: str, body: str) -> None:
    wire = Message(command, what, family=0x20, sequence=7, port=9).encode()
    payload = bytes.fromhex(f"{number} 01 0000 {body}")
    header = (16 + len(payload)).to_bytes(4, "little") + bytes.fromhex("2000 0500 07000000 09000000")
    assert wire == header + payload
    assert decode(next(frames(wire))) == Message(command, what, family=0x20, sequence=7, port=9)


class OracleMessage(genlmsg):  # type: ignore[misc]
    """The same table in pyroute2's words: an encoder that we did not write."""

    prefix = "UBCORE_"
    nla_map = (
        ("UBCORE_UNSPEC", "none"),
        ("UBCORE_HDR_COMMAND", "uint32"),
        ("UBCORE_HDR_ARGS_LEN", "uint32"),
        ("UBCORE_HDR_ARGS_ADDR", "uint64"),
        ("UBCORE_DEV_NS_MODE", "uint8"),
        ("UBCORE_DEV_NAME", "asciiz"),
        ("UBCORE_NS_FD", "uint32"),
        ("UBCORE_EID_IDX", "uint16"),
    )


@pytest.mark.parametrize("index", [0, 1, 1023])
def test_pyroute2_encodes_the_move_of_an_eid_to_the_same_bytes(index: int) -> None:
    oracle = OracleMessage()
    oracle["header"].update({"type": 0x20, "flags": 5, "sequence_number": 7, "pid": 9})
    oracle.update({"cmd": int(Command.SET_DEV_EID_NS), "version": 1})
    oracle["attrs"] = [["UBCORE_DEV_NAME", "bonding_dev_12"], ["UBCORE_EID_IDX", index], ["UBCORE_NS_FD", 17]]
    oracle.encode()
    what: dict[Attribute, Value] = {
        Attribute.DEV_NAME: "bonding_dev_12",
        Attribute.EID_IDX: index,
        Attribute.NS_FD: 17,
    }
    assert Message(Command.SET_DEV_EID_NS, what, family=0x20, sequence=7, port=9).encode() == bytes(oracle.data)


names = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=63)
values = st.fixed_dictionaries(
    {},
    optional={
        Attribute.DEV_NAME: names,
        Attribute.EID_IDX: st.integers(0, 65535),
        Attribute.NS_FD: st.integers(0, 2**32 - 1),
        Attribute.HDR_ARGS_ADDR: st.integers(0, 2**64 - 1),
        Attribute.UPDATE_EID_RET: st.integers(-(2**31), 2**31 - 1),
        Attribute.DEV_NS_MODE: st.integers(0, 255),
        Attribute.EID: st.binary(min_size=16, max_size=16),
    },
)


@given(st.sampled_from(Command), values, st.integers(0, 2**32 - 1))
def test_what_was_encoded_is_decoded(command: Command, what: dict[Attribute, Value], sequence: int) -> None:
    sent = Message(command, what, family=0x20, flags=NLM_F_REQUEST, sequence=sequence, port=1)
    assert decode(next(frames(sent.encode()))) == sent


@given(st.binary(max_size=80))
def test_any_body_is_read_or_refused_as_malformed(body: bytes) -> None:
    with contextlib.suppress(Malformed):
        decode(Frame(0x20, body))


def test_an_attribute_of_a_newer_kernel_is_skipped() -> None:
    body = GENERIC.pack(Command.SHOW_SYSTEM, 1, 0) + attribute(99, b"news") + attribute(4, b"\1")
    assert decode(Frame(0x20, body)).attributes == {Attribute.DEV_NS_MODE: 1}


def test_an_unknown_command_is_not_supported() -> None:
    with pytest.raises(Malformed, match="no command 99") as caught:
        decode(Frame(0x20, GENERIC.pack(99, 1, 0)))
    assert caught.value.code == errno.EOPNOTSUPP


def test_a_number_of_the_wrong_size_is_out_of_range() -> None:
    with pytest.raises(Malformed, match="EID_IDX has 4 bytes, not 2") as caught:
        decode(Frame(0x20, GENERIC.pack(Command.SET_DEV_EID_NS, 1, 0) + attribute(7, bytes(4))))
    assert caught.value.code == errno.ERANGE


@pytest.mark.parametrize("name", ["", "a\0b", "x" * MAX_DEVICE_NAME])
def test_a_name_the_driver_would_not_take_is_never_sent(name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        Message(Command.EXPOSE_DEV_NS, {Attribute.DEV_NAME: name}).encode()


def test_a_number_that_does_not_fit_is_never_sent() -> None:
    with pytest.raises(InvalidRequest, match="EID_IDX cannot be 65536"):
        Message(Command.SET_DEV_EID_NS, {Attribute.EID_IDX: 65536}).encode()
