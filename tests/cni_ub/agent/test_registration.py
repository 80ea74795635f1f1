"""What to do about kubelet, decided from what can be seen."""

from dataclasses import replace

import pytest

from cni_ub.agent.registration import Move, Seen, Way, first_way, next_move
from cni_ub.agent.settings import Registration

WELL = Seen(
    way=Way.WATCHER,
    is_serving=True,
    has_socket=True,
    is_watched=True,
    has_kubelet_changed=False,
    is_patience_over=False,
    has_registry=True,
    is_kubelet_there=True,
)
AUTO, WATCHER, LEGACY = Registration.AUTO, Registration.WATCHER, Registration.LEGACY


@pytest.mark.parametrize(
    ("wanted", "has_registry", "way"),
    [(AUTO, True, Way.WATCHER), (AUTO, False, Way.LEGACY), (WATCHER, False, Way.WATCHER), (LEGACY, True, Way.LEGACY)],
)
def test_the_watcher_is_tried_first_where_kubelet_has_one(wanted: Registration, has_registry: bool, way: Way) -> None:
    assert first_way(wanted, has_registry=has_registry) is way


@pytest.mark.parametrize("wanted", Registration)
@pytest.mark.parametrize("way", Way)
def test_while_all_is_well_nothing_is_done(wanted: Registration, way: Way) -> None:
    assert next_move(replace(WELL, way=way), wanted) is Move.WAIT


@pytest.mark.parametrize("lost", [{"is_serving": False}, {"has_socket": False}], ids=str)
@pytest.mark.parametrize("way", Way)
def test_a_socket_that_is_gone_is_made_again(way: Way, lost: dict[str, bool]) -> None:
    assert next_move(replace(WELL, way=way, **lost), AUTO) is Move.SERVE


def test_a_kubelet_that_restarted_is_called_again() -> None:
    seen = replace(WELL, way=Way.LEGACY, is_watched=False, has_kubelet_changed=True)
    assert next_move(seen, LEGACY) is Move.SERVE
    assert next_move(seen, AUTO) is Move.SWITCH  # perhaps the new one watches
    assert next_move(replace(seen, has_registry=False), AUTO) is Move.SERVE


def test_a_kubelet_that_finds_sockets_itself_need_not_be_told_of_its_restart() -> None:
    assert next_move(replace(WELL, is_watched=False, has_kubelet_changed=True), AUTO) is Move.WAIT


@pytest.mark.parametrize("wanted", Registration)
@pytest.mark.parametrize("way", Way)
def test_a_kubelet_that_listens_is_not_left_for_another_way(way: Way, wanted: Registration) -> None:
    assert next_move(replace(WELL, way=way, has_kubelet_changed=True, is_patience_over=True), wanted) is Move.WAIT


def test_a_kubelet_that_does_not_come_is_called_where_that_is_allowed() -> None:
    late = replace(WELL, is_watched=False, is_patience_over=True)
    assert next_move(late, AUTO) is Move.SWITCH
    assert next_move(late, WATCHER) is Move.SERVE  # a new socket is a new chance to be seen
    assert next_move(replace(late, is_kubelet_there=False), AUTO) is Move.SERVE
