"""What a look at a host relies on, of this kernel and of the simulator that stands in for it: one list of tests.

The kernel shows it with netdevs, which are namespaced and announced as the devices of ubcore are.
"""

import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ubsim.node import NewPod
from ubhost.kernel.netns import inode
from ubhost.kernel.netsysfs import sysfs_of
from ubhost.providers import choose
from ubhost.roots import Roots
from ubhost.uevents import Uevent, Uevents
from ubsim.handles import SuperNodeHandle

pytestmark = pytest.mark.kernel


class Subject:
    """A host under test: ``names`` are the devices that ``plug`` brings, ``attribute`` is a file that each has."""

    roots: Roots
    subsystem: str
    names: frozenset[str]
    attribute: str

    def plug(self) -> None:
        raise NotImplementedError

    def unplug(self) -> None:
        raise NotImplementedError

    def give(self, name: str, pod: str, netns: int) -> None:
        raise NotImplementedError

    def seen(self, netns: int) -> dict[str, str]:
        """What a process in a namespace finds in its class folder: the device's name and its attribute."""
        raise NotImplementedError

    def _read(self, folder: Path) -> dict[str, str]:
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return {entry.name: (entry / self.attribute).read_text() for entry in found if entry.name != "lo"}


class ThisKernel(Subject):
    subsystem, attribute = "net", "mtu"
    names = frozenset({"ub-come", "ub-with"})

    def __init__(self, root: Path) -> None:
        self.roots = Roots(root)
        self._where: list[str] = []

    def plug(self) -> None:
        subprocess.run(["ip", "link", "add", "ub-come", "type", "veth", "peer", "name", "ub-with"], check=True)

    def unplug(self) -> None:
        subprocess.run(["ip", *self._where, "link", "del", "ub-come"], check=True)

    def give(self, name: str, pod: str, netns: int) -> None:
        self._where = ["-n", pod]
        subprocess.run(["ip", "link", "set", name, "netns", pod], check=True)

    def seen(self, netns: int) -> dict[str, str]:
        with sysfs_of(netns) as sys:
            return self._read(sys / "class/net")


class Simulator(Subject):
    subsystem, attribute = "ubcore", "port0/state"
    names = frozenset({"bonding_dev_3", "udma6", "udma7"})

    def __init__(self, supernode: SuperNodeHandle) -> None:
        self._supernode = supernode
        self.roots = supernode["node0"].roots

    def plug(self) -> None:
        self._supernode.happen("plug", node="node0", device="urma_3")

    def unplug(self) -> None:
        self._supernode.happen("unplug", node="node0", device="urma_3")

    def give(self, name: str, pod: str, netns: int) -> None:
        choose(self.roots, "sim").expose(name, netns)

    def seen(self, netns: int) -> dict[str, str]:
        return self._read(self.roots.simulator / "netns" / str(inode(netns)) / "class/ubcore")


@pytest.fixture(params=["kernel", "simulator"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "simulator":
        yield Simulator(request.getfixturevalue("supernode"))
        return
    yield ThisKernel(tmp_path)
    subprocess.run(["ip", "link", "del", "ub-come"], stderr=subprocess.DEVNULL, check=False)  # what a test left here


def told(subject: Subject, uevents: Uevents, do: Callable[[], None]) -> list[Uevent]:
    """Return what is told of the subject's devices until each was heard of."""
    do()
    heard: list[Uevent] = []
    deadline = time.monotonic() + 60
    while subject.names - {event.name for event in heard}:
        assert select.select([uevents], [], [], deadline - time.monotonic())[0], f"only {heard} came"
        heard += [event for event in uevents.read().events if event.name in subject.names]
    return heard


def test_what_comes_and_what_goes_is_told_by_name(subject: Subject) -> None:
    with Uevents(subject.roots, frozenset({subject.subsystem})) as uevents:
        uevents.read()
        for do, action in ((subject.plug, "add"), (subject.unplug, "remove")):
            events = told(subject, uevents, do)
            assert {(event.action, event.subsystem) for event in events} == {(action, subject.subsystem)}
            assert {event.path.rpartition("/")[2] for event in events} == subject.names


def test_a_notice_begins_with_what_happened_and_ends_with_a_number_that_grows(subject: Subject) -> None:
    with Uevents(subject.roots, frozenset({subject.subsystem})) as uevents:
        uevents.read()
        events = told(subject, uevents, subject.plug) + told(subject, uevents, subject.unplug)
    for event in events:
        assert list(event.properties)[:3] == ["ACTION", "DEVPATH", "SUBSYSTEM"]
        assert list(event.properties)[-1] == "SEQNUM"
    numbers = [int(event.properties["SEQNUM"]) for event in events]
    assert numbers == sorted(set(numbers))


def test_who_begins_to_listen_hears_nothing_of_before(subject: Subject) -> None:
    subject.plug()
    with Uevents(subject.roots, frozenset({subject.subsystem})) as uevents:
        assert {event.action for event in told(subject, uevents, subject.unplug)} == {"remove"}


def test_a_namespace_sees_what_it_was_given_and_no_other_does(subject: Subject, new_pod: NewPod) -> None:
    pod, other = new_pod("pod"), new_pod("other")
    subject.plug()
    name = min(subject.names)
    assert subject.seen(pod) == subject.seen(other) == {}
    subject.give(name, "pod", pod)
    ((seen, text),) = subject.seen(pod).items()
    assert (seen, text.endswith("\n"), subject.seen(other)) == (name, True, {})


def test_a_device_that_is_gone_is_gone_from_the_namespace_that_had_it(subject: Subject, new_pod: NewPod) -> None:
    pod = new_pod("pod")
    subject.plug()
    subject.give(min(subject.names), "pod", pod)
    assert subject.seen(pod) != {}
    subject.unplug()
    assert subject.seen(pod) == {}
