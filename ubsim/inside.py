"""Run a program on a simulated node: one that knows nothing of ``UB_ROOT``, such as the vendor's own tools.

The program sees the node's ``/sys``, ``/dev`` and ``/run`` laid over the machine's, in a mount namespace of its own;
as a process of a pod it sees in ``/sys/class/ubcore`` what the pod's network namespace sees. Its generic netlink goes
to the node's driver. Everything else is the machine's, and nothing of it shows outside.
"""

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ubhost.errors import HostFault
from ubhost.kernel import mounts
from ubhost.kernel.netns import enter, inode, open_netns
from ubhost.kernel.parent import end_with
from ubsim import seccomp
from ubsim.genericnetlink import GenericNetlink
from ubsim.handles import NodeHandle

LAID_OVER = ("sys", "dev", "run")
UBCORE = "sys/class/ubcore"
STAGE = "run/ubsim/stage"
NOT_STARTED = 127
GO = b"+"


def run(node: NodeHandle, argv: Sequence[str], netns: str | None = None) -> int:
    """Run ``argv`` on ``node``, in the namespace at ``netns`` or in the node's own.

    Return its exit code as a shell would: 128 and the number of the signal that ended it, 127 if it did not start.

    Raises:
        InvalidRequest: there is no such namespace.
        HostFault: the machine refused, or is of a kind that we cannot do this on.
    """
    here = seccomp.machine()
    if here is None:
        raise HostFault(f"programs run inside on {' and '.join(seccomp.MACHINES)} only")
    home = netns or node.netns
    entered = None if home is None else open_netns(home)
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ours.close()
        with _telling(argv[0]):
            end_with(parent, signal.SIGTERM)  # nobody else could answer its calls
            _become(node, argv, entered, here, theirs.fileno(), is_pod=netns is not None)
    process = os.pidfd_open(child)
    theirs.close()
    if entered is not None:
        os.close(entered)
    with ours:
        if told := os.read(ours.fileno(), 16):
            listener = seccomp.Listener(seccomp.taken_from(process, int(told)))
            os.write(ours.fileno(), GO)
            _attend(process, GenericNetlink(listener, here, node.roots.simulator / "kernel.sock"))
    os.close(process)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _attend(process: int, netlink: GenericNetlink) -> None:
    """Answer what the program asks of generic netlink until it ends."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the program, too
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process, selectors.EVENT_READ)
            selector.register(netlink, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if process in ready:
                    return
                with contextlib.suppress(FileNotFoundError):  # it was killed before we took the call
                    netlink.serve()
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _telling(program: str) -> Iterator[None]:
    """In the child: whatever keeps it from becoming the program, say so and end."""
    try:
        yield
    except (OSError, HostFault) as error:
        os.write(2, f"ubnode sim exec: {program}: {error}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _become(
    node: NodeHandle, argv: Sequence[str], netns: int | None, here: seccomp.Machine, parent: int, *, is_pod: bool
) -> None:
    """Enter the node and become the program."""
    if netns is not None:
        enter(netns)
    pods = node.roots.simulator / "netns" / str(inode(netns)) / "class/ubcore" if netns and is_pod else None
    _lay_over(node.root, pods)
    os.write(parent, str(seccomp.install(here)).encode())  # not send(): that would wait for who listens
    os.read(parent, len(GO))  # exec closes the listener: it must have been taken before
    os.execvp(argv[0], list(argv))  # noqa: S606


def _lay_over(root: Path, pods_view: Path | None) -> None:
    """Lay the node's folders over the machine's, in a mount namespace of our own."""
    mounts.enter_new_namespace()
    stage = root / STAGE
    stage.mkdir(exist_ok=True)
    mounts.mount("ubsim", stage, "tmpfs", "mode=0755")
    for name in LAID_OVER:
        (stage / name).mkdir()
        _merge(Path("/", name), root / name, stage / name, {root / UBCORE: pods_view} if pods_view else {})
    for name in LAID_OVER:
        mounts.bind(stage / name, Path("/", name))


def _merge(machines: Path, nodes: Path, out: Path, instead: Mapping[Path, Path]) -> None:
    """Fill ``out`` with what both folders have, the node's where both have it; folders of both are merged again."""
    for name in sorted({*os.listdir(machines), *os.listdir(nodes)}):  # noqa: PTH208
        theirs, own, target = machines / name, nodes / name, out / name
        if own in instead:
            target.mkdir()
            if instead[own].is_dir():
                mounts.bind(instead[own], target)
        elif _is_folder(own) and _is_folder(theirs):
            target.mkdir()
            _merge(theirs, own, target, instead)
        else:
            _show(own if os.path.lexists(own) else theirs, target)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _show(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(os.readlink(source))  # noqa: PTH115
        return
    if source.is_dir():
        target.mkdir()
    else:
        target.touch()
    mounts.bind(source, target)
