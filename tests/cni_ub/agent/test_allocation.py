"""Which devices a container should get."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_ub.agent.allocation import Place, natural, prefer
from ubhost.errors import InvalidRequest

A0, A1, B0 = Place(0, "die0"), Place(0, "die1"), Place(1, "die2")


def test_devices_of_one_numa_node_are_preferred() -> None:
    places = {"urma_1": A0, "urma_2": B0, "urma_3": A1, "urma_4": B0}
    assert prefer(places, [], 2, places) == ("urma_2", "urma_4")  # one node, one die


def test_devices_of_one_die_are_preferred_within_a_node() -> None:
    places = {"urma_1": A0, "urma_2": A1, "urma_3": A0, "urma_4": A1, "urma_5": A1}
    assert prefer(places, [], 3, places) == ("urma_2", "urma_4", "urma_5")


def test_a_pair_takes_the_smaller_group_so_that_the_larger_stays_whole() -> None:
    places = {f"urma_{n}": A0 for n in range(1, 5)} | {"urma_5": B0, "urma_6": B0}
    assert prefer(places, [], 2, places) == ("urma_5", "urma_6")


def test_what_must_be_included_decides_the_node() -> None:
    places = {"urma_1": A0, "urma_2": A0, "urma_3": B0, "urma_4": B0, "urma_5": B0}
    assert prefer(places, ["urma_1"], 2, places) == ("urma_1", "urma_2")


def test_planes_are_spread_over_when_all_else_is_equal() -> None:
    places = {
        "urma_1": Place(0, "die0", (0,)),
        "urma_2": Place(0, "die0", (0,)),
        "urma_3": Place(0, "die0", (1,)),
    }
    assert prefer(places, [], 2, places) == ("urma_1", "urma_3")


def test_shared_devices_are_taken_in_turn() -> None:
    places = {"urma_1": A0, "urma_2": A0}
    free = ["urma_1::0", "urma_1::1", "urma_2::0", "urma_2::1"]
    assert prefer(free, [], 2, places) == ("urma_1::0", "urma_2::0")


def test_numbers_are_compared_as_numbers() -> None:
    assert sorted(["urma_10", "urma_2", "urma_1::10", "urma_1::9"], key=natural) == [
        "urma_1::9",
        "urma_1::10",
        "urma_2",
        "urma_10",
    ]


def test_devices_that_are_not_known_come_from_one_group_too() -> None:
    assert prefer(["b", "a"], [], 2, {}) == ("a", "b")


@pytest.mark.parametrize(("available", "must", "size"), [(["a"], [], 2), (["a", "b"], ["a", "b"], 1)])
def test_the_impossible_is_refused(available: list[str], must: list[str], size: int) -> None:
    with pytest.raises(InvalidRequest, match="cannot be chosen"):
        prefer(available, must, size, {})


places_of_devices = st.dictionaries(
    st.integers(1, 9).map(lambda n: f"urma_{n}"),
    st.builds(
        Place,
        st.integers(0, 2),
        st.sampled_from(["die0", "die1"]),
        st.lists(st.integers(0, 1), max_size=2, unique=True).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


@given(places_of_devices, st.data())
def test_no_choice_touches_fewer_numa_nodes(places: dict[str, Place], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(places)))
    must = data.draw(st.lists(st.sampled_from(sorted(places)), max_size=size, unique=True))
    chosen = prefer(list(places), must, size, places)
    assert len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(places)

    def nodes(ids: tuple[str, ...]) -> int:
        return len({places[id_].numa for id_ in ids})

    possible = (c for c in combinations(places, size) if set(must) <= set(c))
    assert nodes(chosen) == min(map(nodes, possible))
