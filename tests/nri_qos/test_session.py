"""The plugin process against a runtime: connecting, registering, and staying connected.

Letters and numbers in parentheses are the faults of reference/nri.md section 5.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path, PosixPath

import pytest
from ubproto.nri.v1alpha1 import nri_pb2

from nri_qos.__main__ import Options
from nri_qos.ttrpc import mux
from nri_qos.ttrpc.frame import Frame, Kind
from tests.nri_qos.conftest import TOP, Plugin, command, container, environment, pod, until
from ubhost.roots import Roots
from ubsim.runtime import CallRefused, PluginClosed, Runtime


def test_configure_is_served_before_the_registration_is_confirmed(runtime: Runtime, plugin: Plugin) -> None:
    """(A1)"""
    plugin.start("--index", "42", "--name", "qos")
    assert not runtime.register().update
    assert (runtime.peer.index, runtime.peer.name) == ("42", "qos")


@pytest.mark.parametrize(("version", "mask"), [("", 0x7FF), ("v0.12.1", 0x3FFF)])
def test_only_events_that_the_runtime_knows_are_asked_for(version: str, mask: int, root: Path, plugin: Plugin) -> None:
    """(A4)"""
    with Runtime(root / "var/run/nri/nri.sock", nri_version=version, timeout_s=15) as runtime:
        plugin.start()
        runtime.register()
        assert runtime.peer.events & 0x6CF == 0x6CF
        assert not runtime.peer.events & ~mask
        assert bool(runtime.peer.events & 0x800) == bool(version)


def test_an_old_runtime_that_sends_state_changes_leads_to_the_same_decisions(root: Path, plugin: Plugin) -> None:
    """(A5)"""
    with Runtime(root / "var/run/nri/nri.sock", nri_version="", timeout_s=15) as runtime:
        plugin.start()
        runtime.register()
        first, second = pod("first", "HLS", guaranteed=True), pod("second", "HLS", guaranteed=True)
        for each in (first, second):
            runtime.run_pod(each)
        assert runtime.create(container(first, cpus=2)).linux.resources.cpu.cpus == "0-1"
        runtime.start("first-app-0")
        assert runtime.create(container(second, cpus=2)).linux.resources.cpu.cpus == "4-5"
        runtime.stop("first-app-0")
        runtime.stop_pod(first.id)
        runtime.remove("first-app-0")
        runtime.remove_pod(first.id)
        third = pod("third", "HLS", guaranteed=True)
        runtime.run_pod(third)
        assert runtime.create(container(third, cpus=2)).linux.resources.cpu.cpus == "0-1"
        assert "StateChange" in runtime.peer.calls


def test_an_unknown_call_is_unimplemented_and_the_session_stays(runtime: Runtime, plugin: Plugin) -> None:
    """(A6)"""
    plugin.start()
    runtime.register()
    with pytest.raises(CallRefused, match="FooBar") as refused:
        runtime.peer.call("FooBar", nri_pb2.Empty(), nri_pb2.Empty)
    assert refused.value.code == 12
    runtime.run_pod(pod("web"))


@pytest.mark.parametrize(("version", "is_warned"), [("v1.7.15", True), ("1.7.24~ds1", False), ("v2.0.0", False)])
def test_a_containerd_that_can_hang_at_registration_is_warned_about(
    version: str, is_warned: bool, runtime: Runtime, plugin: Plugin
) -> None:
    """(A22)"""
    runtime.name, runtime.version = "containerd", version
    plugin.start()
    runtime.register()
    plugin.wait_for("synchronized with the runtime")
    assert ("1.7.16 has the fix" in plugin.log.read_text()) == is_warned


def test_a_restarted_runtime_is_found_again(runtime: Runtime, plugin: Plugin) -> None:
    """(A7, B5)"""
    plugin.start()
    runtime.register()
    web = pod("web", "HLS", guaranteed=True)
    runtime.run_pod(web)
    runtime.create(container(web, cpus=2))
    runtime.shut_down()
    time.sleep(1)
    runtime.listen()
    runtime.register()
    assert runtime.create(container(web, "sidecar", cpus=2)).linux.resources.cpu.cpus == "4-5"


def test_a_killed_plugin_hands_nothing_out_twice_when_it_is_back(runtime: Runtime, plugin: Plugin) -> None:
    plugin.start()
    runtime.register()
    web, db = pod("web", "HLS", guaranteed=True), pod("db", "HLS", guaranteed=True)
    for each in (web, db):
        runtime.run_pod(each)
    runtime.create(container(web, cpus=2))
    plugin.stop(signal.SIGKILL)
    plugin.start()
    runtime.register()
    assert runtime.create(container(db, cpus=2)).linux.resources.cpu.cpus == "4-5"


def test_a_slow_accept_and_a_late_synchronize_are_waited_for(runtime: Runtime, plugin: Plugin) -> None:
    """(A10, A21)"""
    plugin.start()
    time.sleep(5.5)
    peer = runtime.accept()
    runtime.handshake(peer)
    time.sleep(2)
    runtime.synchronize()
    with pytest.raises(TimeoutError):
        runtime.accept(timeout_s=0.5)  # one connection, no second attempt


def test_a_missing_socket_is_waited_for_with_one_line_in_the_log(root: Path, plugin: Plugin) -> None:
    """(A11)"""
    plugin.start()
    plugin.wait_for("no runtime, trying on")
    time.sleep(2)
    assert len(plugin.lines("no runtime, trying on")) == 1
    with Runtime(root / "var/run/nri/nri.sock", timeout_s=15) as runtime:
        runtime.register()


def test_a_runtime_that_accepts_nobody_is_told_and_does_not_keep_us_from_ending(root: Path, plugin: Plugin) -> None:
    """The signal goes to another thread, as one does that comes when the main thread is just going to wait."""
    path = root / "var/run/nri/nri.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as waiting:
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(path))
        plugin.start()
        plugin.wait_for("no runtime, trying on")
        process = plugin.process.pid
        other = next(int(t.name) for t in Path(f"/proc/{process}/task").iterdir() if int(t.name) != process)
        assert ctypes.CDLL(None).tgkill(process, other, signal.SIGTERM) == 0
        assert plugin.process.wait(timeout=60) == 0


def test_a_socket_that_is_just_made_anew_is_no_wrong_start(tmp_path: Path) -> None:
    class Vanishing(PosixPath):
        def exists(self) -> bool:
            return True

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            raise FileNotFoundError(self)

    Options(Roots(tmp_path), (Vanishing(tmp_path / "nri.sock"),), "qos", "90", None, False, False, None).check()


def test_a_runtime_that_hangs_up_again_and_again_costs_nothing_and_is_not_stormed(
    runtime: Runtime, plugin: Plugin
) -> None:
    """(B14)"""
    plugin.start()
    status = Path(f"/proc/{plugin.process.pid}/status")
    for _ in range(2):
        runtime.accept().close()
    third = runtime.accept()
    began = time.monotonic()
    third.close()
    before = memory_and_threads(status)
    for _ in range(3):
        runtime.accept().close()
    assert time.monotonic() - began > 0.3 + 0.6 + 1.2  # 0.8, 1.6 and 3.2 s, less up to a half
    assert memory_and_threads(status)[1] == before[1]
    assert memory_and_threads(status)[0] < before[0] + 2048


def memory_and_threads(status: Path) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmRSS"].split()[0]), int(fields["Threads"])


def test_a_runtime_that_breaks_the_framing_is_left_and_found_again(runtime: Runtime, plugin: Plugin) -> None:
    plugin.start()
    runtime.register()
    runtime.peer.send_raw(mux.HEADER.pack(1, 1 << 31))
    assert runtime.peer.is_closed_within(30)
    runtime.register()


def test_calls_survive_any_way_of_cutting_them(runtime: Runtime, plugin: Plugin) -> None:
    plugin.start()
    runtime.register()
    request = Frame(101, Kind.REQUEST, b"\x0a\x1bnri.pkg.api.v1alpha1.Plugin\x12\x08Shutdown").encode()
    whole = mux.encode(mux.PLUGIN, request)
    for byte in whole[:-1]:
        runtime.peer.send_raw(bytes((byte,)))
    again = Frame(103, Kind.REQUEST, request[10:]).encode()
    runtime.peer.send_raw(whole[-1:] + mux.encode(mux.PLUGIN, again[:3]) + mux.encode(mux.PLUGIN, again[3:]))
    with pytest.raises(CallRefused):  # our next stream id is lower than those, and the plugin is still there to say so
        runtime.peer.call("Shutdown", nri_pb2.Empty(), nri_pb2.Empty)


def test_a_synchronize_in_parts_is_the_union_of_its_parts(runtime: Runtime, plugin: Plugin) -> None:
    """(B1)"""
    for number in range(2000):
        each = pod(f"pod{number}", "BE", note="x" * 2000)
        runtime.pods[each.id] = each
        made = container(each)
        runtime.containers[made.id] = made
    plugin.start()
    runtime.handshake(runtime.accept())
    runtime.synchronize(parts=3)
    line = plugin.wait_for("synchronized with the runtime")
    assert (line["pods"], line["containers"]) == (2000, 2000)
    assert runtime.peer.largest_frame <= 4096


def test_parts_of_a_synchronize_that_come_again_and_again_cost_no_memory(runtime: Runtime, plugin: Plugin) -> None:
    """(B1)"""
    for number in range(900):
        each = pod(f"pod{number}", "BE", note="x" * 3000)
        runtime.pods[each.id] = each
    plugin.start()
    runtime.handshake(runtime.accept())
    status = Path(f"/proc/{plugin.process.pid}/status")
    part = nri_pb2.SynchronizeRequest(pods=runtime.pods.values(), more=True)
    before = 0
    for number in range(20):
        assert runtime.peer.call("Synchronize", part, nri_pb2.SynchronizeResponse).more
        before = before or (memory_and_threads(status)[0] if number == 4 else 0)
    assert memory_and_threads(status)[0] < before + 16 * 1024
    runtime.synchronize()
    assert plugin.wait_for("synchronized with the runtime")["pods"] == 900


def test_a_second_instance_waits_for_the_end_of_the_first(runtime: Runtime, plugin: Plugin, root: Path) -> None:
    plugin.start()
    runtime.register()
    second = Plugin(root)
    try:
        second.start("--name", "second")
        second.wait_for("another nri-qos runs on this node, waiting for its end")
        with pytest.raises(TimeoutError):
            runtime.accept(timeout_s=1.5)
        assert plugin.stop() == 0
        runtime.register()
        assert runtime.peer.name == "second"
    finally:
        second.end()


def test_a_runtime_can_start_the_plugin_itself(root: Path, plugin: Plugin) -> None:
    """Three environment variables, a socket as descriptor 3, and the configuration in Configure."""
    ours, theirs = socket.socketpair()
    environ = {"NRI_PLUGIN_NAME": "preinstalled", "NRI_PLUGIN_IDX": "77", "NRI_PLUGIN_SOCKET": "3"}
    needed = {key: value for key, value in environment(root).items() if key != "PATH"}  # UB_ROOT for the test's sake
    runtime = Runtime(root / "unused.sock", timeout_s=15)
    with theirs:
        as_three = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"
        starter = [sys.executable, "-c", as_three, str(theirs.fileno()), *command()]
        process = subprocess.Popen(starter, env=environ | needed, pass_fds=(theirs.fileno(),), cwd=TOP)
    try:
        runtime.handshake(runtime.adopt(ours), config="reserved: 0-1\n")
        runtime.synchronize()
        assert (runtime.peer.name, runtime.peer.index) == ("preinstalled", "77")
        batch = pod("batch", "BE")
        runtime.run_pod(batch)
        assert runtime.create(container(batch)).linux.resources.cpu.cpus == "2-7"
        ours.close()
        assert process.wait(timeout=30) == 0  # the runtime has gone, and so has the way back
    finally:
        process.kill()
        process.wait()


def test_a_configuration_from_the_runtime_that_is_wrong_is_refused(
    root: Path, runtime: Runtime, plugin: Plugin
) -> None:
    plugin.start(config={})
    with pytest.raises(CallRefused, match="perod: unknown key"):
        runtime.handshake(runtime.accept(), config="perod: 1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_in_every_phase(number: int, runtime: Runtime, plugin: Plugin) -> None:
    plugin.start()
    peer = runtime.accept()  # waiting for Configure
    assert plugin.stop(number) == 0
    peer.close()
    plugin.start()
    runtime.register()
    assert plugin.stop(number) == 0
    assert runtime.peer.is_closed_within(1)
    with pytest.raises(PluginClosed):
        runtime.peer.call("Shutdown", nri_pb2.Empty(), nri_pb2.Empty)


def test_a_signal_that_does_not_interrupt_its_wait_ends_it_too(runtime: Runtime, plugin: Plugin) -> None:
    """As one that comes when the main thread is just going to wait; here it is another thread that gets it."""
    plugin.start()
    runtime.register()
    process = plugin.process.pid
    tasks = Path(f"/proc/{process}/task")
    other = next(int(task.name) for task in tasks.iterdir() if int(task.name) != process)
    assert ctypes.CDLL(None).tgkill(process, other, signal.SIGTERM) == 0
    assert plugin.process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("arguments", "text", "complaint"),
    [
        (["--index", "9"], None, "index '9' is not two digits"),
        (["--name", "a b"], None, "name 'a b'"),
        (["--config", "missing.yaml"], None, "cannot read missing.yaml"),
        (["--config", "{}"], "a: [", "is not YAML"),
        (["--config", "{}"], "peroid: 1\nfloor: many", "$.peroid: unknown key"),
        (["--config", "{}"], "peroid: 1\nfloor: many", "$.floor: Expected `float`"),
        (["--config", "{}"], "reserved: 3-1", "reserved: '3-1' is not a list"),
        (["--config", "{}"], "[]", "Expected `object`"),
        (["--socket", "{}"], "a file", "is not a socket"),
        (["--socket", "/" + "x" * 120], None, "longer than 107 bytes"),
        (["--config", "{}"], "floor: .inf", "$.floor: Expected `float` <= 65536"),
        (["--restore", "--dry-run"], None, "not allowed with argument"),
        (["--what"], None, "unrecognized arguments"),
    ],
)
def test_a_wrong_start_ends_in_one_clear_error(
    arguments: list[str], text: str | None, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "given"
    if text is not None:
        file.write_text(text)
    arguments = [argument.replace("{}", str(file)) for argument in arguments]
    done = subprocess.run(
        [*command(), *arguments],
        env=environment(tmp_path),
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_descriptor_that_is_no_socket_is_a_clear_error(tmp_path: Path) -> None:
    done = subprocess.run(
        command(),
        env=environment(tmp_path) | {"NRI_PLUGIN_SOCKET": "3"},
        cwd=TOP,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (2, b"nri-qos: NRI_PLUGIN_SOCKET=3 is not an open socket\n")


def test_a_log_that_is_full_for_a_while_is_gone_on_with(runtime: Runtime, root: Path) -> None:
    """Who shares the pipe can have made it one that says it is full rather than wait."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    process = subprocess.Popen(command(), env=environment(root), stderr=writer, cwd=TOP)
    os.close(writer)
    try:
        runtime.register()
        web = pod("web", "LS")
        runtime.run_pod(web)
        for number in range(400):
            runtime.create(container(web, f"{number:0500}"))
        log = bytearray(os.read(reader, 1 << 20))
        runtime.create(container(web, "the-last"))

        def is_told() -> bool:
            with contextlib.suppress(BlockingIOError):
                log.extend(os.read(reader, 1 << 20))
            return b"the-last" in log

        until(is_told)
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def test_nobody_reading_its_log_does_not_stop_it(runtime: Runtime, root: Path) -> None:
    """(A13) A pipe that is full must not hold up a handler."""
    reader, writer = os.pipe()
    process = subprocess.Popen(command(), env=environment(root), stderr=writer, cwd=TOP)
    os.close(writer)
    try:
        runtime.register()
        web = pod("web", "LS", note="x" * 3000)
        runtime.run_pod(web)
        for number in range(400):
            runtime.create(container(web, f"{number:0500}"))
        until(lambda: process.poll() is None)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
