"""From whatever a thin volume is, repeated looks and steps come to what it should be, and to nothing more to do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_ub.config import PoolConfig, PoolType
from csi_ub.pools.lvm import name_of
from csi_ub.pools.thin import (
    Activate,
    Clone,
    Create,
    Disk,
    Extend,
    Fill,
    Format,
    Mount,
    Remove,
    ThinStep,
    plan_copy,
    plan_larger,
    plan_mounted,
    plan_new,
)

MiB = 1 << 20
NAME, DEVICE = "ub-1", "/dev/mapper/vg0-ub--1"
ORIGIN = Disk("ub-0", 64 * MiB, "/dev/mapper/vg0-ub--0", is_active=True, filled=64 * MiB)
disks = st.builds(
    lambda size, is_active, has_ext4: Disk(NAME, size, DEVICE, is_active, size if is_active and has_ext4 else 0),
    st.sampled_from([16 * MiB, 64 * MiB, 256 * MiB]),
    st.booleans(),
    st.booleans(),
)
Plan = Callable[[Disk | None, bool], tuple[ThinStep, ...]]


def done(seen: Disk | None, is_mounted: bool, step: ThinStep) -> tuple[Disk | None, bool]:
    """Return what LVM and ext4 would make of it, and refuse what they refuse."""
    match step:
        case Create(name, size):
            assert seen is None
            return Disk(name, size, DEVICE, is_active=True), is_mounted
        case Clone(name):
            assert seen is None
            return replace(ORIGIN, name=name, device=DEVICE), is_mounted
        case Remove():
            assert not is_mounted
            return None, is_mounted
        case _:
            assert seen, step
            return changed(seen, is_mounted, step)


def changed(seen: Disk, is_mounted: bool, step: Activate | Format | Extend | Mount | Fill) -> tuple[Disk | None, bool]:
    match step:
        case Activate():
            return replace(seen, is_active=True, filled=seen.filled or seen.size), is_mounted
        case Format():
            assert seen.is_active
            assert not seen.filled, "what is on it would be lost"
            return replace(seen, filled=seen.size), is_mounted
        case Extend(_, size):
            assert size > seen.size
            return replace(seen, size=size), is_mounted
        case Mount():
            assert seen.is_active
            return seen, True
        case Fill():
            assert is_mounted, "only what is mounted needs no look at all of it before"
            return replace(seen, filled=seen.size), is_mounted


def reached(plan: Plan, seen: Disk | None, *, is_mounted: bool = False) -> Disk | None:
    for _ in range(8):
        steps = plan(seen, is_mounted)
        if not steps:
            return seen
        for step in steps:
            seen, is_mounted = done(seen, is_mounted, step)
    raise AssertionError(f"never: {seen}")


@given(st.none() | disks)
def test_a_new_thin_volume_has_a_file_system(seen: Disk | None) -> None:
    found = reached(lambda disk, _: plan_new(NAME, 64 * MiB, disk), seen)
    assert found
    assert found.is_active
    assert found.filled


@given(st.none() | disks, st.sampled_from([0, 32 * MiB, 128 * MiB]))
def test_a_copy_is_as_large_as_it_is_asked_for_and_its_file_system_fills_it_once_it_is_mounted(
    seen: Disk | None, size: int
) -> None:
    copy = reached(lambda disk, _: plan_copy(NAME, size, ORIGIN, disk), seen)
    assert copy
    assert copy.size >= size

    def mount(disk: Disk | None, is_mounted: bool) -> tuple[ThinStep, ...]:
        assert disk
        return plan_mounted(disk, "/share", is_mounted=is_mounted)

    found = reached(mount, copy)
    assert found
    assert found.filled == found.size


@given(disks, st.sampled_from([16 * MiB, 64 * MiB, 128 * MiB]))
def test_a_volume_never_shrinks_and_grows_with_its_file_system(seen: Disk, size: int) -> None:
    mounted = replace(seen, is_active=True, filled=seen.size // 2)
    found = reached(lambda disk, _: plan_larger(size, disk or mounted), mounted, is_mounted=True)
    assert found
    assert found.size == found.filled == max(size, seen.size)


@pytest.mark.parametrize(
    ("share", "name"),
    [
        ("new/ub-1/share", "ub-1"),
        ("volumes/ub-1/share", "ub-1"),
        ("trash/ub-1.0a1b2c3d/share", "ub-1"),
        ("volumes/ub-1/seed", "ub-1.seed"),
        ("trash/ub-1.0a1b2c3d/seed", "ub-1.seed"),
        ("groups/ug-1/share/us-1", "us-1"),
    ],
)
def test_a_thin_volume_is_called_like_what_it_is_for_wherever_that_is(share: str, name: str) -> None:
    assert name_of(Path(share)) == name


@pytest.mark.parametrize(
    "given_", [None, "thin", "vg0/", "/thin", "vg0/thin/x", "../thin", "vg0/..", "-vg/thin", "vg 0/thin"]
)
def test_a_pool_of_type_lvm_names_its_thin_pool(given_: str | None) -> None:
    with pytest.raises(ValueError, match="thin_pool"):
        PoolConfig("fast", "/pool", PoolType.LVM, given_)


def test_a_thin_pool_is_for_type_lvm_only() -> None:
    assert PoolConfig("fast", "/pool", PoolType.LVM, "vg0/thin-pool_1").thin_pool == "vg0/thin-pool_1"
    with pytest.raises(ValueError, match="thin_pool"):
        PoolConfig("fast", "/pool", PoolType.BTRFS, "vg0/thin")
