"""Bytes in, calls out: the framing against bytes written by hand, and against every way of cutting them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos.ttrpc import frame, mux
from nri_qos.ttrpc.frame import Frame, Kind, Oversized, ProtocolError
from nri_qos.ttrpc.session import Answer, Call, Session, Status

frames = st.builds(Frame, st.integers(0, 2**32 - 1), st.sampled_from(Kind), st.binary(max_size=50), st.integers(0, 255))
cuts = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def cut(wire: bytes, sizes: list[int]) -> list[bytes]:
    """Return ``wire`` in pieces of ``sizes``, over and over."""
    pieces: list[bytes] = []
    at = 0
    while at < len(wire):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(wire[at : at + size])
        at += size
    return pieces


@given(st.lists(frames), cuts)
def test_frames_survive_any_split(sent: list[Frame], sizes: list[int]) -> None:
    decoder = frame.Decoder()
    wire = b"".join(f.encode() for f in sent)
    assert [f for piece in cut(wire, sizes) for f in decoder.feed(piece)] == sent


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(min_size=1, max_size=9000)), max_size=5), cuts)
def test_connections_survive_any_split_of_the_trunk(sent: list[tuple[int, bytes]], sizes: list[int]) -> None:
    wire = b"".join(mux.encode(connection, data) for connection, data in sent)
    decoder = mux.Decoder()
    got: dict[int, bytes] = {}
    for piece in cut(wire, [size * 50 for size in sizes]):
        for connection, data in decoder.feed(piece):
            got[connection] = got.get(connection, b"") + data
    assert got == {c: b"".join(data for other, data in sent if other == c) for c, _ in sent}


@given(st.integers(0, 5), st.binary(max_size=20_000))
def test_no_frame_on_the_trunk_is_larger_than_the_runtime_can_read(connection: int, data: bytes) -> None:
    wire = mux.encode(connection, data)
    at = 0
    while at < len(wire):
        _, length = mux.HEADER.unpack_from(wire, at)
        assert 0 < length <= 4096
        at += mux.HEADER.size + length


def test_a_trunk_frame_over_the_limit_ends_the_connection_before_its_data_arrives() -> None:
    with pytest.raises(ProtocolError, match=str(mux.MAX_PAYLOAD)):
        mux.Decoder().feed(mux.HEADER.pack(1, mux.MAX_PAYLOAD + 1))


def test_an_unknown_frame_kind_ends_the_connection() -> None:
    with pytest.raises(ProtocolError, match="kind 9"):
        frame.Decoder().feed(frame.HEADER.pack(0, 1, 9, 0))


@given(cuts)
def test_an_oversized_frame_is_dropped_and_the_next_one_is_read(sizes: list[int]) -> None:
    length = frame.MAX_DATA + 3
    wire = frame.HEADER.pack(length, 7, Kind.REQUEST, 0) + bytes(length) + Frame(9, Kind.REQUEST, b"next").encode()
    decoder = frame.Decoder()
    got = [f for piece in cut(wire, [size * 50_000 for size in sizes]) for f in decoder.feed(piece)]
    assert got == [Oversized(7, Kind.REQUEST, length), Frame(9, Kind.REQUEST, b"next")]


def test_a_call_is_what_ttrpc_says_it_is() -> None:
    session = Session()
    assert session.call("S", "M", b"\x01", timeout_s=2) == 1
    request = b"\x0a\x01S\x12\x01M\x1a\x01\x01\x20\x80\xa8\xd6\xb9\x07"
    assert session.take_output() == b"\0\0\0\x02\0\0\0\x19" + b"\0\0\0\x0f\0\0\0\x01\x01\0" + request
    assert session.call("S", "M", b"") == 3


def pump(a: Session, b: Session, sizes: list[int] | None = None) -> list[Call | Answer]:
    """Carry what ``a`` has to send to ``b`` and return what ``b`` makes of it."""
    return [event for piece in cut(a.take_output(), sizes or [1 << 20]) for event in b.receive(piece)]


def pair() -> tuple[Session, Session]:
    return Session(), Session(serves=mux.RUNTIME, calls=mux.PLUGIN)


@given(st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=9000)), max_size=4), cuts)
def test_calls_and_answers_cross_in_both_directions(asked: list[tuple[str, bytes]], sizes: list[int]) -> None:
    plugin, runtime = pair()
    sizes = [size * 97 for size in sizes]
    for method, payload in asked:
        plugin.call("nri", method, payload)
        runtime.call("nri", method, payload)
    at_runtime, at_plugin = pump(plugin, runtime, sizes), pump(runtime, plugin, sizes)
    for session, calls in ((runtime, at_runtime), (plugin, at_plugin)):
        assert [(c.method, c.payload) for c in calls if isinstance(c, Call)] == asked
        for call in calls:
            assert isinstance(call, Call)
            session.answer(call, call.payload[::-1])
    for answers in (pump(plugin, runtime, sizes), pump(runtime, plugin, sizes)):
        assert [(a.code, a.payload) for a in answers if isinstance(a, Answer)] == [(0, p[::-1]) for _, p in asked]


def test_a_refusal_carries_code_and_message() -> None:
    plugin, runtime = pair()
    runtime.call("nri", "FooBar", b"")
    (call,) = pump(runtime, plugin)
    assert isinstance(call, Call)
    plugin.refuse(call, Status.UNIMPLEMENTED, "no FooBar")
    assert pump(plugin, runtime) == [Answer(1, "FooBar", 12, "no FooBar", b"")]


def test_an_answer_over_four_mebibytes_becomes_a_refusal() -> None:
    plugin, runtime = pair()
    runtime.call("nri", "Synchronize", b"")
    (call,) = pump(runtime, plugin)
    assert isinstance(call, Call)
    plugin.answer(call, bytes(frame.MAX_DATA))
    (answer,) = pump(plugin, runtime)
    assert isinstance(answer, Answer)
    assert answer.code == Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("stream", [0, 2, 5])
def test_a_used_or_even_stream_id_is_refused_and_the_session_goes_on(stream: int) -> None:
    plugin, _ = pair()
    request = b"\x0a\x01S\x12\x01M"
    plugin.receive(mux.encode(mux.PLUGIN, Frame(5, Kind.REQUEST, request).encode()))
    assert plugin.receive(mux.encode(mux.PLUGIN, Frame(stream, Kind.REQUEST, request).encode())) == []
    assert b"stream id" in plugin.take_output()
    assert plugin.receive(mux.encode(mux.PLUGIN, Frame(7, Kind.REQUEST, request).encode())) == [Call(7, "S", "M", b"")]


def test_a_request_that_is_not_protobuf_is_refused_and_the_session_goes_on() -> None:
    plugin, runtime = pair()
    plugin.receive(mux.encode(mux.PLUGIN, Frame(1, Kind.REQUEST, b"\xff\xff").encode()))
    assert b"not protobuf" in plugin.take_output()
    runtime.call("nri", "A", b"")
    runtime.call("nri", "B", b"")
    runtime.take_output()


def test_an_answer_nobody_waits_for_and_an_unknown_connection_are_skipped() -> None:
    plugin, _ = pair()
    assert plugin.receive(mux.encode(mux.RUNTIME, Frame(1, Kind.RESPONSE, b"").encode())) == []
    assert plugin.receive(mux.encode(77, b"anything")) == []
