"""A runtime that breaks off or says what makes no sense, over a real socket, in this process."""

import contextlib
import os
import random
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos import census, desired
from nri_qos.config import Config
from nri_qos.connection import Link, Stop
from nri_qos.desired import Squeezed
from nri_qos.model import Container, Machine, Pod, Resources
from nri_qos.plugin import SERVICE, Plugin
from nri_qos.ttrpc import mux
from nri_qos.ttrpc.frame import MAX_DATA, Frame, Kind
from nri_qos.ttrpc.session import Answer, Session
from nri_qos.world import World
from tests.nri_qos import nodes
from tests.nri_qos.conftest import container, pod

WEB = pod("web", "HLS", guaranteed=True)
APP = container(WEB, cpus=2)


class Runtime:
    """One end of a connection; the other is served by a thread, as the main thread of the daemon does it."""

    def __init__(self, plugin: Plugin) -> None:
        self.session = Session(serves=mux.RUNTIME, calls=mux.PLUGIN)
        self.trunk, theirs = socket.socketpair()
        self.trunk.settimeout(30)
        self._pipe = os.pipe()
        stop = cast("Stop", SimpleNamespace(reader=self._pipe[0], is_set=False))
        link = Link(plugin, "qos", "90", stop)
        self._thread = threading.Thread(target=link.serve_inherited, args=(theirs.detach(),))
        self._thread.start()

    def conversation(self) -> list[bytes]:
        """A whole session, call by call."""
        calls = (
            ("Configure", nri_pb2.ConfigureRequest(runtime_name="x", NRI_version="v0.12.1")),
            ("Synchronize", nri_pb2.SynchronizeRequest(pods=[WEB])),
            ("RunPodSandbox", nri_pb2.PodRequest(pod=WEB)),
            ("CreateContainer", nri_pb2.CreateContainerRequest(pod=WEB, container=APP)),
            ("StopContainer", nri_pb2.ContainerRequest(pod=WEB, container=APP)),
        )
        said = []
        for method, message in calls:
            self.session.call(SERVICE, method, message.SerializeToString(), 2)
            said.append(self.session.take_output())
        return said

    def end(self) -> list[Answer]:
        """Say no more, and return what the plugin has answered until it hangs up."""
        answers: list[Answer] = []
        with contextlib.suppress(ConnectionError):
            self.trunk.shutdown(socket.SHUT_WR)
            while data := self.trunk.recv(1 << 16):
                answers += [event for event in self.session.receive(data) if isinstance(event, Answer)]
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.trunk.close()
        for end in self._pipe:
            os.close(end)
        return answers


@pytest.fixture
def world(machine: Machine) -> World:
    world = World(Config())
    world.machine = machine
    return world


def test_a_runtime_that_breaks_off_anywhere_is_answered_what_it_asked_in_full(world: World) -> None:
    plugin = Plugin(world)
    first = Runtime(plugin)
    whole = b"".join(first.conversation())
    first.end()
    for length in range(0, len(whole), 7):
        runtime = Runtime(plugin)
        said = runtime.conversation()
        runtime.trunk.sendall(whole[:length])
        asked = sum(len(b"".join(said[: n + 1])) <= length for n in range(len(said)))
        assert [answer.code for answer in runtime.end()] == [0] * asked


def test_calls_that_come_all_at_once_are_answered_in_their_order(world: World) -> None:
    runtime = Runtime(Plugin(world))
    runtime.trunk.sendall(b"".join(runtime.conversation()))
    answers = runtime.end()
    assert [answer.stream for answer in answers] == [1, 3, 5, 7, 9]
    adjust = nri_pb2.CreateContainerResponse.FromString(answers[3].payload).adjust
    assert adjust.linux.resources.cpu.cpus == "0-1"
    assert not world.members[APP.id].container.is_alive


def test_part_of_a_synchronize_that_was_broken_off_is_not_in_the_next(world: World) -> None:
    plugin = Plugin(world)
    first = Runtime(plugin)
    lost = nri_pb2.SynchronizeRequest(pods=[pod("lost", "HLS")], more=True)
    first.session.call(SERVICE, "Synchronize", lost.SerializeToString(), 2)
    first.trunk.sendall(first.session.take_output())
    [answer] = first.end()
    assert nri_pb2.SynchronizeResponse.FromString(answer.payload).more
    assert not plugin.phase.is_synchronized
    second = Runtime(plugin)
    second.trunk.sendall(b"".join(second.conversation()[:2]))
    second.end()
    assert list(world.sandboxes) == [WEB.id]


def test_the_largest_message_is_taken_and_a_larger_one_refused(world: World) -> None:
    runtime = Runtime(Plugin(world))
    for size in (MAX_DATA - 100, MAX_DATA + 1, 10):
        request = Frame(runtime.session.call(SERVICE, "Shutdown", b"", 2), Kind.REQUEST, b"")
        runtime.session.take_output()
        padding = b"\x1a" + _varint(size) + b"x" * size  # a payload that Shutdown does not read
        header = b"\x0a" + bytes((len(SERVICE),)) + SERVICE.encode() + b"\x12\x08Shutdown"
        whole = Frame(request.stream, Kind.REQUEST, header + padding).encode()
        for at in range(0, len(whole), 1 << 16):
            piece = whole[at : at + (1 << 16)]
            runtime.trunk.sendall(mux.HEADER.pack(mux.PLUGIN, len(piece)) + piece)
    assert [answer.code for answer in runtime.end()] == [0, 8, 0]


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 8))
def test_bytes_that_were_changed_on_the_way_end_a_session_at_most(seed: int, count: int) -> None:
    world = World(Config())
    world.machine = nodes.machine("0-3", "4-7")
    plugin, chance = Plugin(world), random.Random(seed)
    broken = Runtime(plugin)
    data = bytearray(b"".join(broken.conversation()))
    for _ in range(count):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(OSError):  # it may have hung up by now
        broken.trunk.sendall(data)
    broken.end()
    whole = Runtime(plugin)
    whole.trunk.sendall(b"".join(whole.conversation()))
    assert [answer.code for answer in whole.end()] == [0] * 5


