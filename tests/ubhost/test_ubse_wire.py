"""Bytes of UBSE's protocol, written by hand from reference/ub.md section 5 and the C client's own packing."""

import contextlib
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.errors import REASONS, Busy, Conflict, Exhausted, HostFault, InvalidRequest, NotFound, UbError, Unsupported
from ubhost.model import Eid
from ubhost.ubse import bodies, memory, wire
from ubhost.ubse.memory import Distance, FdCreate, FdMemory, FdWithLender, Lender, NumaCreate, NumaRegion, Owner
from ubhost.ubse.status import Status, UbseStatus, reason
from ubhost.ubse.wire import Malformed, MemOp, Module, NodeOp, Request, UrmaOp

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="bytes below are written for a little-endian host")


def test_a_request_opens_with_module_operation_and_length_in_host_order() -> None:
    request = Request(Module.URMA, UrmaOp.DEV_ALLOC, bodies.encode_urma_name("urma_1"))
    assert request.encode() == bytes.fromhex("0600 0600 07000000") + b"urma_1\0"


def test_a_reply_opens_with_status_and_length_in_host_order() -> None:
    assert wire.Reply(1007, b"ab").encode() == bytes.fromhex("ef030000 02000000") + b"ab"


def test_operations_have_the_numbers_of_this_generation() -> None:
    assert [int(m) for m in Module] == [1, 2, 6]
    assert [int(op) for op in UrmaOp] == list(range(1, 10))
    assert [int(op) for op in NodeOp] == list(range(1, 8))
    assert [int(op) for op in MemOp] == [*range(1, 10), 0x10, 0x11, 0x12, 0x13]


def test_a_limit_is_a_name_and_two_big_endian_numbers() -> None:
    packed = bodies.QosSet("urma_1", 8, 1600).encode()
    assert packed == b"urma_1\0" + bytes.fromhex("00000008 00000640")


def test_a_device_list_counts_big_endian_and_has_resource_ids_in_host_order() -> None:
    packed = bodies.encode_urma_list([bodies.UrmaInfo("urma_1", is_healthy=False, hw_res_id=0x0102)])
    assert packed.hex(" ") == "00 00 00 01 00 00 00 06 75 72 6d 61 5f 31 00 00 00 01 02 01 00 00 00 00 00 00"


def test_an_allocation_answers_with_three_paths_and_an_eid() -> None:
    paths = bodies.UrmaPaths("bonding_dev_1", ("udma2", "udma3"), Eid.from_words(7, 1, 2, 3))
    assert paths.encode() == b"".join(
        [
            b"\0\0\0\x19/dev/uburma/bonding_dev_1",
            b"\0\0\0\x11/dev/uburma/udma2",
            b"\0\0\0\x11/dev/uburma/udma3",
            b"\0\0\0\x27" + b"0000:0007:0000:0001:0000:0002:0000:0003",
        ]
    )


def test_a_node_has_fixed_fields() -> None:
    node = bodies.NodeInfo(3, (0, 1), "node3")
    assert node.encode() == bytes.fromhex("00000003 00000000 00000001") + b"node3".ljust(64, b"\0")


def test_memory_sizes_are_big_endian() -> None:
    packed = FdCreate("m", 128 << 20, Owner(1, 2, 3), 0o600, Distance.L1).encode()
    numbers = "0000000008000000 00000001 00000002 00000003 00000180 00000001"
    assert packed == b"m".ljust(48, b"\0") + bytes.fromhex(numbers)


def test_a_lender_follows_the_mode() -> None:
    packed = FdWithLender("m", Lender(1, 0, 2, 1 << 27), Owner(5, 6, 7), 0o640).encode()
    numbers = "00000005 00000006 00000007 000001a0 00000001 00000000 0000000000000002 0000000008000000"
    assert packed == b"m".ljust(48, b"\0") + bytes.fromhex(numbers)


def test_borrowed_memory_names_its_blocks_before_its_size() -> None:
    packed = FdMemory("m", (9,), 1 << 27, 1 << 27).encode()
    numbers = "00000001 0000000000000009 0000000008000000 0000000008000000"
    assert packed == b"m".ljust(48, b"\0") + bytes.fromhex(numbers)


