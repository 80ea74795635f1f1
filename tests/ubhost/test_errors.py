"""A code is looked up by the nearest class of the reason."""

import pytest

from ubhost.errors import Busy, HostFault, UbError, code_for
from ubhost.statefile import Damaged


def test_a_refined_reason_takes_the_code_of_its_reason() -> None:
    assert code_for(Damaged("x"), {UbError: 1, HostFault: 5}) == 5


def test_the_nearest_class_wins() -> None:
    assert code_for(Damaged("x"), {HostFault: 5, Damaged: 6}) == 6


def test_a_reason_without_a_code_is_a_bug() -> None:
    with pytest.raises(KeyError):
        code_for(Busy("x"), {HostFault: 5})
