"""What ADD and DEL decide, as values in and values out. Source: style.md section 3.3."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_ub.errors import BadEnvironment
from cni_ub.plan import (
    Seen,
    Wanted,
    mark,
    plan_attach,
    plan_configure,
    plan_rates,
    read_mark,
    refuse_taken_name,
)
from cni_ub.planback import DeviceRelease, Held, LinkRelease, plan_device_release, plan_link_release
from cni_ub.steps import Expose, LimitReceiving, LimitSending, Move, MoveEids, SetAlias, SetMac, SetMtu, SetUp, Side
from ubhost.errors import NotFound
from ubhost.model import Link, Rate, Route
from ubhost.provider import Bandwidth
from ubhost.record import OriginalLink
from ubsim.fakes import fake_devices

DEVICE = fake_devices(1)[0]
HOST_LINK = Link(7, "ipourma1", "", is_up=True, alias="native", mtu=4094, mac="02:00:00:00:00:01")
WANT = Wanted(DEVICE, "net1", "ipourma1")
THERE = Seen(pod=replace(HOST_LINK, name="net1", alias=mark(HOST_LINK)), exposed=frozenset(DEVICE.members),
             eids=frozenset(DEVICE.eids))  # fmt: skip
ORIGINAL = OriginalLink("ipourma1", 7, 4094, "02:00:00:00:00:01", "native", 1000, is_up=True, pod_name="net1")


def test_a_link_goes_down_and_is_marked_before_it_moves_under_its_new_name() -> None:
    assert plan_attach(WANT, Seen(host=HOST_LINK)) == (
        SetUp(Side.HOST, "ipourma1", up=False),
        SetAlias(Side.HOST, "ipourma1", "ub-cni:ipourma1:native", "native"),
        Move(Side.HOST, "ipourma1", Side.POD, "net1"),
        SetUp(Side.POD, "net1", up=True),
        Expose(DEVICE.members, present=True),
        MoveEids(DEVICE.eids, Side.POD),
    )


def test_what_is_as_wanted_needs_nothing() -> None:
    assert plan_attach(WANT, THERE) == ()


def test_only_what_is_missing_is_planned() -> None:
    assert THERE.pod
    assert plan_attach(replace(WANT, mtu=1400), THERE) == (SetMtu(Side.POD, "net1", 1400, 4094),)
    hidden = replace(THERE, exposed=frozenset(DEVICE.members[1:]))
    assert plan_attach(WANT, hidden) == (Expose(DEVICE.members[:1], present=True),)


def test_a_missing_netdev_and_a_taken_name_are_refused() -> None:
    with pytest.raises(NotFound, match="ipourma1"):
        plan_attach(WANT, Seen())
    for seen in (Seen(host=HOST_LINK, pod_names=frozenset({"net1"})), THERE):
        with pytest.raises(BadEnvironment, match="CNI_IFNAME net1"):
            refuse_taken_name(WANT, seen)


def test_a_release_silences_the_device_and_brings_the_link_home_as_it_was() -> None:
    assert THERE.pod
    changed = replace(THERE, pod=replace(THERE.pod, mtu=1300))
    held = Held(DEVICE.id, DEVICE.members, link=ORIGINAL, limit=Bandwidth())
    assert plan_device_release(held, changed).device == (Expose(DEVICE.members, present=False),)
    release = plan_link_release(held, changed)
    assert release.quiet == (SetUp(Side.POD, "net1", up=False),)
    assert release.home == (
        Move(Side.POD, "net1", Side.HOST, "ipourma1"),
        SetMtu(Side.HOST, "ipourma1", 4094, 1300),
        SetUp(Side.HOST, "ipourma1", up=True),
        SetAlias(Side.HOST, "ipourma1", "native", "ub-cni:ipourma1:native"),
    )


def test_a_release_of_what_is_home_or_gone_plans_nothing() -> None:
    held = Held(DEVICE.id, DEVICE.members, link=ORIGINAL, limit=Bandwidth())
    for seen in (Seen(host=HOST_LINK), Seen()):
        assert (plan_device_release(held, seen), plan_link_release(held, seen)) == (DeviceRelease(), LinkRelease())


def test_a_link_whose_name_was_taken_at_home_comes_home_under_another() -> None:
    release = plan_link_release(Held(DEVICE.id, link=ORIGINAL), replace(THERE, host_names=frozenset({"ipourma1"})))
    assert release.home[0] == Move(Side.POD, "net1", Side.HOST, "ubcni7")


def test_without_a_record_the_mark_gives_the_name_back_and_hardware_its_address() -> None:
    assert THERE.pod
    changed = replace(THERE, pod=replace(THERE.pod, mac="02:00:00:00:00:77", permanent_mac="02:00:00:00:00:01"))
    release = plan_link_release(Held(DEVICE.id, netdev="ipourma1"), changed)
    assert release.home[0] == Move(Side.POD, "net1", Side.HOST, "ipourma1")
    assert SetMac(Side.HOST, "ipourma1", "02:00:00:00:00:01", "02:00:00:00:00:77") in release.home


def test_addresses_and_routes_are_planned_once() -> None:
    address, route = ip_interface("10.0.0.5/24"), Route(ip_network("0.0.0.0/0"), "10.0.0.1")
    assert len(plan_configure("net1", [address], [route], Seen())) == 2
    kernel = replace(route, table=254, scope=0)
    assert plan_configure("net1", [address], [route], Seen(addresses=(address,), routes=(kernel,))) == ()
    other = replace(route, priority=5)
    assert len(plan_configure("net1", [address], [other], Seen(addresses=(address,), routes=(kernel,)))) == 1


def test_a_rate_is_compared_without_its_burst() -> None:
    rate = Rate(80_000_000, 65536)
    want = replace(WANT, sending=rate, receiving=rate)
    assert plan_rates(want, Seen(sending=replace(rate, burst=65530), receiving=rate)) == ()
    assert plan_rates(want, Seen()) == (
        LimitSending("net1", rate, None),
        LimitReceiving("net1", want.shaper, rate, None),
    )
    assert len(want.shaper.encode()) <= 15


names = st.text(st.characters(codec="ascii", exclude_characters=":/ \n"), min_size=1, max_size=15)


@given(names, st.text(max_size=300))
def test_a_mark_tells_the_name_whatever_the_alias_was(name: str, alias: str) -> None:
    marked = mark(replace(HOST_LINK, name=name, alias=alias))
    assert len(marked.encode()) <= 255
    found = read_mark(marked)
    assert found
    assert found.name == name
    assert alias.startswith(found.alias)


@given(st.text(max_size=20))
def test_an_alias_of_somebody_else_is_no_mark(alias: str) -> None:
    assert read_mark(alias) is None or alias.startswith("ub-cni:")


@given(st.sampled_from([SetUp(Side.POD, "a", up=True), Move(Side.HOST, "a", Side.POD, "b"), SetMtu(Side.POD, "a", 1, 2),
                        Expose(("x",), present=True), MoveEids(DEVICE.eids, Side.POD)]))  # fmt: skip
def test_an_undone_undo_is_the_step(step: SetUp | Move | SetMtu | Expose | MoveEids) -> None:
    assert step.undo() != step
    assert step.undo().undo() == step
