"""The node whose files are changed: observe and do. The only effects of an installation.

The node's root may be a folder (``/host`` in a container). Links on the way are followed as the node itself would
follow them: an absolute one starts at the node's root, and ``..`` does not lead out of it.
"""

import errno
import fcntl
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cni_ub.agent.clean import clean
from cni_ub.agent.config import AgentConfig
from ubhost import config, socketpath, statefile
from ubhost.errors import Busy, HostFault, InvalidRequest, NotFound
from ubhost.roots import Roots
from ubnode.install import tree
from ubnode.install.layout import CONFIGS, CURRENT, RECORD, RELEASES, STATE
from ubnode.install.plan import Observed
from ubnode.install.record import Record
from ubnode.install.runtimes import CONTAINERD, CRIO_FOLDER, Runtime
from ubnode.install.steps import Folder, PutAside, Release, Run, SetFile, SetLink, Step, Withdraw

POOLS = "/var/lib/ub-node/pools"
AGENT_SOCKET = "/run/ub-node/agent.sock"
NRI_SOCKETS = ("/var/run/nri/nri.sock", "/run/nri/nri.sock")
LINKS_FOLLOWED = 40  # as the kernel


@dataclass(frozen=True, slots=True)
class Use:
    """What pods have of us: devices held, volumes published, volumes stored."""

    attachments: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


