"""The squeeze of offline work, as numbers."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos.config import Config
from nri_qos.desired import choose_offline
from nri_qos.model import Machine, Placement
from nri_qos.pools import Node, Occupied
from nri_qos.squeeze import (
    CALM_PERIODS,
    DEAD_BAND,
    GROWTH,
    LEAST_STEP,
    PATIENCE,
    Limits,
    Observed,
    State,
    decide,
    share,
    spread,
)
from tests.nri_qos import nodes

EIGHT = {0: 4, 1: 4}


def seen(
    online: float | None, *, other: float | None = 0.0, pressure: float = 0.0, is_throttled: bool = False
) -> Observed:
    return Observed(EIGHT, EIGHT, online, other, pressure=pressure, is_throttled=is_throttled)


def run(observed: list[Observed], state: State | None = None, limits: Limits | None = None) -> list[float]:
    """Return the quota after each period."""
    now = state or State()
    quotas = []
    for each in observed:
        now = decide(each, now, limits or Limits())
        assert now.quota is not None
        quotas.append(now.quota)
    return quotas


def test_the_target_is_what_online_work_and_its_margin_leave() -> None:
    assert run([seen(2.0, other=0.5)]) == [0.75 * 8 - 1.25 * 2.0 - 0.5]


def test_it_shrinks_at_once_and_grows_slowly() -> None:
    quotas = run([seen(0.0), seen(4.0), *[seen(0.0)] * 20])
    assert quotas[:2] == [6.0, 1.0]
    assert quotas[2 : 2 + CALM_PERIODS - 1] == [1.0] * (CALM_PERIODS - 1)
    steps = [after - before for before, after in pairwise(quotas[1:])]
    assert max(steps) <= GROWTH * 8 + 1e-9
    assert quotas[-1] >= 6.0 - DEAD_BAND * 8


def test_each_time_that_it_shrank_it_grows_after_three_calm_periods_again() -> None:
    quotas = run([seen(4.0), *[seen(0.0)] * 6, seen(3.0), *[seen(0.0)] * CALM_PERIODS])
    assert quotas[6] > quotas[7] == quotas[8] == quotas[9] < quotas[10]


def test_online_work_that_waits_halves_it_at_once() -> None:
    assert run([seen(0.5), seen(0.5, pressure=0.2)]) == [5.375, 2.6875]
    assert run([seen(0.5), seen(0.5, is_throttled=True)]) == [5.375, 2.6875]
    unmoved = run([seen(0.5), seen(0.5, is_throttled=True)], limits=Limits(is_throttling_pressure=False))
    assert unmoved == [5.375, 5.375]


def test_the_floor_is_kept_under_any_load() -> None:
    assert run([seen(8.0)] * 5, limits=Limits(floor=1.5)) == [1.5] * 5
    assert run([seen(0.0, pressure=1.0)] * 9)[-1] == 1.0


def test_missing_figures_hold_the_last_ones_and_then_count_as_need() -> None:
    quotas = run([seen(1.0), *[seen(None)] * (PATIENCE + 1), seen(1.0)])
    assert quotas == [4.75] * (PATIENCE + 1) + [1.0, 1.0]
    assert run([seen(1.0), *[seen(1.0, other=None)] * (PATIENCE + 1)])[-1] == 1.0
    assert run([seen(1.0, other=2.0), seen(2.0, other=None)]) == [2.75, 1.5]  # the last figure, beside one that is new


def test_noise_smaller_than_the_dead_band_moves_nothing() -> None:
    state = decide(seen(2.0), State(), Limits())
    wobble = DEAD_BAND * 8 / 1.25 / 2
    quotas = run([seen(2.0 - wobble), seen(2.0), seen(2.0 - wobble), seen(2.0)] * 10, state)
    assert set(quotas) == {state.quota}


def test_room_that_is_smaller_than_the_dead_band_is_not_taken_however_long_it_lasts() -> None:
    less = 2.0 - DEAD_BAND * 8 / 1.25 * 0.9
    assert set(run([seen(2.0), *[seen(less)] * 20])) == {3.5}


def test_use_that_falls_is_half_believed_each_period() -> None:
    quotas = run([seen(1.0), *[seen(0.5)] * CALM_PERIODS])
    assert quotas[-1] == pytest.approx(6 - 1.25 * (0.5 + 0.5 / 2**CALM_PERIODS))


def test_larger_noise_settles_at_the_lower_edge_and_does_not_oscillate() -> None:
    quotas = run([seen(2.0 + (0.5 if period % 2 else 0.0)) for period in range(40)])
    assert len(set(quotas[2:])) == 1


def test_a_machine_that_shrinks_takes_the_quota_with_it() -> None:
    state = decide(seen(0.0), State(), Limits())
    small = Observed({0: 2}, {0: 2}, 0.0, 0.0)
    assert decide(small, state, Limits()).quota == 1.5


@given(st.floats(0, 4), st.floats(0, 2), st.lists(st.floats(-1, 1), min_size=20, max_size=120))
def test_noise_is_never_amplified(level: float, amplitude: float, noise: list[float]) -> None:
    """Once begun, the quota stays between what the least and what the most of the noise would leave."""
    online = [max(level + amplitude * each, 0.0) for each in noise]
    quotas = run([seen(each) for each in online])
    least, most = (max(1.0, min(8.0, 6 - 1.25 * each)) for each in (max(online), min(online)))
    assert all(least - 1e-9 <= quota <= most + 1e-9 for quota in quotas)


@given(st.floats(0, 4), st.lists(st.floats(0, 1), min_size=10, max_size=60))
def test_peaks_that_come_again_within_three_periods_move_it_down_only(level: float, rests: list[float]) -> None:
    """However the use falls between them: no growth that the next peak takes back."""
    online = [use for rest in rests for use in (level + 1.0, level + rest)]
    quotas = run([seen(each) for each in online])
    assert all(after <= before for before, after in pairwise(quotas))


amounts = st.none() | st.floats(0, 8) | st.floats(0, 200)
observations = st.builds(
    Observed,
    size=st.just(EIGHT) | st.just({0: 1}) | st.just({0: 64, 3: 60}),
    room=st.just(EIGHT) | st.just({0: 1}) | st.just({0: 2, 1: 0}),
    online=amounts,
    other=amounts,
    pressure=st.just(0.0) | st.floats(0, 1),
    is_throttled=st.just(False) | st.booleans(),
)
times = st.lists(st.tuples(observations, st.integers(1, 6)), min_size=1, max_size=12)
"""What is observed, and for how many periods."""
limits = st.builds(Limits, floor=st.floats(0.1, 12), threshold=st.floats(0.1, 1), pressure=st.floats(0, 1))


@given(times, limits)
def test_whatever_is_observed_it_keeps_the_floor_and_the_room_and_grows_no_faster_than_allowed(
    observed: list[tuple[Observed, int]], wanted: Limits
) -> None:
    state, since_shrunk = State(), CALM_PERIODS
    for each in (each for each, periods in observed for _ in range(periods)):
        before, state = state.quota, decide(each, state, wanted)
        room, capacity = sum(each.room.values()), sum(each.size.values())
        assert state.quota is not None
        assert min(wanted.floor, room) <= state.quota <= room
        if before is not None:
            allowed = max(GROWTH * capacity, LEAST_STEP)
            base = max(before, min(wanted.floor, room))
            assert state.quota <= base + allowed + 1e-9
            since_shrunk = 0 if state.quota < before else since_shrunk + 1
            assert state.quota <= base or since_shrunk >= CALM_PERIODS
        assert all(0 <= cpus <= each.room.get(node, 0) for node, cpus in state.nodes.items())


@given(st.floats(0, 8), st.floats(0, 8), st.floats(0, 8))
def test_it_converges_under_steady_load_from_anywhere(start: float, online: float, other: float) -> None:
    quotas = run([seen(online, other=other)] * 60, State(quota=start))
    target = max(1.0, min(8.0, 6 - 1.25 * online - other))
    assert abs(quotas[-1] - target) <= DEAD_BAND * 8 + 1e-9
    assert quotas[-1] == quotas[-2]


pods = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(0, 8), min_size=1, max_size=9)


@given(st.floats(0.01, 64), pods, st.data())
def test_nobody_gets_more_than_its_own_limit_and_the_others_get_the_rest(
    quota: float, used: dict[str, float], data: st.DataObject
) -> None:
    most = data.draw(st.dictionaries(st.sampled_from(sorted(used)), st.floats(0.1, 8)))
    shares = share(quota, used, given=dict.fromkeys(used, 1.0), most=most)
    assert all(shares[pod] <= limit for pod, limit in most.items())
    assert shares == share(quota, used, dict.fromkeys(used, 1.0)) or most


def test_a_pod_at_its_own_limit_leaves_the_rest_to_the_others() -> None:
    shares = share(4.0, {"limited": 0.5, "free": 3.0}, {"limited": 0.5, "free": 3.0}, most={"limited": 0.5})
    assert shares == {"limited": 0.5, "free": 3.5}


@given(st.floats(0.01, 64), pods)
def test_shares_add_up_and_nobody_starves(quota: float, used: dict[str, float]) -> None:
    shares = share(quota, used, given=dict.fromkeys(used, 1.0))
    assert shares.keys() == used.keys()
    assert min(shares.values()) >= 0.05
    assert sum(shares.values()) <= max(quota, 0.05 * len(used)) + 0.05 * len(used) + 1e-6
    assert sum(shares.values()) >= quota - 1e-6


def test_a_busy_pod_gets_what_idle_ones_leave() -> None:
    shares = share(4.0, {"busy": 1.0, "idle": 0.0}, {"busy": 1.0, "idle": 1.0})
    assert shares["busy"] > 3.5
    assert share(4.0, {"a": 2.0, "b": 2.0}, {"a": 2.0, "b": 2.0}) == {"a": 2.0, "b": 2.0}


rooms = st.dictionaries(st.integers(0, 4), st.integers(0, 16), min_size=1).filter(lambda room: sum(room.values()) > 0)


@given(st.floats(0.1, 80), st.dictionaries(st.integers(0, 4), st.floats(0, 16), max_size=4), rooms)
def test_cpus_are_whole_enough_for_the_quota_and_never_none(
    quota: float, nodes: dict[int, float], room: dict[int, int]
) -> None:
    given_ = spread(quota, nodes, room)
    total = sum(given_.values())
    assert total >= 1
    assert total == sum(room.values()) or quota <= total < max(quota, 1) + 1
    assert all(cpus <= room[node] for node, cpus in given_.items())


@pytest.mark.parametrize(("left", "expected"), [({0: 3.0, 1: 1.0}, {0: 3, 1: 1}), ({0: 0.0, 1: 4.0}, {0: 0, 1: 4})])
def test_cpus_are_taken_where_online_work_leaves_most(left: dict[int, float], expected: dict[int, int]) -> None:
    assert spread(4.0, left, EIGHT) == expected


def test_a_node_with_bound_online_work_gives_less() -> None:
    observed = replace(seen(3.0), bound={0: 3.0})
    nodes = decide(observed, State(), Limits()).nodes
    assert nodes[0] < nodes[1]


machines = st.sampled_from(
    [
        nodes.machine("0-3", "4-7"),
        nodes.machine("0"),
        nodes.machine("0-1,4-5", "2-3,6-7", threads=2, remote=1),
        replace(nodes.machine("0-1"), nodes=()),  # CPUs of no node
    ]
)


@given(st.lists(observations, min_size=1, max_size=12), machines, st.sets(st.integers(0, 7), max_size=8))
def test_the_cpus_of_offline_work_are_never_none_and_never_somebodys_own(
    observed: list[Observed], machine: Machine, own: set[int]
) -> None:
    taken = Placement(exclusive=machine.online & own)
    node = Node(machine, Config(), Occupied({("p", "a"): taken}))
    state, cpus = State(), frozenset[int]()
    for each in observed:
        state = decide(each, state, Limits())
        room = {numa.id: len(node.offline_room.intersection(numa.cpus)) for numa in machine.nodes}
        cpus = choose_offline(node, spread(state.quota or 0, state.nodes, room), cpus)
        assert cpus
        assert cpus <= node.offline_room
        assert not cpus & taken.exclusive or not node.pool - taken.exclusive
        beside = machine.cores(taken.exclusive)  # a thread of the same core is no CPU of one's own
        assert not cpus & beside or not node.pool - beside
