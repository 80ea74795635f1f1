"""Which provider a host has."""

from pathlib import Path

import pytest

from ubhost.errors import InvalidRequest, Unsupported
from ubhost.providers import choose
from ubhost.roots import Roots


def test_without_anything_each_kind_that_was_looked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        choose(Roots(tmp_path))
    for part in ("run/ubsim/kernel.sock", "UBCORE_GENL", "sys/class/infiniband"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("wanted", "part"), [("sim", "kernel.sock"), ("ubcore", "UBCORE_GENL"), ("rdma", "RDMA")])
def test_a_kind_that_is_not_here_says_why(tmp_path: Path, wanted: str, part: str) -> None:
    with pytest.raises(Unsupported, match=part):
        choose(Roots(tmp_path), wanted)


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'verbs' is unknown, expected one of auto, sim, ubcore, rdma"):
        choose(Roots(tmp_path), "verbs")
