"""Bring a simulated super-node up and down: a mount, a bridge, cables, namespaces, processes.

``up`` writes down what it is about to make, makes it, and takes all of it down again if any part fails. ``down`` works
from what was written, tolerates whatever is gone already, and may be repeated.
"""

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ubhost import statefile
from ubhost.errors import Busy, Conflict, HostFault, InvalidRequest, UbError, Unsupported
from ubhost.kernel import mountinfo, mounts
from ubhost.kernel.netns import find_netns, open_netns, own_inode
from ubsim import expansion, named_netns, record
from ubsim.cables import Cables
from ubsim.daemon import READY
from ubsim.netdevs import BRIDGE, Fabric, number_netdevs
from ubsim.record import Process, Record
from ubsim.scenario import Netns, SuperNode

MAX_PROCESSES = 8
START_TIMEOUT_S = 60.0
NODE_TIMEOUT_S = 0.5  # more for each node
MAX_SOCKET_PATH = 107  # bytes, sun_path without the NUL
STOP_TIMEOUT_S = 30.0
Spawn = Callable[[Path, tuple[str, ...]], "subprocess.Popen[bytes]"]
WHOLE = (record.FILE, record.SCENARIO)


def up(scenario: Path, folder: Path, spawn: Spawn | None = None) -> Record:
    """Bring up ``scenario`` below ``folder``; return once every node answers.

    The same scenario twice is no error; what a crash left behind is taken down first. ``spawn`` starts a daemon for
    some nodes, and is there for tests.

    Raises:
        InvalidRequest: the scenario cannot be read or cannot exist, or the folder is too deep for sockets.
        Conflict: another super-node is up there, or the folder holds something else.
        Unsupported: we are not root.
        HostFault: the machine refused something; nothing is left behind.
    """
    super_node = expansion.load(scenario)
    if os.geteuid() != 0:
        raise Unsupported("a simulated super-node needs root: it makes netdevs and namespaces")
    folder = folder.absolute()
    _refuse_long_paths(super_node, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        running = _running(folder)
        if running is not None:
            if (folder / record.SCENARIO).read_bytes() == scenario.read_bytes():
                return running
            raise Conflict(
                f"super-node {running.name} is up in {folder}; take it down first: ubnode sim down --root {folder}"
            )
        return _up(super_node, scenario.read_bytes(), folder, spawn or spawn_daemon)


def _refuse_long_paths(super_node: SuperNode, folder: Path) -> None:
    longest = max(
        (record.control_socket(folder, node.name) for node in super_node.nodes), key=lambda path: len(str(path))
    )
    excess = len(os.fsencode(longest)) - MAX_SOCKET_PATH
    if excess > 0:
        raise InvalidRequest(f"{folder} is {excess} bytes too long: the socket {longest} must fit {MAX_SOCKET_PATH}")


def _running(folder: Path) -> Record | None:
    """Return the record of a super-node that works; clear away one that does not."""
    try:
        found = record.read(folder)
    except statefile.Damaged as damage:
        raise Conflict(f"{damage}; remove {folder} by hand") from damage
    if found is None:
        if any(folder.iterdir()):
            raise Conflict(f"{folder} is not empty and no super-node is up in it; name another folder with --root")
        return None
    if found.processes and all(process.is_alive for process in found.processes):
        return found
    _down(folder, found)
    folder.mkdir(parents=True, exist_ok=True)
    return None


def _up(super_node: SuperNode, scenario: bytes, folder: Path, spawn: Spawn) -> Record:
    with Cables() as cables:
        taken = frozenset(link.name for link in cables.links())
    own = [node.name for node in super_node.nodes if node.netns is Netns.OWN]
    bridge = next(f"{BRIDGE}{n}" for n in range(len(taken) + 1) if f"{BRIDGE}{n}" not in taken)
    planned = Record(
        name=super_node.name,
        nodes=tuple(node.name for node in super_node.nodes),
        bridge=bridge,
        netns=own_inode(),
        netdevs=number_netdevs(super_node, bridge, taken),
        namespaces={name: str(record.root_of(folder, name) / record.NETNS) for name in own},
        is_mounted=_mount(folder),
    )
    try:
        record.write(folder, planned)
        (folder / record.SCENARIO).write_bytes(scenario)
        for path in planned.namespaces.values():
            named_netns.make(Path(path))
        _lay_cables(planned)
        running = _start(folder, planned, spawn)
    except BaseException:
        _down(folder, record.read(folder) or planned)
        raise
    return running


def _mount(folder: Path) -> bool:
    """Put the trees into memory, where making and forgetting 100,000 files takes seconds and none, if we may."""
    try:
        mounts.mount("ubsim", folder, "tmpfs", "mode=0755,nr_inodes=0")  # 1,024 nodes have three million names
    except OSError:
        return False
    return True


def _lay_cables(planned: Record) -> None:
    fabric = Fabric(planned.bridge)
    homes = {node: open_netns(path) for node, path in planned.namespaces.items()}
    try:
        fabric.make_bridges(planned.netdevs)
        for netdev in planned.netdevs:
            fabric.lay(netdev, homes.get(netdev.node))
    finally:
        fabric.close()
        for descriptor in homes.values():
            os.close(descriptor)


def _start(folder: Path, planned: Record, spawn: Spawn) -> Record:
    """Start the daemons, a few nodes each, and wait until all are ready."""
    groups = [planned.nodes[at::MAX_PROCESSES] for at in range(min(MAX_PROCESSES, len(planned.nodes)))]
    running = planned
    started: list[subprocess.Popen[bytes]] = []
    try:
        for group in groups:
            process = spawn(folder, group)
            started.append(process)
            known = Process(process.pid, record.start_time(process.pid) or 0, tuple(group))
            running = replace(running, processes=(*running.processes, known))
            record.write(folder, running)
        deadline = time.monotonic() + START_TIMEOUT_S + NODE_TIMEOUT_S * len(planned.nodes)
        for process in started:
            _await_ready(process, folder, deadline)
    finally:
        for process in started:
            if process.stdout:
                process.stdout.close()
            process.returncode = 0  # it outlives us: no warning about that
    return running


def spawn_daemon(folder: Path, nodes: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """The daemon lives on after us, in a session of its own, with its complaints in ``daemon.log``."""
    frozen = getattr(sys, "frozen", False)
    command = [sys.executable, "sim", "daemon"] if frozen else [sys.executable, "-m", "ubsim.daemon"]
    with (folder / "daemon.log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(folder), *nodes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )


def _await_ready(process: subprocess.Popen[bytes], folder: Path, deadline: float) -> None:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
    line = process.stdout.readline().decode(errors="replace").strip() if readable else ""
    if line != READY:
        log = (folder / "daemon.log").read_text(errors="replace").strip().splitlines()
        raise HostFault(f"a daemon of the super-node did not start: {line or (log[-1] if log else 'no answer')}")


def down(folder: Path) -> Record | None:
    """Take down what is up below ``folder``; return what it was, ``None`` if there was nothing.

    Raises:
        HostFault: something could not be removed; call again.
    """
    if not folder.is_dir():
        return None
    folder = folder.absolute()
    with _locked(folder):
        found = record.read(folder)
        if found is not None:
            _down(folder, found)
        return found


def _down(folder: Path, found: Record) -> None:
    _stop(found.processes)
    _cut_cables(found)
    for mount in reversed(mountinfo.below(mountinfo.read(), folder)):
        if mount.target != str(folder):
            mounts.unmount(Path(mount.target), lazy=True)
    if found.is_mounted:
        mounts.unmount(folder, lazy=True)
    for name in (*found.nodes, "daemon.log", *WHOLE):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _stop(processes: tuple[Process, ...]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [process for process in processes if process.is_alive]
        for process in alive:
            os.kill(process.pid, number)
        _wait(lambda alive=alive: not any(p.is_alive for p in alive), STOP_TIMEOUT_S)  # type: ignore[misc]
    if still := [str(process.pid) for process in processes if process.is_alive]:
        raise HostFault(f"processes {', '.join(still)} of the super-node do not end")


def _wait(done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


def _cut_cables(found: Record) -> None:
    """The bridge is where ``up`` ran; if that namespace is gone, so are the cables."""
    netns = None if found.netns == own_inode() else find_netns(found.netns)
    if netns is None and found.netns != own_inode():
        return
    fabric = Fabric(found.bridge, netns)
    try:
        fabric.remove()
    finally:
        fabric.close()
        if netns is not None:
            os.close(netns)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another ubnode sim is at work in {folder}") from error
        yield
    finally:
        os.close(descriptor)


def required(folder: Path) -> Record:
    """Return the record of the super-node in ``folder``.

    Raises:
        UbError: none is up there.
    """
    found = record.read(folder) if folder.is_dir() else None
    if found is None:
        raise UbError(f"no super-node is up in {folder}: ubnode sim up --scenario FILE --root {folder}")
    return found
