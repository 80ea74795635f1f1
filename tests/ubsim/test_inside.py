"""A program that knows nothing of UB_ROOT, on a simulated node: the way of the vendor's own tools."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.ubsim.node import NewPod
from ubhost.ubcore.client import Ubcore
from ubhost.ubcore.transport import SimulatorChannel
from ubsim.handles import NodeHandle

TOP = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.scenario({"name": "inside", "super_node_id": 7, "nodes": [{"name": "node0", "devices": 1}]}),
]

FOREIGN_CODEC = """
import os, sys
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

class Message(genlmsg):
    prefix = "UBCORE_ATTR_"
    nla_map = (
        (5, "UBCORE_ATTR_DEV_NAME", "asciiz"), (6, "UBCORE_ATTR_NS_FD", "uint32"), (7, "UBCORE_ATTR_EID_IDX", "uint16"),
    )

driver = GenericNetlinkSocket()
driver.bind("UBCORE_GENL", Message)
netns = os.open(sys.argv[1], os.O_RDONLY)

def tell(command, **values):
    message = Message()
    message["cmd"], message["version"] = command, 1
    message["attrs"] = [(f"UBCORE_ATTR_{name}", value) for name, value in values.items()]
    try:
        driver.nlm_request(message, driver.prid, NLM_F_REQUEST | NLM_F_ACK)
        print("ok")
    except NetlinkError as error:
        print(os.strerror(error.code))

tell(8, DEV_NAME="udma2", NS_FD=netns)
tell(10, DEV_NAME="udma2", EID_IDX=0, NS_FD=netns)
tell(8, DEV_NAME="udma99", NS_FD=netns)
"""


ENVIRON = {**os.environ, "PYTHONPATH": f"{TOP}:{TOP}/proto"}


def command(node: NodeHandle, *argv: str, options: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-m", "ubnode", "sim", "exec", "--root", str(node.root.parent), *options, "--", *argv]


def inside(node: NodeHandle, *argv: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    asked = command(node, *argv, options=options)
    return subprocess.run(asked, env=ENVIRON, capture_output=True, text=True, timeout=120, check=False)


def test_it_sees_the_nodes_devices_and_the_machines_rest(ub_node: NodeHandle) -> None:
    script = """
        ls /sys/class/ubcore | tr '\\n' ' '; cat /sys/class/ubcore/udma2/eids/eid0 /sys/class/ubcore/udma2/port0/state
        ls /dev/uburma | wc -l; test -S /run/ubse/ubse.sock && ls -d /sys/class/net/lo /dev/null; echo away >/dev/null
    """
    done = inside(ub_node, "sh", "-c", script)
    assert done.stdout.splitlines() == [
        "bonding_dev_0 bonding_dev_1 udma0 udma1 udma2 udma3 4245:4944:0007:0000:0000:0002:0000:0000", "4",
        "6", "/dev/null", "/sys/class/net/lo",
    ]  # fmt: skip
    assert not Path("/sys/class/ubcore").exists()


def test_as_a_process_of_a_pod_it_sees_what_the_pod_was_given(ub_node: NodeHandle, new_pod: NewPod) -> None:
    options = ("--netns", "/run/netns/pod")
    pod = new_pod("pod")
    assert inside(ub_node, "ls", "/sys/class/ubcore", options=options).stdout == ""
    Ubcore(lambda: SimulatorChannel(ub_node.roots.simulator / "kernel.sock")).expose("udma2", pod)
    done = inside(ub_node, "sh", "-c", "cd /sys/class/ubcore && echo * && cat udma2/eids/eid0", options=options)
    assert done.stdout.splitlines() == ["udma2", "0000:0000:0000:0000:0000:0000:0000:0000"]


def test_its_generic_netlink_goes_to_the_nodes_driver(ub_node: NodeHandle, new_pod: NewPod) -> None:
    new_pod("pod")
    done = inside(ub_node, sys.executable, "-c", FOREIGN_CODEC, "/run/netns/pod")
    assert done.stdout.splitlines() == ["ok", "ok", "No such device"], done.stderr
    assert [(event["operation"], event["outcome"]) for event in ub_node.log()[-3:]] == [
        ("expose", "ok"), ("move_eid", "ok"), ("expose", "ENODEV"),
    ]  # fmt: skip


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_its_exit_code_is_ours(ub_node: NodeHandle, script: str, code: int) -> None:
    assert inside(ub_node, "sh", "-c", script).returncode == code


def test_a_program_that_is_not_there_is_named(ub_node: NodeHandle) -> None:
    done = inside(ub_node, "no-such-tool")
    assert (done.returncode, "no-such-tool" in done.stderr) == (127, True)


def test_it_ends_with_who_runs_it(ub_node: NodeHandle) -> None:
    asked = command(ub_node, "sh", "-c", "echo started; exec sleep 600")
    with subprocess.Popen(asked, env=ENVIRON, stdout=subprocess.PIPE) as runner:
        assert runner.stdout
        assert runner.stdout.readline() == b"started\n"
        runner.terminate()
        assert runner.stdout.read() == b""  # the program held the other end
