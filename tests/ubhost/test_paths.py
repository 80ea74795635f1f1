"""Which way is best, and what a pod is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ubhost.errors import Unsupported
from ubhost.paths import End, PeerNode, Sockets, Way, choose_sockets, document, rows, ways_between

ways = st.frozensets(st.sampled_from(Way))


@given(ways, ways, st.booleans())
def test_both_ends_have_every_way_and_ip_is_always_the_last(
    one: frozenset[Way], other: frozenset[Way], same_host: bool
) -> None:
    found = ways_between(one, other, same_host=same_host)
    assert found[-1] is Way.IP
    assert set(found) - {Way.IP} <= one & other
    assert found == ways_between(other, one, same_host=same_host)
    assert same_host or Way.SHM not in found
    assert list(found) == sorted(found, key=list(Way).index)


@pytest.mark.parametrize(
    ("asked", "has_ums", "has_smc", "chosen"),
    [
        (Sockets.OFF, True, True, Sockets.OFF),
        (Sockets.AUTO, True, True, Sockets.UMS),
        (Sockets.AUTO, False, True, Sockets.SMC),
        (Sockets.AUTO, False, False, Sockets.OFF),
        (Sockets.SMC, False, True, Sockets.SMC),
        (Sockets.UMS, True, False, Sockets.UMS),
    ],
)
def test_auto_takes_what_is_there_and_never_fails(
    asked: Sockets, has_ums: bool, has_smc: bool, chosen: Sockets
) -> None:
    assert choose_sockets(asked, has_ums=has_ums, has_smc=has_smc) is chosen


@pytest.mark.parametrize(("asked", "why"), [(Sockets.UMS, "module ums"), (Sockets.SMC, "no SMC")])
def test_what_was_asked_for_by_name_and_is_not_here_is_refused(asked: Sockets, why: str) -> None:
    with pytest.raises(Unsupported, match=f"zeroCopy.sockets '{asked.value}' is not possible here: .*{why}"):
        choose_sockets(asked, has_ums=False, has_smc=False)


def end(name: str, *has: Way, network: str = "ub") -> End:
    return End(f"default/{name}", network, f"c-{name}", "net1", frozenset(has), ("fd00::1",), ("00:1",))


def test_a_pod_is_told_of_the_others_of_its_network_and_of_the_other_nodes() -> None:
    own = end("a", Way.URMA, Way.SHM)
    others = [own, end("c", Way.SHM), end("b", Way.URMA, Way.SMC, Way.SHM), end("x", Way.URMA, network="other")]
    told = document(own, others, [PeerNode("node1", 1, 1, frozenset({Way.URMA}))])
    assert told["shared_memory"] == "/run/ub/shm/net1/segment"
    assert told["ways"] == ["urma", "shm", "ip"]
    assert [(p["kind"], p["name"], p["best"], p["ways"]) for p in told["peers"]] == [
        ("pod", "default/b", "urma", ["urma", "shm", "ip"]),
        ("pod", "default/c", "shm", ["shm", "ip"]),
        ("node", "node1", "urma", ["urma", "ip"]),
    ]
    assert told["peers"][0]["addresses"] == ["fd00::1"]
    assert rows({"default/a net1": told})[1] == (
        "default/a", "ub", "net1", "pod", "default/c", "shm", "shm ip",
    )  # fmt: skip


def test_a_pod_without_shared_memory_is_told_of_none() -> None:
    assert document(end("a", Way.URMA), [], [])["shared_memory"] is None
