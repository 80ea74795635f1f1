"""When a node with its own copy of a model goes over to another version."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_ub.models import manifest
from csi_ub.models.follower import Follower
from csi_ub.models.store import ModelStore
from csi_ub.models.switching import Standing, SwitchPolicy, due, missing
from csi_ub.pools.copy import copy_tree

ALL_READY, PER_NODE = SwitchPolicy.ALL_READY, SwitchPolicy.PER_NODE
MiB = 1 << 20


def node(name: str, whole: str = "", current: str | None = None) -> Standing:
    return Standing(name, frozenset(whole), current)


def test_all_ready_waits_for_the_last_node_and_then_all_go() -> None:
    me, other = node("a", "12", "1"), node("b", "1", "1")
    assert due("21", me, [other], ALL_READY) == "1"
    assert missing("2", [me, other]) == ("b",)
    assert due("21", me, [node("b", "12", "1")], ALL_READY) == "2"


def test_per_node_waits_for_itself_only() -> None:
    assert due("21", node("a", "12", "1"), [node("b", "1", "1")], PER_NODE) == "2"
    assert due("21", node("a", "1", "1"), [node("b", "12", "2")], PER_NODE) == "1"


def test_one_that_went_over_decides_for_all_but_nobody_shows_what_it_has_in_part() -> None:
    assert due("21", node("a", "12", "1"), [node("b", "12", "2"), node("c", "1", "1")], ALL_READY) == "2"
    assert due("21", node("a", "1", "1"), [node("b", "12", "2")], ALL_READY) == "1"


def test_a_node_that_comes_late_takes_what_is_in_force_elsewhere() -> None:
    assert due("321", node("a", "12"), [node("b", "123", "2")], ALL_READY) == "2"
    assert due("1", node("a", "1"), [], ALL_READY) == "1"
    assert due("", node("a", "1"), [], ALL_READY) is None


@given(
    st.permutations("1234"),
    st.lists(st.tuples(st.sets(st.sampled_from("1234")), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(SwitchPolicy),
)
def test_nodes_never_show_a_part_and_all_agree_once_all_have_everything(
    wanted: list[str], holdings: list[tuple[set[str], bool]], policy: SwitchPolicy
) -> None:
    nodes = [
        Standing(str(number), frozenset(whole), min(whole) if whole and shows else None)
        for number, (whole, shows) in enumerate(holdings)
    ]
    for me in nodes:
        chosen = due(wanted, me, [each for each in nodes if each is not me], policy)
        assert chosen is None or chosen in me.whole
    complete = [Standing(each.node, frozenset("1234"), each.current) for each in nodes]
    for me in complete:
        assert due(wanted, me, [each for each in complete if each is not me], policy) == wanted[0]


@pytest.fixture
def owner(tmp_path: Path) -> Follower:
    share = tmp_path / "owner"
    for folder in ("data/versions", "nodes"):
        (share / folder).mkdir(parents=True)
    return Follower(ModelStore(share), "owner", is_owner=True, policy=ALL_READY)


@pytest.fixture
def arrive(owner: Follower, tmp_path: Path) -> Callable[[], Follower]:
    """Bring what the owner has to another node, as the engine does."""

    def arrive() -> Follower:
        share = tmp_path / "copy"
        (share / "nodes").mkdir(parents=True, exist_ok=True)
        (share / "data/versions").mkdir(parents=True, exist_ok=True)
        for version in owner.store.versions.iterdir():
            if not (share / "data/versions" / version.name).exists():
                copy_tree(version, share / "data/versions" / version.name)
        (share / "manifests").mkdir(exist_ok=True)
        for path in (*(owner.store.share / "manifests").iterdir(), owner.store.share / "history.json"):
            (share / path.relative_to(owner.store.share)).write_bytes(path.read_bytes())
        return Follower(ModelStore(share), "copy", is_owner=False, policy=ALL_READY)

    return arrive


def push(owner: Follower, folder: Path, seed: int) -> str:
    folder.mkdir()
    (folder / "model").write_bytes(bytes([seed]) * (2 * MiB + 5))
    pushed = owner.store.push(folder, manifest.read(folder))
    return owner.store.switch(pushed.id, is_only_wanted=True)


def test_nodes_go_over_together_when_the_last_has_all_of_it(
    owner: Follower, arrive: Callable[[], Follower], tmp_path: Path
) -> None:
    first = push(owner, tmp_path / "one", 1)
    copy = arrive()
    assert copy.follow([owner.standing()]) == first
    assert owner.follow([copy.standing()]) == first
    second = push(owner, tmp_path / "two", 2)
    assert owner.follow([copy.standing()]) is None
    copy = arrive()
    assert copy.follow([owner.standing()]) == second
    assert owner.follow([copy.standing()]) == second
    owner.store.rollback(is_only_wanted=True)
    assert owner.follow([copy.standing()]) == first


def test_a_damaged_chunk_is_named_and_the_old_version_stays_until_it_is_mended(
    owner: Follower, arrive: Callable[[], Follower], tmp_path: Path
) -> None:
    first = push(owner, tmp_path / "one", 1)
    arrive().follow([owner.standing()])
    second = push(owner, tmp_path / "two", 2)
    copy = arrive()
    file = copy.store.versions / second / "model"
    file.chmod(0o644)
    with file.open("r+b") as opened:
        opened.seek(MiB)
        opened.write(b"!")
    for _ in range(2):
        assert copy.follow([owner.standing()]) is None
        assert copy.store.current() == first
        assert f"model of version {second} is damaged at byte {MiB}" in (copy.fault() or "")
        assert first in (copy.fault() or "")
        assert copy.standing().whole == {first}
        copy = arrive()  # a new driver: it knows from the disk
    file.unlink()
    file.write_bytes(bytes([2]) * (2 * MiB + 5))
    assert copy.follow([owner.standing()]) == second
    assert copy.fault() is None


def test_what_has_come_in_part_is_no_fault_and_not_in_force(
    owner: Follower, arrive: Callable[[], Follower], tmp_path: Path
) -> None:
    second = push(owner, tmp_path / "one", 1)
    copy = arrive()
    (copy.store.versions / second / "model").unlink()
    assert copy.follow([owner.standing()]) is None
    assert copy.store.current() is None
    assert copy.fault() is None
    assert copy.standing().whole == frozenset()