def test_borrowing_as_a_numa_node_names_size_and_distance_or_a_lender() -> None:
    name = b"m".ljust(48, b"\0")
    assert NumaCreate("m", 128 << 20, Distance.L1).encode() == name + bytes.fromhex("0000000008000000 00000001")
    lender = "00000001 00000000 0000000000000002 0000000008000000"
    assert memory.NumaWithLender("m", Lender(1, 0, 2, 1 << 27)).encode() == name + bytes.fromhex(lender)


def test_a_numa_node_is_a_signed_number_and_negative_where_there_is_none() -> None:
    name = b"m".ljust(48, b"\0")
    assert NumaRegion("m", 2).encode() == name + bytes.fromhex("0000000000000002")
    assert NumaRegion.decode(name + b"\xff" * 8) == NumaRegion("m", -1)


def test_lists_begin_with_their_count_and_have_no_padding() -> None:
    assert bodies.encode_cpu_links([bodies.CpuLink(1, 2, 3, 4)]) == bytes.fromhex(
        "00000001 00000001 00000002 00000003 00000004"
    )
    sizes = {"lend_ratio": 25, "total": 1 << 34, "free": 5, "huge_pages": 6, "free_huge_pages": 7}
    assert bodies.encode_numa_memory([bodies.NumaMemory(1, 0, 2, is_remote=True, **sizes)]) == bytes.fromhex(
        "00000001 00000001 00000000 00000002 00000001 00000019 0000000400000000 0000000000000005 00000006 00000007"
    )
    assert memory.encode_list([]) == bytes(4)
    assert bodies.encode_node_list([bodies.NodeInfo(3, (0, 1), "n")])[:4] == bytes.fromhex("00000001")


def test_shared_and_exclusive_devices_are_asked_for_by_the_first_of_four_bytes() -> None:
    assert bodies.encode_urma_type(shared=False) == bytes(4)
    assert bodies.encode_urma_type(shared=True) == bytes.fromhex("01000000")


def test_the_memory_of_a_node_is_asked_for_in_host_order() -> None:
    assert bodies.encode_slot(5) == b"\5\0\0\0"


texts = st.text(st.characters(categories=["L", "N", "P"], max_codepoint=0x2FF), min_size=1, max_size=10)
u32s, u64s = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
devices = st.from_regex(r"\A[a-z][a-z0-9_]{0,20}\Z")
eids = st.builds(Eid, st.integers(0, 2**128 - 1))
owners = st.builds(Owner, u32s, u32s, u32s)
lenders = st.builds(Lender, u32s, u32s, u64s, u64s)
fds = st.builds(FdMemory, texts, st.lists(u64s, max_size=5).map(tuple), u64s, u64s)
regions = st.builds(NumaRegion, texts, st.integers(-(2**63), 2**63 - 1))
infos = st.builds(bodies.UrmaInfo, texts, st.booleans(), u64s)
nodes = st.builds(bodies.NodeInfo, u32s, st.tuples(u32s, u32s), texts)
links = st.builds(bodies.CpuLink, u32s, u32s, u32s, u32s)
numas = st.builds(bodies.NumaMemory, u32s, u32s, u32s, st.booleans(), u32s, u64s, u64s, u32s, u32s)


@given(
    st.one_of(
        st.builds(bodies.UrmaPaths, devices, st.tuples(devices, devices), eids),
        st.builds(bodies.QosSet, texts, u32s, u32s),
        nodes,
        fds,
        regions,
        st.builds(FdCreate, texts, u64s, owners, u32s, st.sampled_from(Distance)),
        st.builds(FdWithLender, texts, lenders, owners, u32s),
        st.builds(NumaCreate, texts, u64s, st.sampled_from(Distance)),
        st.builds(memory.NumaWithLender, texts, lenders),
    )
)
def test_every_body_is_read_back(value: FdMemory) -> None:
    assert type(value).decode(value.encode()) == value


@given(st.tuples(*map(st.lists, (infos, nodes, links, numas, fds, regions))))
def test_every_list_is_read_back(lists: tuple[list[object], ...]) -> None:
    pairs: list[tuple[Callable[..., bytes], Callable[[bytes], tuple[object, ...]]]] = [
        (bodies.encode_urma_list, bodies.decode_urma_list),
        (bodies.encode_node_list, bodies.decode_node_list),
        (bodies.encode_cpu_links, bodies.decode_cpu_links),
        (bodies.encode_numa_memory, bodies.decode_numa_memory),
        (memory.encode_list, memory.decode_fd_list),
        (memory.encode_list, memory.decode_numa_list),
    ]
    for (encode, decode), items in zip(pairs, lists, strict=True):
        assert decode(encode(items)) == tuple(items)


