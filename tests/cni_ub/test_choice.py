"""Which device an attachment gets. Source: design section 4, five sources; reference/cni.md section 7.4."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_ub.choice import choose_device
from cni_ub.host import Host
from cni_ub.protocol import Request, read_conf
from ubhost.errors import Conflict, InvalidRequest, NotFound
from ubhost.ledger import Ledger
from ubhost.record import Record
from ubhost.roots import Roots
from ubsim.fakes import FakeProvider, fake_devices

PROVIDER = FakeProvider(fake_devices(4), init_netns=1)


def host(root: Path, *given: str, unknown: bool = False) -> Host:
    """A host whose kubelet gave the pod ns/p the devices ``given``."""

    def devices_of(namespace: str, name: str) -> tuple[str, ...]:
        assert (namespace, name) == ("ns", "p")
        if unknown:
            raise NotFound("no such pod")
        return given

    roots = Roots(root)
    return Host(roots, Ledger(roots), lambda: PROVIDER, devices_of)


def request(**keys: Any) -> Request:
    conf = read_conf({"cniVersion": "1.1.0", "name": "n", **keys})
    args = {"K8S_POD_NAMESPACE": "ns", "K8S_POD_NAME": "p"}
    return Request("ADD", conf, {}, b"", "", "c1", "/n", "net1", args)


def chosen(host: Host, request: Request) -> str | None:
    device = choose_device(host, request, PROVIDER)
    return device.id if device else None


def test_what_the_runtime_says_comes_first(tmp_path: Path) -> None:
    info = tmp_path / "info"
    info.write_text(json.dumps({"type": "ub", "ub": {"device-id": "urma_3"}}))
    runtime = {"deviceID": "urma_1", "CNIDeviceInfoFile": str(info)}
    assert chosen(host(tmp_path), request(runtimeConfig=runtime)) == "urma_1"
    assert (
        chosen(host(tmp_path), request(deviceID="urma_2", runtimeConfig={"CNIDeviceInfoFile": str(info)})) == "urma_2"
    )
    assert chosen(host(tmp_path), request(runtimeConfig={"CNIDeviceInfoFile": str(info)})) == "urma_3"
    assert chosen(host(tmp_path, "urma_4"), request()) == "urma_4"


@pytest.mark.parametrize("name", ["urma_2", "urma_2::7", "bonding_dev_2", "udma4", "00002"])
def test_a_device_is_found_under_each_of_its_names(tmp_path: Path, name: str) -> None:
    assert chosen(host(tmp_path), request(deviceID=name)) == "urma_2"
    assert chosen(host(tmp_path), request(pciBusID=name)) == "urma_2"


def test_two_names_of_the_runtime_must_agree() -> None:
    with pytest.raises(InvalidRequest, match=r"urma_1.*urma_2"):
        request(deviceID="urma_2", runtimeConfig={"deviceID": "urma_1"})


def test_the_kth_attachment_gets_the_kth_device_of_the_pod(tmp_path: Path) -> None:
    machine = host(tmp_path, "urma_3", "urma_1")
    assert chosen(machine, request()) == "urma_3"
    machine.ledger.write(Record("urma_3", "c1", "net1"))
    assert chosen(machine, request()) == "urma_1"
    machine.ledger.write(Record("urma_1", "c1", "net2"))
    with pytest.raises(InvalidRequest, match="no deviceID"):
        chosen(machine, request())


def test_a_device_that_kubelet_gave_to_somebody_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"urma_2.*ns/p urma_1"):
        chosen(host(tmp_path, "urma_1"), request(deviceID="urma_2"))
    assert chosen(host(tmp_path), request(deviceID="urma_2")) == "urma_2"


def test_a_pod_without_a_device_is_for_a_chain_only(tmp_path: Path) -> None:
    chained = request(prevResult={"interfaces": []})
    for machine in (host(tmp_path), host(tmp_path, unknown=True), replace(host(tmp_path), devices_of=None)):
        assert chosen(machine, chained) is None
        with pytest.raises(InvalidRequest, match="no deviceID"):
            chosen(machine, request())


def test_an_unknown_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="urma_9"):
        chosen(host(tmp_path), request(deviceID="urma_9"))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"ub": []}', '{"pci": {"pci-address": ""}}'])
def test_a_senseless_device_info_file_names_no_device(tmp_path: Path, content: str) -> None:
    (tmp_path / "info").write_text(content)
    with pytest.raises(InvalidRequest):
        chosen(host(tmp_path), request(runtimeConfig={"CNIDeviceInfoFile": str(tmp_path / "info")}))


def test_a_device_info_file_that_nobody_wrote_is_no_error(tmp_path: Path) -> None:
    conf = request(runtimeConfig={"CNIDeviceInfoFile": str(tmp_path / "absent")})
    assert chosen(host(tmp_path, "urma_4"), conf) == "urma_4"
