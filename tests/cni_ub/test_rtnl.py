"""Our rtnetlink against pyroute2's: what one writes the other reads."""

import os
from collections.abc import Iterator
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pyroute2
import pytest

from tests.cni_ub.machine import ip
from ubhost.errors import HostFault, InvalidRequest
from ubhost.kernel import netns
from ubhost.kernel.rtnl import Refused, Rtnl
from ubhost.model import Link, Route

pytestmark = pytest.mark.kernel


@pytest.fixture
def ours() -> Iterator[Rtnl]:
    ip("link add one type veth peer name two")
    with Rtnl() as rtnl:
        yield rtnl
    ip("link del one")


@pytest.fixture
def theirs() -> Iterator[Any]:
    with pyroute2.IPRoute() as oracle:
        yield oracle


def seen(theirs: Any, name: str) -> dict[str, Any]:
    (link,) = theirs.get_links(ifname=name)
    names = link.get_attr("IFLA_PROP_LIST")
    return {
        "index": link["index"],
        "up": bool(link["flags"] & 1),
        "alias": link.get_attr("IFLA_IFALIAS") or "",
        "mtu": link.get_attr("IFLA_MTU"),
        "mac": link.get_attr("IFLA_ADDRESS"),
        "qlen": link.get_attr("IFLA_TXQLEN"),
        "altnames": tuple(names.get_attrs("IFLA_ALT_IFNAME")) if names else (),
    }


def mine(link: Link | None) -> dict[str, Any]:
    assert link
    return {
        "index": link.index,
        "up": link.is_up,
        "alias": link.alias,
        "mtu": link.mtu,
        "mac": link.mac,
        "qlen": link.qlen,
        "altnames": link.altnames,
    }


def test_every_change_is_seen_alike_by_both(ours: Rtnl, theirs: Any) -> None:
    link = ours.link("one")
    assert link
    assert mine(link) == seen(theirs, "one")
    ours.set_alias(link.index, "ub-cni:one:é")
    ours.set_mtu(link.index, 1400)
    ours.set_mac(link.index, "02:00:00:00:00:01")
    ours.set_qlen(link.index, 7)
    ours.add_altname(link.index, "a-name-of-more-than-fifteen-bytes")
    ours.add_altname(link.index, "short")
    ours.set_up(link.index, up=True)
    expected = {
        "index": link.index,
        "up": True,
        "alias": "ub-cni:one:é",
        "mtu": 1400,
        "mac": "02:00:00:00:00:01",
        "qlen": 7,
        "altnames": ("a-name-of-more-than-fifteen-bytes", "short"),
    }
    assert mine(ours.link("one")) == seen(theirs, "one") == expected
    assert ours.link("short") == ours.link("a-name-of-more-than-fifteen-bytes") == ours.link("one")
    ours.remove_altname(link.index, "short")
    ours.rename(link.index, "three")
    ours.set_alias(link.index, "")
    ours.set_up(link.index, up=False)
    found = ours.link_at(link.index)
    assert mine(found) == seen(theirs, "three")
    assert found
    assert (found.name, found.alias, found.is_up) == ("three", "", False)
    assert ours.link("one") is None
    ours.rename(link.index, "one")


def test_the_other_end_of_a_veth_tells_its_number_and_namespace(ours: Rtnl) -> None:
    ip("netns add away")
    ip("link set two netns away")
    with Path("/run/netns/away").open("rb") as away, Rtnl(away.fileno()) as theirs:
        one, two = ours.link("one"), theirs.link("two")
        assert one
        assert two
        assert (one.kind, one.peer, two.peer) == ("veth", two.index, one.index)
        assert one.peer_netns == ours.nsid(away.fileno()) >= 0
        theirs.set_group(two.index, 77)
        theirs.set_promisc(two.index, on=True)
        changed = theirs.link("two")
        assert changed
        assert (changed.group, changed.is_promisc) == (77, True)
    ip("-n away link set two netns 1")
    ip("netns del away")
    back = ours.link("two")
    assert back
    assert back.peer_netns is None


