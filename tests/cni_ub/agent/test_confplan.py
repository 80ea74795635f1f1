"""What the CNI configuration of a node must look like."""

import json
from typing import Any

import pytest
import yaml

from cni_ub.agent.confplan import Found, net_attach_def, primary, read, wanted
from cni_ub.agent.settings import ConfMode, ConfSettings
from ubhost.errors import Conflict, InvalidRequest, NotFound, Unsupported

BRIDGE = {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
CALICO = {"cniVersion": "0.3.1", "name": "k8s-pod-network", "disableCheck": True, "plugins": [BRIDGE, PORTMAP]}
MULTUS = {"cniVersion": "0.3.1", "name": "multus-cni-network", "plugins": [{"type": "multus-shim"}]}
LIST = ConfSettings(ConfMode.CONFLIST)
SUBDIR = ConfSettings(ConfMode.SUBDIR)


def file(name: str, content: object) -> Found:
    return read(name, json.dumps(content).encode())


def made(settings: ConfSettings, *files: Found) -> dict[str, Any]:
    return {path: json.loads(text) for path, text in wanted(files, settings).items()}


def test_the_copy_holds_everything_of_the_primary_and_ub_cni_at_the_end() -> None:
    ((name, content),) = made(LIST, file("10-calico.conflist", CALICO)).items()
    assert name < "10-calico.conflist"
    *others, ours = content.pop("plugins")
    assert others == [BRIDGE, PORTMAP]
    assert content == {"cniVersion": "0.3.1", "name": "k8s-pod-network", "disableCheck": True}
    assert ours == {
        "type": "ub-cni",
        "mode": "chained",
        "capabilities": {"deviceID": True, "CNIDeviceInfoFile": True},
        "generatedBy": "ub-agent",
    }


def test_a_single_plugin_becomes_a_list() -> None:
    single = {"cniVersion": "0.3.1", "name": "net", **BRIDGE}
    ((_, content),) = made(LIST, file("99-bridge.conf", single)).items()
    assert content["cniVersion"] == "0.3.1"
    assert content["name"] == "net"
    assert content["plugins"][0] == BRIDGE
    assert content["plugins"][1]["type"] == "ub-cni"


def test_what_the_administrator_wrote_for_ub_cni_is_taken_over() -> None:
    settings = ConfSettings(ConfMode.CONFLIST, network={"isolation": "shared", "capabilities": {"bandwidth": True}})
    ((_, content),) = made(settings, file("10-calico.conflist", CALICO)).items()
    assert content["plugins"][-1] == {
        "type": "ub-cni",
        "mode": "chained",
        "isolation": "shared",
        "capabilities": {"bandwidth": True},
        "generatedBy": "ub-agent",
    }
    with pytest.raises(InvalidRequest, match=r"conf\.network\.type is 'bridge'"):
        made(ConfSettings(ConfMode.CONFLIST, network={"type": "bridge"}), file("10-calico.conflist", CALICO))


@pytest.mark.parametrize("name", ["10-calico.conflist", "00-zz.conflist", "00-bridge.conf", "00-.conf", "0-a.conf"])
def test_our_name_sorts_before_the_primary(name: str) -> None:
    content = CALICO if name.endswith("list") else {"name": "net", **BRIDGE}
    (ours,) = made(LIST, file(name, content))
    assert ours < name


def test_where_nothing_sorts_before_the_primary_it_is_said() -> None:
    with pytest.raises(Unsupported, match=r"no name of ours sorts before !first\.conflist"):
        wanted([file("!first.conflist", CALICO)], LIST)


def test_the_first_file_is_the_primary_but_ours_and_multus_are_not() -> None:
    ours = file("00-ub-cni.conflist", made(LIST, file("10-calico.conflist", CALICO))["00-ub-cni.conflist"])
    files = [
        file("20-other.conflist", CALICO),
        file("10-calico.conflist", CALICO),
        file("00-multus.conf", MULTUS),
        ours,
    ]
    assert primary(files).name == "10-calico.conflist"
    assert list(made(LIST, *files)) == ["00-ub-cni.conflist"]  # after 00-multus.conf, which wraps it in turn


def test_without_a_primary_nothing_is_wanted() -> None:
    assert wanted([], LIST) == {}
    assert wanted([file("00-multus.conf", MULTUS)], LIST) == {}
    with pytest.raises(NotFound, match="no network is configured"):
        primary([])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b'{"name": "k8s', "not JSON"),
        (b"[]", "a list, not an object"),
        (b'{"name": "x"}', "a list without plugins"),
        (b'{"name": "x", "plugins": []}', "a plugin without a type"),
        (b'{"name": "x", "plugins": [{}]}', "a plugin without a type"),
        (b'{"name": "x", "plugins": 3}', "a plugin without a type"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_primary_that_cannot_be_read_is_no_reason_to_do_anything(text: bytes, why: str) -> None:
    with pytest.raises(Conflict, match=f"10-calico.conflist is {why}"):
        wanted([read("10-calico.conflist", text)], LIST)


def test_a_damaged_file_of_ours_is_no_primary() -> None:
    files = [read("00-ub-cni.conflist", b"{"), file("10-calico.conflist", CALICO)]
    assert list(made(LIST, *files)) == ["00-ub-cni.conflist"]


@pytest.mark.parametrize("settings", [LIST, SUBDIR])
def test_an_administrator_who_put_ub_cni_in_is_left_alone(settings: ConfSettings) -> None:
    by_hand = {**CALICO, "plugins": [BRIDGE, {"type": "ub-cni"}]}
    for name in ("10-calico.conflist", "00-ub-cni.conflist"):
        assert wanted([file(name, by_hand), file("20-other.conflist", CALICO)], settings) == {}


def test_in_a_folder_of_the_network_there_is_just_our_part() -> None:
    assert made(SUBDIR, file("10-calico.conflist", CALICO)) == {
        "k8s-pod-network/ub-cni.conf": {
            "type": "ub-cni",
            "mode": "chained",
            "capabilities": {"deviceID": True, "CNIDeviceInfoFile": True},
            "generatedBy": "ub-agent",
        }
    }


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("10-bridge.conf", {"name": "net", **BRIDGE}, "one plugin, not a list"),
        ("10-a.conflist", {**CALICO, "loadOnlyInlinedPlugins": True}, "sets loadOnlyInlinedPlugins"),
        ("10-a.conflist", {**CALICO, "loadOnlyInlinedPlugins": "TRUE"}, "sets loadOnlyInlinedPlugins"),
        ("10-a.conflist", {**CALICO, "name": "../../etc"}, r"'\.\./\.\./etc' in 10-a.conflist cannot be a folder"),
        ("10-a.conflist", {**CALICO, "name": ".."}, "cannot be a folder"),
        ("10-a.conflist", {"plugins": [BRIDGE]}, "'' in 10-a.conflist cannot be a folder"),
    ],
)
def test_where_libcni_would_not_look_the_other_mode_is_named(name: str, content: object, why: str) -> None:
    with pytest.raises(Unsupported, match=f"{why}.*use conf.mode conflist"):
        wanted([file(name, content)], SUBDIR)


@pytest.mark.parametrize("mode", [ConfMode.OFF, ConfMode.NAD])
def test_off_and_nad_want_nothing_on_the_node(mode: ConfMode) -> None:
    assert wanted([file("10-calico.conflist", CALICO)], ConfSettings(mode)) == {}


def test_a_network_attachment_definition_names_the_resource_and_holds_a_list_as_text() -> None:
    settings = ConfSettings(ConfMode.NAD, network={"ipam": {"type": "host-local"}}, nad_name="fast", nad_namespace="ai")
    definition = yaml.safe_load(net_attach_def(settings, "unifiedbus.com/ub_net_device"))
    assert definition["kind"] == "NetworkAttachmentDefinition"
    assert definition["metadata"] == {
        "name": "fast",
        "namespace": "ai",
        "annotations": {"k8s.v1.cni.cncf.io/resourceName": "unifiedbus.com/ub_net_device"},
    }
    config = json.loads(definition["spec"]["config"])
    assert config["cniVersion"] == "1.1.0"
    (plugin,) = config["plugins"]
    assert plugin == {
        "type": "ub-cni",
        "capabilities": {"deviceID": True, "CNIDeviceInfoFile": True, "bandwidth": True},
        "ipam": {"type": "host-local"},
    }