# What the runtime may say, sensible or not, of a few pods and containers.
IDS = st.sampled_from(["a", "b", "", "x/y", "..", "\0", "z" * 5000])
KEYS = st.sampled_from(
    ["qos.unifiedbus.com/class", "qos.unifiedbus.com/numa", "qos.unifiedbus.com/numa-scope", "qos.unifiedbus.com/cpus"]
)
VALUES = st.sampled_from(
    ["HLS", "LS", "BE", "system", "", "single-numa-node", "best-effort", "pod", "0-3", "0-99999999", "٣", "x" * 70_000]
)
LISTS = st.sampled_from(["", "", "0-1", "4", "garbage", "9999", "0-", ",", "0-7"])
PARENTS = st.sampled_from(
    ["", "/kubepods/podx", "/kubepods/besteffort/podx", "kubepods-podx.slice", "../../etc", "/", "a\0pod", "pod" * 2000]
)
PATHS = st.sampled_from(["", "/kubepods/podx/c", "kubepods-podx.slice:cri-containerd:c", "::", "a:b:c/d", "/.."])
NUMBERS = st.sampled_from([0, 1, 2, 1024, 2048, 8192, (1 << 63) - 1])


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    keys = draw(st.dictionaries(KEYS, VALUES, max_size=3))
    return Pod(draw(IDS), draw(IDS), draw(IDS), "shop", {}, keys, draw(PARENTS), draw(resources()))


@st.composite
def resources(draw: st.DrawFn) -> Resources:
    numbers = [draw(NUMBERS) or None for _ in range(4)]
    return Resources(numbers[0], numbers[1], numbers[2], draw(LISTS), draw(LISTS), numbers[3])


@st.composite
def containers(draw: st.DrawFn) -> Container:
    return Container(draw(IDS), draw(IDS), draw(IDS), resources=draw(resources()), cgroups_path=draw(PATHS))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pcursx"), pods(), containers(), resources()), max_size=10), st.booleans())
def test_whatever_the_runtime_says_the_loop_can_decide_about_it(said: list[Any], is_static: bool) -> None:
    world = World(Config(cpu_list_namespaces=["shop"], own_cpus_without_quota=True))
    world.machine, world.kubelet_is_static = nodes.machine("0-3", "4-7", remote=1), is_static
    for what, sandbox, made, wanted in said:
        match what:
            case "p":
                world.add_pod(sandbox)
            case "c":
                world.create(sandbox, made)
            case "u":
                world.update(sandbox, made, wanted)
            case "r":
                world.started(made)
            case "s":
                world.synchronize([sandbox], [made])
            case _:
                world.stop_pod(sandbox.id)
        people = census.take(world.sandboxes, world.members.values(), world.node(), kubelet_is_static=is_static)
        offline = Squeezed(world.node().offline_room, dict.fromkeys(people.offline(), 1.0))
        for setting in desired.settings(people, offline, {}).values():
            assert "\0" not in setting.cgroup
            assert ".." not in setting.cgroup.split("/")
            assert setting.value or not setting.file.startswith("cpuset.")
        given = [cpu for place in world.placements.values() for cpu in place.exclusive]
        assert len(given) == len({*given})
        assert all(len(reason) < 1000 for member in world.members.values() for reason in member.decision.reasons)


def test_an_offline_container_with_cpus_that_are_no_list_does_not_stop_the_loop(world: World) -> None:
    world.kubelet_is_static = True
    batch = Pod("s", "batch", "u", "lab", {}, {"qos.unifiedbus.com/class": "BE"}, "/kubepods/besteffort/podu")
    path = "/kubepods/besteffort/podu/c"
    world.create(batch, Container("c", "s", "app", resources=Resources(shares=2, cpus="garbage"), cgroups_path=path))
    people = census.take(world.sandboxes, world.members.values(), world.node(), kubelet_is_static=True)
    settings_ = desired.settings(people, Squeezed(world.node().offline_room, {}), {})
    assert (path[1:], "cpuset.cpus") not in settings_
    assert settings_[path[1:], "cpu.weight"].value == "1"


@pytest.mark.parametrize("key", ["class", "numa", "numa-scope", "cpus"])
def test_what_a_pod_says_without_end_is_not_remembered_without_end(key: str, world: World) -> None:
    said = {"qos.unifiedbus.com/class": "LS", f"qos.unifiedbus.com/{key}": "x" * 200_000}
    decision = world.create(Pod("s", "web", "u", "shop", {}, said), Container("c", "s", "app"))
    assert sum(map(len, decision.reasons)) < 1000
    assert world.counts["invalid_values", f"qos.unifiedbus.com/{key}"] == 1


def test_containers_that_came_and_went_leave_nothing_where_no_loop_runs(world: World) -> None:
    """As on a node without cgroup v2, for months."""
    for number in range(100):
        sandbox = Pod(f"s{number}", "web", f"u{number}", "shop", {}, {"qos.unifiedbus.com/class": "LS"})
        made = Container(f"c{number}", sandbox.id, "app")
        world.add_pod(sandbox)
        world.create(sandbox, made)
        world.started(made)
        world.touch("a-stranger")
        world.stopped(made)
        if number % 2:
            world.removed(made.id)
        world.remove_pod(sandbox.id)
    assert not world.touched | world.members.keys() | world.sandboxes.keys()
    assert not world.placements