def test_the_list_of_links_is_theirs(ours: Rtnl, theirs: Any) -> None:
    assert {link.name for link in ours.links()} == {link.get_attr("IFLA_IFNAME") for link in theirs.get_links()}


def test_addresses_are_usable_at_once_and_go_again(ours: Rtnl, theirs: Any) -> None:
    link = ours.link("one")
    assert link
    ours.set_up(link.index, up=True)
    given = (ip_interface("10.7.0.1/24"), ip_interface("fd00:7::1/64"))
    for address in given:
        ours.add_address(link.index, address)
    assert ours.addresses(link.index) == given
    flags = {a.get_attr("IFA_ADDRESS"): a.get_attr("IFA_FLAGS") for a in theirs.get_addr(index=link.index)}
    assert not flags["fd00:7::1"] & 0x40  # not tentative: no duplicate address detection to wait for
    with pytest.raises(Refused, match="EEXIST"):
        ours.add_address(link.index, given[0])
    for address in given:
        ours.remove_address(link.index, address)
    assert ours.addresses(link.index) == ()


@pytest.mark.parametrize(
    "route",
    [
        Route(ip_network("10.8.0.0/16")),
        Route(ip_network("0.0.0.0/0"), "10.7.0.254", mtu=1300, advmss=1200, priority=50, table=1000),
        Route(ip_network("10.9.0.0/16"), "10.7.0.254", table=100),
        Route(ip_network("fd00:8::/32"), "fd00:7::ff", priority=5),
        Route(ip_network("::/0"), "fd00:7::ff", mtu=1400),
    ],
)
def test_a_route_is_read_back_with_all_that_was_asked(ours: Rtnl, theirs: Any, route: Route) -> None:
    link = ours.link("one")
    assert link
    ip("link set two up")
    ours.set_up(link.index, up=True)
    ours.add_address(link.index, ip_interface("10.7.0.1/24"))
    ours.add_address(link.index, ip_interface("fd00:7::1/64"))
    ours.add_route(link.index, route)
    (found,) = (r for r in ours.routes(link.index) if r.destination == route.destination)
    assert found.gateway == route.gateway
    for asked, there in ((route.mtu, found.mtu), (route.advmss, found.advmss), (route.priority, found.priority)):
        assert asked in (None, there)
    assert found.table == (route.table or 254)
    family = 2 if route.destination.version == 4 else 10
    assert any(r.get_attr("RTA_GATEWAY") == route.gateway for r in theirs.get_routes(family=family, table=found.table))
    ours.remove_route(link.index, route)
    assert all(r.destination != route.destination for r in ours.routes(link.index))


def test_a_move_takes_the_new_name_along_even_where_the_old_one_is_taken(ours: Rtnl) -> None:
    ip("netns add there")
    ip("-n there link add one type veth peer name other")
    try:
        link = ours.link("one")
        assert link
        with Path("/run/netns/there").open("rb") as there, Rtnl(there.fileno(), "there") as inside:
            ours.move(link.index, there.fileno(), "net1")
            assert ours.link("one") is None
            moved = inside.link("net1")
            assert moved
            assert (moved.mac, moved.netns) == (link.mac, "there")
            assert inside.cookie != ours.cookie
            with Path("/proc/self/ns/net").open("rb") as here:
                inside.move(moved.index, here.fileno(), "one")
    finally:
        ip("netns del there")


def test_a_namespace_that_is_none_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for path in (tmp_path / "fifo", tmp_path / "file", tmp_path, Path("/proc/self/ns/mnt")):
        with pytest.raises(InvalidRequest, match="is not a network namespace"):
            netns.open_netns(str(path))
    with pytest.raises(netns.Gone):
        netns.open_netns(str(tmp_path / "absent"))


def test_what_the_kernel_refuses_is_said_in_its_words(ours: Rtnl) -> None:
    with pytest.raises(HostFault, match=r"ENODEV|No such device"):
        ours.set_up(99999, up=True)
