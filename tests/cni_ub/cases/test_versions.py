"""D. Every version of CNI, in its own form and with the verbs that it has."""

import json
import os
import subprocess

import pytest

from tests.cni_ub.machine import EXECUTABLE, REPOSITORY
from tests.cni_ub.node import SimulatedNode, attach

pytestmark = pytest.mark.kernel
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


def test_h35_versions(node: SimulatedNode, pod: str) -> None:
    answer = node.call("ADD", node.conf(cniVersion="9.9.9"), pod=pod)
    assert answer.error[0] == 1
    assert "1.1.0" in answer.document["details"]
    conf = node.conf()
    del conf["cniVersion"]
    assert node.call("ADD", conf, pod=pod).document["cniVersion"] == "0.1.0"


def test_h41_version_asks_for_nothing(node: SimulatedNode) -> None:
    dummies = {"CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_PATH": "dummy", "CNI_CONTAINERID": "dummy"}
    for stdin in (b'{"cniVersion":"0.4.0"}', b"", None):
        answer = node.call("VERSION", stdin, **dummies)
        assert (answer.code, answer.document["supportedVersions"]) == (0, VERSIONS)


def test_h41_version_does_not_wait_for_a_stdin_that_nobody_closes(node: SimulatedNode) -> None:
    asking, answering = os.pipe()
    try:
        ran = subprocess.run(
            EXECUTABLE,
            stdin=asking,
            env={"CNI_COMMAND": "VERSION", "PYTHONPATH": str(REPOSITORY), "UB_ROOT": str(node.root)},
            capture_output=True,
            timeout=60,
            check=True,
        )
    finally:
        os.close(asking)
        os.close(answering)
    assert json.loads(ran.stdout)["supportedVersions"] == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gets_its_own_form_and_every_verb_it_has(node: SimulatedNode, pod: str, version: str) -> None:
    before = node.state()
    result = attach(node, pod, cniVersion=version)
    assert result["cniVersion"] == version
    conf = node.conf(cniVersion=version, prevResult=result)
    checked = node.call("CHECK", conf, pod=pod)
    assert checked.code == 0 if version >= "0.4.0" else checked.error[0] == 1
    status = node.call("STATUS", node.conf(cniVersion=version))
    assert status.code == 0 if version >= "1.1.0" else status.error[0] == 1
    assert node.call("DEL", conf, pod=pod).code == 0
    assert node.state() == before
