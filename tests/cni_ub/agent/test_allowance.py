"""Looks at the devices are rare on average, and at once after a rest."""

from cni_ub.agent.allowance import Allowance


def test_after_a_rest_several_tasks_in_a_row_may_run() -> None:
    allowance = Allowance(0.02, 0.5, at=100.0)
    for at in (100.0, 101.0, 102.0, 103.0):
        assert allowance.is_there(at)
        allowance.spend(0.1)


def test_in_the_long_run_no_more_than_the_share_is_spent() -> None:
    allowance = Allowance(0.02, 0.5, at=0.0)
    spent = 0.0
    for at in range(1000):
        if allowance.is_there(at):
            allowance.spend(0.1)
            spent += 0.1
    assert 0.02 * 1000 <= spent <= 0.02 * 1000 + 0.5 + 0.1


def test_a_dear_task_is_paid_for_before_the_next() -> None:
    allowance = Allowance(0.02, 0.5, at=0.0)
    assert allowance.is_there(0.0)
    allowance.spend(2.5)
    assert not allowance.is_there(99.0)
    assert allowance.is_there(101.0)


def test_a_long_rest_saves_no_more_than_the_most() -> None:
    allowance = Allowance(0.02, 0.5, at=0.0)
    assert allowance.is_there(1e6)
    allowance.spend(0.6)
    assert not allowance.is_there(1e6 + 4)
