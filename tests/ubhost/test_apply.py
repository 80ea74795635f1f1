"""A plan is carried out wholly or not at all."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.apply import apply


@dataclass(frozen=True, slots=True)
class Put:
    key: int
    present: bool = True

    def undo(self) -> "Put":
        return replace(self, present=not self.present)


@given(keys=st.lists(st.integers(), unique=True, min_size=1), data=st.data())
def test_a_plan_that_fails_anywhere_changes_nothing(keys: list[int], data: st.DataObject) -> None:
    fail_at = data.draw(st.sampled_from(keys))
    world: set[int] = set()

    def do(step: Put) -> None:
        if step.present and step.key == fail_at:
            raise OSError("refused")
        (world.add if step.present else world.remove)(step.key)

    with pytest.raises(OSError, match="refused"):
        apply([Put(key) for key in keys], do)
    assert world == set()


def test_finished_steps_are_undone_in_reverse() -> None:
    done: list[Put] = []

    def do(step: Put) -> None:
        if step.key == 3:
            raise OSError("refused")
        done.append(step)

    with pytest.raises(OSError, match="refused"):
        apply([Put(1), Put(2), Put(3)], do)
    assert done == [Put(1), Put(2), Put(2, present=False), Put(1, present=False)]
