import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_ub import wire

names = st.binary(min_size=1, max_size=8).filter(lambda b: b"=" not in b and b"\0" not in b)
values = st.binary(max_size=20).filter(lambda b: b"\0" not in b)


@given(st.dictionaries(names, values, max_size=5), st.binary(max_size=16), st.binary(max_size=40))
def test_a_request_arrives_as_it_was_sent(environ: dict[bytes, bytes], nonce: bytes, stdin: bytes) -> None:
    assert wire.parse_request(wire.request(environ, nonce, stdin)) == (environ, nonce, stdin)


@given(st.dictionaries(names, values, max_size=3), st.binary(max_size=16), st.binary(max_size=40), st.integers(0, 99))
def test_a_request_is_whole_or_refused(environ: dict[bytes, bytes], nonce: bytes, stdin: bytes, cut: int) -> None:
    data = wire.request(environ, nonce, stdin)
    for broken in (data[: cut % len(data)], data + b"x"):
        with pytest.raises(wire.Malformed):
            wire.parse_request(broken)


@pytest.mark.parametrize("variables", [b"A", b"A=1", b"A\0", b"A=1\0B"])
def test_variables_without_a_value_or_an_end_are_refused(variables: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.parse_request(wire.REQUEST.pack(len(variables), 0, 0) + variables)


@given(st.integers(0, 255), st.binary(max_size=40), st.integers(0, 47))
def test_an_answer_is_whole_or_refused(code: int, document: bytes, cut: int) -> None:
    data = wire.answer(code, document)
    assert wire.parse_answer(data) == (code, document)
    if cut < len(data):
        with pytest.raises(wire.Malformed):
            wire.parse_answer(data[:cut])
