"""Results of every version. Source: reference/cni.md section 1.6."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_ub import results
from cni_ub.errors import NotExpressible, Undecodable
from cni_ub.results import Result
from cni_ub.spec import VERSIONS

RICH = Result(
    interfaces=({"name": "net1", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": "/n", "pciID": "0000:03:00.1"},),
    ips=(
        {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0},
        {"address": "fd00::5/64", "interface": 0},
        {"address": "10.2.0.5/16", "interface": 0},
    ),
    routes=({"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400}, {"dst": "::/0", "gw": "fd00::1"}),
    dns={"nameservers": ["10.1.0.10"]},
)


def test_one_point_x_says_everything() -> None:
    assert results.express(RICH, "1.1.0") == {
        "cniVersion": "1.1.0",
        "interfaces": list(RICH.interfaces),
        "ips": list(RICH.ips),
        "routes": list(RICH.routes),
        "dns": dict(RICH.dns),
    }


def test_empty_things_are_left_out_since_1_0_and_dns_is_always_there_before() -> None:
    assert results.express(Result(), "1.0.0") == {"cniVersion": "1.0.0"}
    assert results.express(Result(), "0.4.0") == {"cniVersion": "0.4.0", "dns": {}}


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_before_1_0_addresses_have_a_family_and_interfaces_three_keys(version: str) -> None:
    document = results.express(RICH, version)
    assert [ip["version"] for ip in document["ips"]] == ["4", "6", "4"]
    assert document["interfaces"] == [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/n"}]
    assert document["routes"] == list(RICH.routes)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_before_0_3_there_is_one_address_of_each_family_with_its_routes(version: str) -> None:
    assert results.express(RICH, version) == {
        "cniVersion": version,
        "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]},
        "ip6": {"ip": "fd00::5/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
        "dns": {"nameservers": ["10.1.0.10"]},
    }


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_before_0_3_a_result_without_an_address_cannot_be_said(version: str) -> None:
    with pytest.raises(NotExpressible):
        results.express(Result(interfaces=RICH.interfaces), version)
    with pytest.raises(NotExpressible):
        results.refuse_inexpressible(version, has_address=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_said_is_read_back(version: str) -> None:
    document = results.express(RICH, version)
    assert results.express(results.parse(document, version, "it"), version) == document


def test_a_result_without_a_version_is_of_the_configurations() -> None:
    flat = {"ip4": {"ip": "10.1.0.5/16"}}
    assert results.parse(flat, "0.2.0", "it").ips == ({"address": "10.1.0.5/16"},)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"ips": [None]},
        {"ips": {}},
        {"ips": [{"address": "10.1.0.5"}]},
        {"ips": [{"address": 5}]},
        {"ips": [{"address": "10.1.0.5/16", "interface": "0"}]},
        {"interfaces": ["eth0"]},
        {"routes": [{"gw": "10.1.0.1"}]},
        *({"ips": [{"address": "10.1.0.5/16", "interface": odd}]} for odd in (True, -1, 0.0, 1 << 32)),
        *({"ips": [{"address": "10.1.0.5/16", "gateway": odd}]} for odd in (5, "x", "10.1.0.1/16", ["10.1.0.1"])),
        *({"routes": [{"dst": "::/0", "gw": odd}]} for odd in (5, "x", "fe80::1%eth0", {"a": 1})),
        *({"routes": [{"dst": "::/0", "mtu": odd}]} for odd in ("1", True, -1, 1 << 32)),
        {"routes": [{"dst": "::/0", "table": "main"}]},
        {"routes": [{"dst": "::/0", "scope": 256}]},
        *({"interfaces": [{"name": "eth0", key: odd}]} for key in ("mac", "sandbox") for odd in (5, [5], False)),
        {"interfaces": [{"name": "eth0", "mtu": "1500"}]},
        {"dns": []},
        *({"dns": {key: odd}} for key in ("nameservers", "search", "options") for odd in ("x", [5], {"a": 1})),
        {"dns": {"domain": 5}},
        {"cniVersion": "9.9.9"},
        {"cniVersion": "0.2.0", "ip4": []},
        {"cniVersion": "0.2.0", "ip4": {"ip": "x"}},
        {"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16", "gateway": 5}},
        {"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16", "routes": [{"dst": "0.0.0.0/0", "gw": 5}]}},
        {"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16", "routes": [None]}},
    ],
)
def test_what_is_not_a_result_is_refused(document: object) -> None:
    with pytest.raises(Undecodable, match="prevResult"):
        results.parse(document, "1.0.0", "prevResult")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["10.1.0.5/16", "0.2.0", "::/0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["cniVersion", "interfaces", "ips", "routes", "dns", "ip4", "ip6"])


@given(st.dictionaries(keys, json_values, max_size=5), st.sampled_from(VERSIONS))
def test_any_document_is_read_or_refused_in_words(document: dict[str, object], version: str) -> None:
    with contextlib.suppress(Undecodable):
        read = results.parse(document, version, "it")
        with contextlib.suppress(NotExpressible):
            results.express(read, version)
