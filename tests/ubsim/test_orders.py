"""What goes wrong with a node because a tester ordered it, and what without a daemon."""

import errno
import os
import threading

import pytest

from tests.ubsim.node import NewPod, succeeds
from tests.waiting import wait_for
from ubhost.errors import HostFault, InvalidRequest, Unsupported
from ubhost.providers import choose
from ubhost.ubcore.client import Refused, Ubcore
from ubhost.ubse.client import Ubse
from ubsim import record
from ubsim.handles import NodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_thread_is_left")]


def test_a_fault_on_order_hits_the_call_it_was_meant_for(
    ub_node: NodeHandle, ubcore: Ubcore, ubse: Ubse, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    ub_node.fail("expose", "EBUSY", device="udma3")
    ub_node.fail("allocate", "EIO")
    ubcore.expose("udma2", pod)
    with pytest.raises(Refused) as caught:
        ubcore.expose("udma3", pod)
    assert caught.value.code == errno.EBUSY
    ubcore.expose("udma3", pod)
    with pytest.raises(HostFault):
        ubse.allocate("urma_1")
    outcomes = [(e["operation"], e["device"], e["outcome"]) for e in ub_node.log() if e["operation"] != "order"]
    assert outcomes == [
        ("expose", "udma2", "ok"),
        ("expose", "udma3", "EBUSY"),
        ("expose", "udma3", "ok"),
        ("allocate", "urma_1", "ENGINE_INTERNAL"),
    ]


def test_a_slow_operation_holds_up_nobody_else(ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    ub_node.delay("expose", 4.0)
    slow = threading.Thread(target=lambda: ubcore.expose("udma2", pod))
    slow.start()
    wait_for(lambda: not ub_node.status()["faults"])  # it waits now
    ubcore.show_system()
    assert slow.is_alive()
    slow.join()
    assert [event["operation"] for event in ub_node.log()[-2:]] == ["show_system", "expose"]


@pytest.mark.parametrize(
    "order",
    [
        {"operation": "explode", "errno": "EPERM"},
        {"operation": "expose", "errno": "EWHAT"},
        {"operation": "expose"},
        {"operation": "expose", "errno": "EPERM", "count": 0},
        {"operation": "expose", "delay_s": -1.0},
        {"operation": "expose", "delay_s": float("nan")},
        {"operation": "expose", "delay_s": float("inf")},
        {"operation": "expose", "errno": "EPERM", "colour": "red"},
        {"operation": "expose", "errno": "EPERM", "when": "never"},
    ],
)
def test_a_wrong_order_is_refused(ub_node: NodeHandle, order: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        ub_node.order("fail", **order)


def test_a_dead_daemon_is_no_simulated_host(ub_node: NodeHandle) -> None:
    os.kill(_daemon(ub_node), 9)
    wait_for(lambda: not succeeds(lambda: choose(ub_node.roots, "sim")))
    with pytest.raises(Unsupported, match="no simulator answers"):
        choose(ub_node.roots, "sim")


def _daemon(node: NodeHandle) -> int:
    running = record.read(node.root.parent)
    assert running is not None
    return running.processes[0].pid
