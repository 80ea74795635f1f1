"""The judge itself: it knows right from wrong, by examples, by brute force and by a register that is known to lie."""

from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.csi_ub.consistency.history import INITIAL, Operation, violations


def w(start: float, end: float, value: int) -> Operation:
    return Operation(start, end, value, is_write=True)


def r(start: float, end: float, value: int) -> Operation:
    return Operation(start, end, value, is_write=False)


def is_linearizable_by_trying(history: list[Operation]) -> bool:
    """Try every order that respects time: right by definition, hopeless for more than a handful of operations."""
    failed = [each for each in history if each.end == float("inf")]
    for mask in range(1 << len(failed)):  # a failed write happened, or not
        chosen = [each for each in history if each not in failed or mask >> failed.index(each) & 1]
        for order in permutations(chosen):
            if any(later.end < earlier.start for i, earlier in enumerate(order) for later in order[i + 1 :]):
                continue
            value = INITIAL
            for each in order:
                if each.is_write:
                    value = each.value
                elif each.value != value:
                    break
            else:
                return True
    return False


def test_a_value_read_after_a_newer_one_is_a_violation() -> None:
    history = [w(0, 1, 1), w(2, 3, 2), r(4, 5, 2), r(6, 7, 1)]
    assert any("at once" in each.why for each in violations(history))


def test_a_value_read_after_a_newer_write_returned_is_a_violation() -> None:
    assert list(violations([w(0, 1, 1), w(2, 3, 2), r(4, 5, 1)]))


def test_overlapping_operations_may_take_effect_in_any_order() -> None:
    assert not list(violations([w(0, 10, 1), r(1, 2, INITIAL), r(3, 4, 1), r(5, 6, 1)]))


def test_a_failed_write_may_show_up_late_or_never() -> None:
    late = w(0, float("inf"), 1)
    assert not list(violations([late, w(1, 2, 2), r(3, 4, 2), r(5, 6, 1)]))
    assert not list(violations([late, w(1, 2, 2), r(3, 4, 2), r(5, 6, 2)]))
    assert list(violations([late, r(1, 2, 1), r(3, 4, INITIAL)]))


def test_a_value_from_nowhere_is_a_violation() -> None:
    assert list(violations([r(0, 1, 9)]))


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    written = draw(st.integers(0, 3))
    operations = []
    for value in range(1, written + 1):
        start = draw(st.integers(0, 12))
        end = float("inf") if draw(st.integers(0, 5)) == 0 else start + draw(st.integers(1, 6)) + 0.5
        operations.append(w(start, end, value))
    for _ in range(draw(st.integers(0, 5 - written))):
        start = draw(st.integers(0, 14))
        operations.append(r(start, start + draw(st.integers(1, 6)) + 0.5, draw(st.integers(0, written))))
    return operations


@given(histories())
def test_the_judge_agrees_with_trying_every_order(history: list[Operation]) -> None:
    assert (not list(violations(history))) is is_linearizable_by_trying(history)


def simulate(lag: int, seed: int) -> list[Operation]:
    """Return a history of a register whose reader looks at a copy that is ``lag`` old."""
    random, now, value, versions, history = Random(seed), 0, 0, [(0, INITIAL)], []
    for _ in range(200):
        now += random.randint(2, 10)
        if random.random() < 0.4:
            value += 1
            versions.append((now, value))
            history.append(w(now, now + 1, value))
        else:
            seen = [each for time, each in versions if time <= now - lag] or [INITIAL]
            history.append(r(now, now + 1, seen[-1]))
    return history


def test_a_register_that_shows_old_copies_is_caught_and_an_honest_one_is_not() -> None:
    for seed in range(20):
        assert not list(violations(simulate(0, seed)))
        assert list(violations(simulate(30, seed)))
