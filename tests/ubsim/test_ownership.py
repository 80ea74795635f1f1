"""OBMM's rule for cacheable memory: many nodes read, or exactly one writes."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubsim.ownership import PAGE, Access, Effect, SharedRegion
from ubsim.ubcore import Refused

SIZE = 4 * PAGE
NODES = ("a", "b", "c")


def region() -> SharedRegion:
    """Keys 1, 2 and 3 are processes on a, b and c."""
    state = SharedRegion(SIZE, frozenset(NODES))
    for key, node in enumerate(NODES, start=1):
        state = state.open(key, node, cached=True)
    return state


def test_many_nodes_may_read_at_once() -> None:
    state = region()
    for key in (1, 2, 3):
        state, effects = state.set_access(key, 0, SIZE, Access.READ)
        assert len(effects) == 4
        assert not any(effect.is_write_back for effect in effects)


@pytest.mark.parametrize("first", [Access.READ, Access.WRITE])
def test_a_writer_is_refused_while_another_node_has_the_page(first: Access) -> None:
    state, _ = region().set_access(1, 0, PAGE, first)
    with pytest.raises(Refused, match="by a") as caught:
        state.set_access(2, 0, PAGE, Access.WRITE)
    assert caught.value.errno == errno.EPERM


def test_a_reader_is_refused_while_another_node_writes() -> None:
    state, _ = region().set_access(1, 0, PAGE, Access.WRITE)
    with pytest.raises(Refused):
        state.set_access(2, 0, PAGE, Access.READ)
    state.set_access(2, PAGE, 2 * PAGE, Access.READ)


def test_two_processes_of_one_node_may_both_write() -> None:
    state = region().open(9, "a", cached=True)
    state, _ = state.set_access(1, 0, PAGE, Access.WRITE)
    state, effects = state.set_access(9, 0, PAGE, Access.WRITE)
    assert effects == ()


def test_only_the_last_writer_of_a_node_writes_back() -> None:
    state = region().open(9, "a", cached=True)
    state, _ = state.set_access(1, 0, PAGE, Access.WRITE)
    state, _ = state.set_access(9, 0, PAGE, Access.WRITE)
    state, effects = state.set_access(1, 0, PAGE, Access.NONE)
    assert effects == ()
    state, effects = state.close(9)
    assert effects == (Effect("a", 0, is_write_back=True),)


def test_a_writer_that_becomes_a_reader_writes_back_and_lets_others_read() -> None:
    state, _ = region().set_access(1, 0, PAGE, Access.WRITE)
    state, effects = state.set_access(1, 0, PAGE, Access.READ)
    assert effects == (Effect("a", 0, is_write_back=True),)
    state.set_access(2, 0, PAGE, Access.READ)


@pytest.mark.parametrize(("start", "end"), [(1, PAGE), (0, PAGE + 1), (0, 0), (PAGE, 0), (0, SIZE + PAGE), (-PAGE, 0)])
def test_a_range_that_is_not_whole_pages_inside_is_refused(start: int, end: int) -> None:
    with pytest.raises(Refused) as caught:
        region().set_access(1, start, end, Access.READ)
    assert caught.value.errno == errno.EINVAL


def test_a_region_is_cached_or_not_never_both() -> None:
    with pytest.raises(Refused) as caught:
        region().open(4, "a", cached=False)
    assert caught.value.errno == errno.EPERM


def test_memory_that_is_not_cached_has_no_ownership() -> None:
    state = SharedRegion(SIZE, frozenset(NODES)).open(1, "a", cached=False)
    with pytest.raises(Refused) as caught:
        state.set_access(1, 0, PAGE, Access.READ)
    assert caught.value.errno == errno.EPERM
    assert state.close(1)[1] == ()


def test_a_node_that_did_not_import_cannot_open() -> None:
    with pytest.raises(Refused) as caught:
        region().open(4, "d", cached=True)
    assert caught.value.errno == errno.ENOENT


def test_a_node_cannot_let_go_of_what_it_has_open() -> None:
    state = region()
    with pytest.raises(Refused) as caught:
        state.refuse_release("b")
    assert caught.value.errno == errno.EBUSY
    state.close(2)[0].refuse_release("b")


ACTS = st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 3), st.integers(1, 4), st.sampled_from(list(Access)))


@given(st.lists(ACTS, max_size=40))
def test_no_page_is_ever_written_by_one_node_and_touched_by_another(acts: list[tuple[int, int, int, Access]]) -> None:
    state = region()
    for key, first, count, access in acts:
        try:
            state, _ = state.set_access(key, first * PAGE, (first + count) * PAGE, access)
        except Refused:
            continue
        for page in range(4):
            held = sorted((state.held(node, page) for node in NODES), reverse=True)
            assert held[0] is not Access.WRITE or held[1] is Access.NONE
