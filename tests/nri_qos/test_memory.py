from hypothesis import given
from hypothesis import strategies as st

from nri_qos.memory import CALM_PERIODS, LOWER, RECLAIM_PERIODS, Budget, Over, State, decide, lower, over_budget, victim

GIB = 1 << 30


def test_offline_pods_give_back_a_twentieth_a_period_when_memory_is_short() -> None:
    state = decide(GIB, 16 * GIB, {"a": 1000, "b": 0}, State(), 0.1)
    assert state.high == {"a": 950.0}
    again = decide(GIB, 16 * GIB, {"a": 960, "b": 0}, state, 0.1)
    assert again.high == {"a": LOWER * 960}  # never further below what is in use


def test_limits_stay_between_the_marks_and_are_lifted_after_a_calm_while() -> None:
    state = State({"a": 950.0})
    assert decide(2 * GIB, 16 * GIB, {"a": 900}, state, 0.1).high == {"a": 950.0}
    highs = []
    for _ in range(CALM_PERIODS + 10):
        state = decide(9 * GIB, 16 * GIB, {"a": 900}, state, 0.1)
        highs.append(state.high.get("a"))
    assert highs[: CALM_PERIODS - 1] == [950.0] * (CALM_PERIODS - 1)
    assert highs[-1] is None


def test_a_pod_that_has_gone_is_forgotten() -> None:
    assert decide(2 * GIB, 16 * GIB, {}, State({"a": 1.0}), 0.1).high == {}


sizes = st.dictionaries(st.sampled_from("abc"), st.integers(0, 64 * GIB))


@given(st.lists(st.tuples(st.integers(0, 64 * GIB), sizes), max_size=40))
def test_no_limit_is_ever_far_below_what_is_in_use_when_it_is_lowered(
    periods: list[tuple[int, dict[str, int]]],
) -> None:
    state = State()
    for available, used in periods:
        before, state = state, decide(available, 64 * GIB, used, state, 0.1)
        assert state.high.keys() <= used.keys()
        for pod, high in state.high.items():
            assert high > 0
            assert high >= min(LOWER * used[pod], before.high.get(pod, high))


A, B, C = ("x", "a"), ("x", "b"), ("y", "c")


def test_who_borrowed_too_much_is_kept_off_until_well_below() -> None:
    budget = Budget(pod=100, namespace=150)
    assert over_budget({A: 101, B: 10, C: 100}, Over(), budget) == Over(frozenset({A}))
    assert over_budget({A: 90, B: 10, C: 0}, Over(frozenset({A})), budget) == Over(frozenset({A}))
    assert over_budget({A: 79, B: 10, C: 0}, Over(frozenset({A})), budget) == Over()
    both = over_budget({A: 80, B: 80, C: 0}, Over(), budget)
    assert both == Over(namespaces=frozenset({"x"}))
    assert (both.has(A), both.has(B), both.has(("x", "new")), both.has(C)) == (True, True, True, False)
    assert over_budget({A: 60, B: 61, C: 0}, both, budget) == both
    assert over_budget({A: 60, B: 59, C: 0}, both, budget) == Over()
    assert over_budget({A: 999, B: 0, C: 0}, Over(), Budget()) == Over()


def test_the_tighter_of_two_budgets_counts() -> None:
    assert lower(Budget(1, None), Budget(2, 3)) == Budget(1, 3)
    assert lower(Budget(), Budget()) == Budget()


def test_the_kernel_is_asked_first_for_a_twentieth_at_most_and_no_more_than_is_missing() -> None:
    used = {"a": 100 * 4096 * 20, "b": 4096, "c": 0}
    state = State()
    for _ in range(RECLAIM_PERIODS):
        state = decide(GIB, 16 * GIB, used, state, 0.1, can_reclaim=True)
        assert (state.high, state.reclaim) == ({}, {"a": 100 * 4096})
    state = decide(GIB, 16 * GIB, used, state, 0.1, can_reclaim=True)
    assert state.high.keys() == {"a", "b"}
    little = decide(16 * GIB // 10 - 5000, 16 * GIB, used, State(), 0.1, can_reclaim=True)
    assert little.reclaim == {"a": 4096}
    assert decide(2 * GIB, 16 * GIB, used, state, 0.1, can_reclaim=True).reclaim == {}
    assert decide(2 * GIB, 16 * GIB, used, state, 0.1, can_reclaim=True).short == 0


@given(st.integers(0, 64 * GIB), sizes, st.integers(0, 9))
def test_nobody_is_ever_asked_for_nothing_or_for_more_than_a_twentieth(
    available: int, used: dict[str, int], short: int
) -> None:
    asked = decide(available, 64 * GIB, used, State(short=short), 0.1, can_reclaim=True).reclaim
    assert all(4096 <= amount <= used[pod] / 20 for pod, amount in asked.items())


def test_the_offline_pod_with_most_memory_is_the_one_to_end() -> None:
    assert victim({"a": 5, "b": 7, "online": 99}, ["a", "b", "c"]) == "b"
    assert victim({"a": 0}, ["a"]) is None
    assert victim({}, []) is None
