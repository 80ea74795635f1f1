"""Amounts and sizes, as all plugins read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.errors import InvalidRequest
from ubhost.quantity import MOST, number, size, thousandths, whole

KUBERNETES = {
    "0": 0, "4096": 4096, "+5": 5, "1k": 1000, "1Ki": 1024, "512Mi": 512 << 20, "4Gi": 4 << 30, "1T": 10**12,
    "1.5Gi": 3 << 29, ".5Ki": 512, "1.": 1, "1.1Gi": 1181116007, "1e3": 1000, "1E3": 1000, "2E": 2 * 10**18,
    "1Ei": 1 << 60, "5e-1": 1, "128974848": 128974848, "0.1": 1, str(MOST): MOST,
}  # fmt: skip
NONE: tuple[object, ...] = (
    "", " ", "x", "Mi", ".", "+", "B", "-1", "-0", "--1", "1 Gi", "1Gi ", "1Gi\n", "1K", "1KB", "1mi", "1Gib", "1mm",
    "1iB", "12e-2k", "inf", "nan", "Infinity", "0x10", "1_000", "1,5", "1e400", "1e999999999", "1e", "1e3Gi",
    "1e3.5", "8Ei", "10E", "9" * 19, "1" * 20, "1" * 5000, "0." + "1" * 5000, "1e" + "1" * 5000,
    "\u0663Gi", "\uff14Gi", "²", "1\0", "\udcff",
    None, True, float("inf"), float("nan"), -1, -0.5, [], {}, 1 << 63,
)  # fmt: skip


@pytest.mark.parametrize("text", KUBERNETES)
def test_a_size_is_what_kubernetes_makes_of_it(text: str) -> None:
    assert whole(text) == size(text) == KUBERNETES[text]


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 500), (2, 2000), (0.5, 500), ("1", 1000), ("1.5", 1500), ("100u", 1), (1e-07, 1)]
)
def test_cpus_are_counted_in_thousandths_as_kubelet_does(text: object, value: int) -> None:
    assert thousandths(text) == value


@pytest.mark.parametrize(("text", "value"), [("512MiB", 512 << 20), ("5GB", 5 * 10**9), ("1TiB", 1 << 40), ("7B", 7)])
def test_a_size_of_our_own_may_be_written_as_people_do(text: str, value: int) -> None:
    assert size(text) == value
    with pytest.raises(InvalidRequest):
        whole(text)


@pytest.mark.parametrize("text", ["64m", "64u", "64n", "64mB"])
def test_a_size_in_parts_of_a_byte_is_a_typo(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^'{text}' is no size such as"):
        size(text)


@pytest.mark.parametrize("amount", NONE, ids=lambda amount: repr(amount)[:20])
def test_what_could_mean_two_things_or_none_is_one_short_error_that_shows_it(amount: object) -> None:
    for read, kind in ((whole, "quantity"), (thousandths, "quantity"), (size, "size")):
        with pytest.raises(InvalidRequest, match=f" is no {kind} such as") as refused:
            read(amount)
        assert str(refused.value).startswith(repr(amount)[:70])
        assert len(str(refused.value)) < 150


@given(st.text(alphabet="0123456789.+-eEnumkKMGTPiB٣ ", max_size=12) | st.text() | st.floats() | st.integers())
def test_anything_is_an_amount_or_refused(amount: object) -> None:
    for read in (whole, thousandths, size):
        try:
            assert 0 <= read(amount) <= MOST * 1000
        except InvalidRequest:
            continue


def test_a_number_is_in_plain_digits_and_of_a_length_that_means_something() -> None:
    assert [number(text) for text in ("0", "12", "007")] == [0, 12, 7]
    for text in ("", "-1", " 1", "1\n", "٣", "²", "1_0", "1.0", "1" * 20, "1" * 5000):
        assert number(text) is None