class Node:
    """One node below ``root``; releases are copied from ``bundle``."""

    def __init__(self, root: Path, bundle: Path | None = None) -> None:
        self.root = root.resolve()
        self.bundle = bundle

    def place(self, path: str, *, follow: bool = False) -> Path:
        """Return where the node's ``path`` lies; its folders' links are followed, one at the end only if ``follow``.

        Raises:
            HostFault: too many links.
        """
        done = self.root
        left = list(reversed(PurePosixPath(path).parts[1:]))
        for _ in range(len(left) + LINKS_FOLLOWED * 8):
            if not left:
                return done
            part = left.pop()
            if part == "..":
                done = done if done == self.root else done.parent
                continue
            step = done / part
            if (left or follow) and step.is_symlink():
                target = PurePosixPath(step.readlink())
                done = self.root if target.is_absolute() else done
                left.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            else:
                done = step
        raise HostFault(f"{path} on the node leads through too many links")

    def observe(self, paths: Iterable[str]) -> Observed:
        """Look at ``paths`` (and at our own), without changing anything.

        Raises:
            Damaged: the record of an earlier installation cannot be used.
        """
        record = _record_in(self.place(RECORD))
        files, modes, links, others = {}, {}, {}, set()
        paths = {*paths}
        for path in {*paths, *record.files, *record.links, RECORD, CURRENT, CONTAINERD}:
            there = self.place(path)
            if there.is_symlink():
                links[path] = str(there.readlink())
            elif there.is_file():
                files[path] = there.read_text(encoding="utf-8", errors="surrogateescape")
                modes[path] = stat.S_IMODE(there.stat().st_mode)
            elif there.exists():
                others.add(path)
        around = {*paths, *STATE}
        around |= {str(parent) for path in around for parent in PurePosixPath(path).parents}
        folders = frozenset(path for path in around if self._is_folder(path))
        return Observed(
            files=files,
            modes=modes,
            links=links,
            others=frozenset(others),
            folders=folders,
            no_folders={path: what for path in around - folders if (what := self._is_instead(path))},
            releases=self._releases(),
            state=self._state(),
            serves=bool(self.use().volumes),
            systemd=self.root == Path("/") and Path("/run/systemd/system").is_dir(),
            record=record,
        )

    def runtime(self) -> Runtime:
        containerd = self.place(CONTAINERD, follow=True)
        is_there = containerd.is_file()
        return Runtime(
            containerd=containerd.read_text(encoding="utf-8", errors="surrogateescape") if is_there else None,
            crio=self._is_folder(CRIO_FOLDER),
            listens=any(self.place(path, follow=True).is_socket() for path in NRI_SOCKETS),
        )

    def use(self) -> Use:
        """What would be lost or left hanging if everything of ours went away now."""
        attachments = sorted(self.place("/var/lib/ub-node/attachments").glob("*.json"))
        volumes = sorted(self.place(POOLS).glob("*/volumes/*"))
        published = sorted(self.place("/run/ub-node/volumes").glob("*.json"))
        names = [tuple(path.stem for path in paths) for paths in (attachments, published, volumes)]
        return Use(*names)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other installers off this node for the body. Folders are locked, not files, so nothing is left.

        In a container the root is not the node's own, but the folder of our state is.

        Raises:
            Busy: another one is at work.
        """
        with ExitStack() as held:
            for folder in (self.root, self.place(STATE[1], follow=True)):
                if folder.is_dir():
                    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    held.callback(os.close, fd)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError as error:
                        raise Busy("another ubnode is changing this node: wait for its end and try again") from error
            yield

    def sweep(self, paths: Iterable[str]) -> None:
        """Remove for good what is aside of files and links, and what never came to its place, whoever was at work."""
        put_aside = _record_in(tree.aside(self.place(RECORD))).paths  # with the volumes of a pool beside it
        put_aside |= _record_in(tree.aside(self.place(STATE[1])) / Path(RECORD).name).paths
        for path in {*paths, *put_aside, RECORD, CURRENT, CONTAINERD}:
            tree.clear_around(self.place(path))
        folders = {str(PurePosixPath(path).parent) for path in (RELEASES, *STATE)} | {RELEASES, *STATE}
        for folder in sorted(folders):
            tree.clear(self.place(folder, follow=True))

    def forget(self) -> None:
        """Remove the folder of the record where there is no record: somebody was killed before writing it."""
        tree.remove_if_empty(self.place(STATE[1]))

    def do(self, step: Step) -> None:
        """Carry out one step.

        Raises:
            HostFault: the node refused; the step changed nothing.
        """
        try:
            self._do(step)
        except OSError as error:
            next_step = ": remount it writable, and try again" if error.errno == errno.EROFS else ""
            raise HostFault(f"cannot {step}: {error.strerror or error}{next_step}") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip()
            raise HostFault(f"cannot {step}: exit code {error.returncode}{': ' if said else ''}{said}") from error

    def _do(self, step: Step) -> None:
        match step:
            case Folder(path, True, mode):
                self.place(path).mkdir(mode=mode, exist_ok=True)
            case Folder(path):
                tree.remove_if_empty(self.place(path))
            case Release(version, True):
                self._place_release(version)
            case Release(version):
                tree.put_aside(self.place(f"{RELEASES}/{version}"))
            case SetLink(path, target):
                tree.set_link(self.place(path), target)
            case SetFile(path, content, _, mode):
                tree.set_file(self.place(path), content, mode)
            case PutAside(path, aside):
                (tree.put_aside if aside else tree.put_back)(self.place(path))
            case Run(command):
                _run(command)
            case Withdraw(daemon, away):
                self._withdraw(daemon) if away else None

    def _is_folder(self, path: str) -> bool:
        return self.place(path, follow=True).is_dir()

    def _is_instead(self, path: str) -> str | None:
        """Say what is where a folder could be, ``None`` if nothing is."""
        there = self.place(path)
        if there.is_symlink():
            return f"a link to {there.readlink()}, which is no folder"
        return "no folder" if there.exists() else None

    def _releases(self) -> tuple[str, ...]:
        folder = self.place(RELEASES, follow=True)
        if not folder.is_dir():
            return ()
        found = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
        whole = [entry for entry in found if not entry.name.startswith(".")]
        return tuple(entry.name for entry in sorted(whole, key=lambda entry: (entry.stat().st_mtime_ns, entry.name)))

    def _state(self) -> tuple[str, ...]:
        """Our state, without the pool folders when there are volumes in them: these are not ours to remove."""
        found = []
        for path in STATE:
            there = self.place(path)
            if self.use().volumes and POOLS.startswith(f"{path}/"):
                found += [
                    f"{path}/{entry.name}" for entry in sorted(there.iterdir()) if f"{path}/{entry.name}" != POOLS
                ]
            else:  # there or not: a daemon may make it while it takes its traces back
                found.append(path)
        return tuple(found)

    def _place_release(self, version: str) -> None:
        there = self.place(f"{RELEASES}/{version}")
        if tree.put_back(there):
            return
        if self.bundle is None:
            raise NotFound("this program was not started from a bundle: name one with --from")
        tree.place_folder(self.bundle, there)

    def _withdraw(self, daemon: str) -> None:
        """The agent's files are removed here; cgroups are put back by the installed nri-qos, which knows how."""
        if daemon == "nri-qos":
            program = self.place(f"{CURRENT}/nri-qos", follow=True)
            subprocess.run(
                [program, "--restore"], env={"UB_ROOT": str(self.root)}, check=True, capture_output=True, text=True
            )
            return
        if socketpath.listens(self.place(AGENT_SOCKET, follow=True)):
            raise Busy("ub-agent runs on this node: end it first, or it writes again what is removed")
        file = self.place(f"{CONFIGS}/agent.yaml", follow=True)
        try:
            settings = config.load(file if file.exists() else None, AgentConfig)
        except InvalidRequest:  # the agent could not run with it either
            settings = AgentConfig()
        clean(settings, Roots(self.root))


def _record_in(file: Path) -> Record:
    """Return what an installation wrote there.

    Raises:
        Damaged: it cannot be used; the message says how to go on.
    """
    if not os.path.lexists(file):  # nor is it where its folder is none
        return Record()
    try:
        content = statefile.read(file, 1)
        return Record() if content is None else Record.parse(content)
    except (HostFault, ValueError) as error:
        why = str(error) if isinstance(error, HostFault) else f"{file} cannot be used: {error}"
        raise statefile.Damaged(
            f"{why}; if another release wrote it, call the ubnode of that release; else move it away and say "
            f"{CURRENT}/ubnode install COMPONENT, which takes over what is installed"
        ) from error


def _run(command: tuple[str, ...]) -> None:
    if command:
        subprocess.run(command, check=True, capture_output=True, text=True)
