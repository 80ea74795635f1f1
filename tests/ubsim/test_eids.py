"""EIDs come and go through the memory of the caller, and a context on one is for whom it was given to."""

import errno
import fcntl
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.ubsim.node import NewPod
from ubhost.kernel.netns import visiting
from ubhost.provider import Provider
from ubhost.ubcore.client import Refused, Ubcore
from ubsim.contexts import context
from ubsim.handles import NodeHandle

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_thread_is_left")]


def test_an_eid_is_deleted_and_asked_for_again_through_the_memory_of_the_caller(
    ub_node: NodeHandle, ubcore: Ubcore, provider: Provider
) -> None:
    slots = provider.device("urma_1").eids
    lost = next(slot for slot in slots if slot.device == "udma2" and slot.index == 3)
    ubcore.delete_eid("udma2", 3)
    assert provider.device("urma_1").eids == tuple(slot for slot in slots if slot != lost)
    ubcore.add_eid("udma2", 3)
    assert provider.device("urma_1").eids == slots
    for change, device, index, code in (
        (ubcore.add_eid, "udma2", 900, errno.EINVAL),
        (ubcore.add_eid, "udma99", 0, errno.EPERM),
        (ubcore.delete_eid, "udma2", 900, errno.EINVAL),
    ):
        with pytest.raises(Refused) as caught:
            change(device, index)
        assert caught.value.code == code


def test_an_eid_goes_to_the_namespace_whose_descriptor_lies_in_the_callers_memory(
    ubcore: Ubcore, provider: Provider, new_pod: NewPod
) -> None:
    pod = new_pod("pod")
    ubcore.move_device("udma2", pod)
    ubcore.delete_eid("udma2", 3)
    ubcore.add_eid("udma2", 3, pod)
    assert 3 in [slot.index for slot in provider.visible(pod)]
    with pytest.raises(Refused) as caught:
        ubcore.add_eid("udma2", 3, 999)
    assert caught.value.code == errno.EBADF


def test_a_change_of_who_assigns_eids_drops_them_all(ubcore: Ubcore, provider: Provider, ub_node: NodeHandle) -> None:
    ubcore.set_eid_mode("udma2", dynamic=True)
    assert not [slot for slot in provider.device("urma_1").eids if slot.device == "udma2"]
    assert (ub_node.roots.sys / "class/ubcore/udma2/dynamic_eid").read_text() == "1\n"
    with pytest.raises(Refused) as caught:
        ubcore.add_eid("udma2", 0)
    assert caught.value.code == errno.EPERM


@pytest.mark.parametrize("given", [("device", "eid"), ("device",), ()])
def test_a_context_is_for_whom_the_device_and_the_eid_were_given_to(
    ub_node: NodeHandle, ubcore: Ubcore, new_pod: NewPod, given: tuple[str, ...]
) -> None:
    pod = new_pod("pod")
    if "device" in given:
        ubcore.expose("udma2", pod)
    if "eid" in given:
        ubcore.move_eid("udma2", 0, pod)
    is_pods = "eid" in given
    with _refused_unless(is_pods), visiting(pod), context(ub_node.root, "udma2", 0):
        pass
    with _refused_unless(not is_pods), context(ub_node.root, "udma2", 0):  # in the host's own namespace
        pass


def _refused_unless(accessible: bool) -> AbstractContextManager[object]:
    return nullcontext() if accessible else pytest.raises(PermissionError, match="not accessible by current ns")


def test_a_device_node_opens_and_knows_no_ioctl(ub_node: NodeHandle) -> None:
    create_context = 0xC0105501  # _IOWR('U', 1, struct of 16 bytes), what liburma begins with
    with (ub_node.roots.dev / "uburma/udma2").open("rb") as node, pytest.raises(OSError, match="ioctl") as caught:
        fcntl.ioctl(node, create_context, bytearray(16))
    assert caught.value.errno == errno.ENOTTY


@pytest.mark.parametrize(("device", "index", "code"), [("udma99", 0, errno.ENODEV), ("udma2", 1024, errno.EINVAL)])
def test_a_context_of_nothing_is_refused(ub_node: NodeHandle, device: str, index: int, code: int) -> None:
    with pytest.raises(OSError, match=device) as caught, context(ub_node.root, device, index):
        pass
    assert caught.value.errno == code
