"""The six namespace rules of reference/ub.md section 3: for each, what the driver refuses is refused."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.model import Eid
from ubsim.ubcore import MAX_EIDS, Refused, Ubcore

HOST, POD, OTHER = 1, 100, 200
EIDS = (Eid(0xA), Eid(0xB), Eid(0xC))
ZERO = Eid(0)


def host(*, shared: bool = False) -> Ubcore:
    return Ubcore(HOST, is_shared=shared).plug("udma2", EIDS).open_netns(POD)


def eids(state: Ubcore, netns: int, name: str = "udma2") -> tuple[Eid, ...] | None:
    """What sysfs shows inside ``netns``; ``None`` if the device is not there."""
    return next((device.seen_from(netns) for device in state.visible(netns) if device.name == name), None)


# Rule 1


@pytest.mark.parametrize("shared", [True, False])
def test_the_mode_cannot_change_while_another_namespace_lives(shared: bool) -> None:
    with pytest.raises(Refused, match="Failed to modify ns mode with existing ns") as caught:
        host(shared=shared).set_sharing(shared=not shared)
    assert caught.value.errno == errno.EPERM


def test_the_mode_changes_once_the_last_other_namespace_is_gone() -> None:
    assert host(shared=True).close_netns(POD).set_sharing(shared=False).is_shared is False


def test_setting_the_present_mode_again_is_never_refused() -> None:
    state = host(shared=True)
    assert state.set_sharing(shared=True) is state


def test_the_eid_mode_cannot_change_while_another_namespace_lives() -> None:
    with pytest.raises(Refused) as caught:
        host().set_eid_sharing(shared=True)
    assert caught.value.errno == errno.EPERM


def test_a_driver_starts_in_shared_mode() -> None:
    assert Ubcore(HOST).is_shared


# Rule 2


def test_an_eid_cannot_move_where_its_device_is_not_exposed() -> None:
    state = host()
    with pytest.raises(Refused) as caught:
        state.set_eid_netns("udma2", 0, POD)
    assert caught.value.errno == errno.EPERM
    assert eids(state.expose("udma2", POD).set_eid_netns("udma2", 0, POD), POD) == (EIDS[0], ZERO, ZERO)


def test_an_eid_index_beyond_the_table_is_refused_but_an_empty_slot_is_not() -> None:
    state = host().expose("udma2", POD)
    with pytest.raises(Refused) as caught:
        state.set_eid_netns("udma2", MAX_EIDS, POD)
    assert caught.value.errno == errno.EINVAL
    assert eids(state.set_eid_netns("udma2", 17, POD), POD) == (ZERO, ZERO, ZERO)


# Rule 3


def test_access_needs_both_the_device_and_the_eid_in_the_callers_namespace() -> None:
    state = host()
    with pytest.raises(Refused) as caught:
        state.check_access("udma2", 0, POD)
    assert caught.value.errno == errno.EPERM
    state = state.expose("udma2", POD)
    with pytest.raises(Refused, match="eid is not accessible by current ns") as caught:
        state.check_access("udma2", 0, POD)
    assert caught.value.errno == errno.EPERM
    state = state.set_eid_netns("udma2", 0, POD)
    state.check_access("udma2", 0, POD)
    with pytest.raises(Refused, match="eid is not accessible by current ns"):
        state.check_access("udma2", 0, HOST)


def test_a_process_in_the_host_namespace_reaches_everything_that_was_not_given_away() -> None:
    host().check_access("udma2", 2, HOST)


# Rule 4


def test_unexpose_returns_the_eids_of_that_namespace_only() -> None:
    state = host().open_netns(OTHER).expose("udma2", POD).expose("udma2", OTHER)
    state = state.set_eid_netns("udma2", 0, POD).set_eid_netns("udma2", 1, OTHER).unexpose("udma2", POD)
    assert eids(state, POD) is None
    assert eids(state, HOST) == (EIDS[0], ZERO, EIDS[2])
    assert eids(state, OTHER) == (ZERO, EIDS[1], ZERO)


def test_unexpose_of_a_device_that_is_not_there_changes_nothing() -> None:
    state = host()
    assert state.unexpose("udma2", POD) == state


def test_in_exclusive_mode_a_dying_namespace_returns_eids_and_devices() -> None:
    state = host().plug("udma3", EIDS[:1]).expose("udma2", POD).set_eid_netns("udma2", 1, POD)
    state = state.set_home("udma3", POD).close_netns(POD)
    assert eids(state, HOST) == EIDS
    assert eids(state, HOST, "udma3") == EIDS[:1]


def test_in_shared_mode_a_dying_namespace_takes_its_eids_with_it() -> None:
    state = host(shared=True).set_eid_netns("udma2", 1, POD).close_netns(POD)
    assert eids(state, HOST) == (EIDS[0], ZERO, EIDS[2])
    with pytest.raises(Refused):
        state.check_access("udma2", 1, HOST)


# The two modes


def test_in_shared_mode_every_namespace_sees_every_device_without_being_told() -> None:
    state = host(shared=True).open_netns(OTHER).plug("udma3", ())
    assert [device.name for device in state.visible(OTHER)] == ["udma2", "udma3"]
    assert eids(state, OTHER) == (ZERO, ZERO, ZERO)


def test_in_shared_mode_a_physical_device_cannot_move() -> None:
    with pytest.raises(Refused) as caught:
        host(shared=True).set_home("udma2", POD)
    assert caught.value.errno == errno.EPERM


def test_in_exclusive_mode_a_new_namespace_sees_nothing() -> None:
    assert list(host().visible(POD)) == []


# Rule 6


def test_a_moved_physical_device_takes_its_eids_and_drops_its_logical_devices() -> None:
    state = host().open_netns(OTHER).expose("udma2", OTHER).set_eid_netns("udma2", 1, OTHER).set_home("udma2", POD)
    assert eids(state, HOST) is None
    assert eids(state, OTHER) is None
    assert eids(state, POD) == EIDS


@pytest.mark.parametrize(
    ("operation", "number"),
    [("expose", errno.ENODEV), ("unexpose", errno.ENODEV), ("set_home", errno.EINVAL)],
)
def test_an_unknown_device_is_refused_with_the_errno_of_its_operation(operation: str, number: int) -> None:
    with pytest.raises(Refused) as caught:
        getattr(host(), operation)("udma9", POD)
    assert caught.value.errno == number


def test_an_eid_of_an_unknown_device_is_refused_with_eperm() -> None:
    with pytest.raises(Refused) as caught:
        host().set_eid_netns("udma9", 0, POD)
    assert caught.value.errno == errno.EPERM


# EIDs by hand (section 2)


def test_a_change_of_the_eid_mode_flushes_every_eid() -> None:
    state = host().set_eid_mode("udma2", dynamic=True)
    assert eids(state, HOST) == (ZERO, ZERO, ZERO)
    assert eids(host().set_eid_mode("udma2", dynamic=False), HOST) == EIDS


def test_in_dynamic_mode_no_eid_is_added_or_deleted_by_hand() -> None:
    dynamic = host().set_eid_mode("udma2", dynamic=True)
    with pytest.raises(Refused) as caught:
        dynamic.ask_for_eid("udma2", 0, lambda: Eid(0xD))
    assert caught.value.errno == errno.EPERM
    with pytest.raises(Refused) as caught:
        dynamic.delete_eid("udma2", 0)
    assert caught.value.errno == errno.EPERM


def test_an_eid_is_asked_for_where_the_physical_device_is_and_nowhere_else() -> None:
    state = host().delete_eid("udma2", 1)
    assert eids(state.ask_for_eid("udma2", 1, lambda: EIDS[1]), HOST) == EIDS
    with pytest.raises(Refused) as caught:
        state.expose("udma2", POD).ask_for_eid("udma2", 1, lambda: EIDS[1], POD)
    assert caught.value.errno == errno.EPERM


def test_an_eid_added_by_hand_is_seen_in_its_namespace_only() -> None:
    state = host().expose("udma2", POD).add_eid("udma2", 4, Eid(0xD), POD)
    assert eids(state, POD) == (ZERO, ZERO, ZERO, ZERO, Eid(0xD))
    assert eids(state, HOST) == (*EIDS, ZERO, ZERO)


@pytest.mark.parametrize(("priority", "level"), [(16, 0), (0, 16), (-1, 0)])
def test_a_priority_or_level_out_of_range_is_refused(priority: int, level: int) -> None:
    with pytest.raises(Refused) as caught:
        host().set_service_level("udma2", priority, level)
    assert caught.value.errno == errno.EINVAL


def test_a_name_that_would_not_fit_the_driver_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        host().plug("u" * 64, ())
    assert caught.value.errno == errno.EINVAL


# Whatever happens

NETNS = st.sampled_from([HOST, POD, OTHER])
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["expose", "unexpose", "set_home"]), st.sampled_from(["udma2", "udma3"]), NETNS),
    st.tuples(st.just("set_eid_netns"), st.sampled_from(["udma2", "udma3"]), st.integers(0, 3), NETNS),
    st.tuples(st.sampled_from(["open_netns", "close_netns"]), NETNS),
)


@given(shared=st.booleans(), operations=st.lists(OPERATIONS, max_size=30))
def test_an_eid_is_seen_in_at_most_one_namespace_and_never_invented(
    shared: bool, operations: list[tuple[object, ...]]
) -> None:
    state = host(shared=shared).plug("udma3", (Eid(0xE),))
    for name, *arguments in operations:
        try:
            state = getattr(state, str(name))(*arguments)
        except Refused:
            continue
        seen = [
            (device.name, at, eid)
            for netns in (HOST, *state.others)
            for device in state.visible(netns)
            for at, eid in enumerate(device.seen_from(netns))
            if not eid.is_zero
        ]
        assert len(seen) == len(set(seen))
        assert {eid for _, _, eid in seen} <= {*EIDS, Eid(0xE)}
        if not shared:
            assert len(seen) == 4, "in exclusive mode no EID is ever lost"
