"""Values of cgroup files, and the order in which they are written."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos.knobs import KNOBS
from nri_qos.settings import IN_PAGES, PAGE, Setting, cpu_max, in_order, is_same, memory
from tests.nri_qos.files.conftest import APP, POD


def order(*settings: Setting, now: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    return [setting.place for setting in in_order(settings, now)]


def test_a_quota_is_lowered_after_its_burst_and_raised_before_it() -> None:
    now = {(POD, "cpu.max"): "40000 100000", (POD, "cpu.max.burst"): "20000"}
    lower = Setting(POD, "cpu.max", "10000 100000"), Setting(POD, "cpu.max.burst", "0")
    assert order(*lower, now=now) == [(POD, "cpu.max.burst"), (POD, "cpu.max")]
    higher = Setting(POD, "cpu.max.burst", "50000"), Setting(POD, "cpu.max", "90000 100000")
    assert order(*higher, now=now) == [(POD, "cpu.max"), (POD, "cpu.max.burst")]


def test_idle_is_lifted_before_the_weight_changes() -> None:
    settings = Setting(POD, "cpu.weight", "50"), Setting(POD, "cpu.idle", "0")
    assert order(*settings, now={(POD, "cpu.idle"): "1"}) == [(POD, "cpu.idle"), (POD, "cpu.weight")]
    settings = Setting(POD, "cpu.idle", "1"), Setting(POD, "cpu.weight", "50")
    assert order(*settings, now={(POD, "cpu.idle"): "0"}) == [(POD, "cpu.weight"), (POD, "cpu.idle")]


def test_parents_are_widened_first_and_narrowed_last() -> None:
    """(D5)"""
    places = (POD, "cpuset.cpus"), (APP, "cpuset.cpus")
    now = dict.fromkeys(places, "2-3")
    wider = Setting(APP, "cpuset.cpus", "0-3"), Setting(POD, "cpuset.cpus", "0-3")
    assert order(*wider, now=now) == list(places)
    narrower = Setting(POD, "cpuset.cpus", "3"), Setting(APP, "cpuset.cpus", "3")
    assert order(*narrower, now=now) == list(reversed(places))


@given(st.floats(0, 1000))
def test_a_quota_is_never_less_than_the_kernel_takes(cpus: float) -> None:
    """(D3)"""
    quota, period = map(int, cpu_max(cpus).split())
    assert quota >= 1000
    assert abs(quota / period - max(cpus, 0.02)) < 1e-4


@given(st.floats(0, 1e15))
def test_memory_is_whole_pages_and_never_none(value: float) -> None:
    """(D9)"""
    pages, rest = divmod(int(memory(value)), PAGE)
    assert rest == 0
    assert pages >= 1


@pytest.mark.parametrize(
    ("file", "one", "other", "same"),
    [
        ("cpuset.cpus", "0,1,2", "0-2", True),
        ("cpu.max", "max", "max 100000", True),
        ("cpu.max", "1000 50000", "2000 100000", False),
        ("memory.high", "8192", "8191", False),
        ("memory.high", "max", "max", True),
        ("memory.high", "4097", "4096", True),
        ("io.weight", "50", "default 50", True),
        ("io.weight", "default 50", "default 100\n8:0 50", False),
    ],
)
def test_values_are_compared_as_the_kernel_means_them(file: str, one: str, other: str, same: bool) -> None:
    assert is_same(file, one, other) == same


@pytest.mark.parametrize("file", KNOBS)
def test_values_that_the_kernel_tells_apart_are_never_taken_for_the_same(file: str) -> None:
    """Flags and levels are no bytes, whatever their files are called."""
    numbers = ("0", str(PAGE), str(2 * PAGE)) if file in IN_PAGES else ("-1", "0", "1", "2", "100")
    values = [value for value in (*numbers, "max") if re.fullmatch(KNOBS[file], value)]
    assert len(values) > 1
    assert all(is_same(file, one, other) == (one == other) for one in values for other in values)
    assert (file in IN_PAGES) == (KNOBS[file] == KNOBS["memory.min"])