DECODERS: list[Callable[[bytes], object]] = [
    bodies.decode_urma_list,
    bodies.decode_urma_name,
    bodies.decode_limits,
    bodies.decode_node_list,
    bodies.decode_cpu_links,
    bodies.decode_numa_memory,
    bodies.UrmaPaths.decode,
    bodies.NodeInfo.decode,
    bodies.QosSet.decode,
    memory.decode_fd_list,
    memory.decode_numa_list,
    memory.decode_mem_name,
    FdCreate.decode,
    FdMemory.decode,
    NumaRegion.decode,
]


@given(st.sampled_from(DECODERS), st.binary(max_size=200))
def test_any_body_is_read_or_refused_as_malformed(decode: Callable[[bytes], object], data: bytes) -> None:
    with contextlib.suppress(Malformed):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data", "complaint"),
    [
        (bodies.decode_urma_list, b"\xff\xff\xff\xff", "4294967295 items in 0 bytes"),
        (bodies.decode_urma_name, b"x" * 40, "without an end in 32 bytes"),
        (bodies.decode_urma_name, b"urma_1\0more", "4 bytes too many"),
        (bodies.decode_urma_name, b"a\nb\0", "control characters"),
        (bodies.decode_urma_name, b"a\xff\0", "not UTF-8"),
        (bodies.decode_limits, b"\0" * 7, "ends 1 bytes too early"),
        (bodies.UrmaPaths.decode, wire.text("/dev/uburma/../mem") * 4, "where a device"),
        (bodies.UrmaPaths.decode, wire.text("udma1") * 4, "wrong EID"),
        (bodies.UrmaPaths.decode, wire.text("x" * 64), "64 bytes, at most 63"),
    ],
)
def test_what_ubse_may_not_say_is_refused(decode: Callable[[bytes], object], data: bytes, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        decode(data)


def test_a_name_too_long_for_ubse_is_never_sent() -> None:
    assert bodies.encode_urma_name("x" * 31)
    with pytest.raises(InvalidRequest, match="1 to 31 bytes"):
        bodies.encode_urma_name("x" * 32)


def test_a_number_too_large_is_never_sent() -> None:
    with pytest.raises(InvalidRequest, match="4294967296 does not fit into 32 bits"):
        bodies.QosSet("urma_1", 0, 2**32).encode()


def test_a_body_over_the_limit_is_neither_sent_nor_read() -> None:
    with pytest.raises(InvalidRequest, match="40961"):
        Request(Module.URMA, 1, bytes(40961)).encode()
    with pytest.raises(Malformed, match="40961"):
        wire.reply_header(wire.REPLY.pack(0, 40961))
    with pytest.raises(Malformed, match="40961"):
        wire.request_header(wire.REQUEST.pack(6, 1, 40961))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.ENGINE_OUT_OF_RANGE, InvalidRequest),
        (Status.ENGINE_RESOURCE, Exhausted),
        (Status.ENGINE_EXISTED, Conflict),
        (Status.ENGINE_NOT_EXIST, NotFound),
        (Status.ENGINE_CREATING, Busy),
        (Status.ENGINE_DELETING, Busy),
        (Status.ENGINE_ALLOCATE, Exhausted),
        (Status.NOT_SUPPORTED, Unsupported),
        (Status.ENGINE_AUTH_FAILED, HostFault),
    ],
)
def test_a_status_is_a_reason(status: Status, kind: type[UbError]) -> None:
    error = reason(status, "UBSE FD_GET of m")
    assert type(error) is kind
    assert str(error).startswith(f"UBSE FD_GET of m: UBSE status {int(status)} {status.name}")
    assert isinstance(error.__cause__, UbseStatus)
    assert error.__cause__.code == status


@given(st.integers(1, 2**32 - 1))
def test_an_unknown_status_is_a_fault_that_tells_its_number(code: int) -> None:
    error = reason(code, "x")
    assert type(error) in REASONS
    assert str(code) in str(error)
