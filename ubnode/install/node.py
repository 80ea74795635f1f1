"""The node whose files are changed: observe and do. The only effects of an installation.

The node's root may be a folder (``/host`` in a container). Links on the way are followed as the node itself would
follow them: an absolute one starts at the node's root, and ``..`` does not lead out of it.
"""

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cni_ub.agent import socketpath
from cni_ub.agent.clean import clean
from cni_ub.agent.config import AgentConfig
from ubhost import config, statefile
from ubhost.errors import Busy, HostFault, InvalidRequest, NotFound
from ubhost.roots import Roots
from ubnode.install.layout import CONFIGS, CURRENT, RECORD, RELEASES, STATE
from ubnode.install.plan import Observed, Record
from ubnode.install.runtimes import CONTAINERD, CRIO_FOLDER, Runtime
from ubnode.install.steps import Folder, PutAside, Release, Run, SetFile, SetLink, Step, Withdraw

POOLS = "/var/lib/ub-node/pools"
AGENT_SOCKET = "/run/ub-node/agent.sock"
NRI_SOCKETS = ("/var/run/nri/nri.sock", "/run/nri/nri.sock")
LINKS_FOLLOWED = 40  # as the kernel
ASIDE = ".ub-node-aside-"


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
        record = self._record()
        files, modes, links, others = {}, {}, {}, set()
        for path in {*paths, *record.files, *record.links, RECORD, CURRENT, CONTAINERD}:
            there = self.place(path)
            if there.is_symlink():
                links[path] = str(there.readlink())
            elif there.is_file():
                files[path] = there.read_text(encoding="utf-8", errors="surrogateescape")
                modes[path] = stat.S_IMODE(there.stat().st_mode)
            elif there.exists():
                others.add(path)
        wanted_folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        return Observed(
            files=files,
            modes=modes,
            links=links,
            others=frozenset(others),
            folders=frozenset(path for path in {*wanted_folders, *paths, *STATE} if self._is_folder(path)),
            releases=self._releases(),
            state=self._state(),
            systemd=self.root == Path("/") and Path("/run/systemd/system").is_dir(),
            record=record,
        )

    def runtime(self) -> Runtime:
        containerd = self.place(CONTAINERD, follow=True)
        return Runtime(
            containerd=containerd.read_text(encoding="utf-8") if containerd.is_file() else None,
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

    def sweep(self) -> None:
        """Remove for good what was put aside, by us or by one that was killed."""
        folders = {str(PurePosixPath(path).parent) for path in (RELEASES, *STATE)} | {RELEASES, *STATE}
        for folder in sorted(folders):
            for aside in self.place(folder, follow=True).glob(f"{ASIDE}*"):
                if aside.is_dir() and not aside.is_symlink():
                    shutil.rmtree(aside)
                else:
                    aside.unlink()

    def do(self, step: Step) -> None:
        """Carry out one step.

        Raises:
            HostFault: the node refused; the step changed nothing.
        """
        try:
            self._do(step)
        except OSError as error:
            raise HostFault(f"cannot {step}: {error.strerror or error}") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip()
            raise HostFault(f"cannot {step}: exit code {error.returncode}{': ' if said else ''}{said}") from error

    def _do(self, step: Step) -> None:
        match step:
            case Folder(path, True, mode):
                self.place(path).mkdir(mode=mode, exist_ok=True)
            case Folder(path):
                self._remove_if_empty(path)
            case Release(version, True):
                self._place_release(version)
            case Release(version):
                self._put_aside(f"{RELEASES}/{version}")
            case SetLink(path, target):
                self._set_link(path, target)
            case SetFile(path, content, _, mode):
                self._set_file(path, content, mode)
            case PutAside(path, aside):
                self._put_aside(path) if aside else self._put_back(path)
            case Run(command):
                _run(command)
            case Withdraw(daemon, away):
                self._withdraw(daemon) if away else None

    def _record(self) -> Record:
        content = statefile.read(self.place(RECORD), 1)
        try:
            return Record() if content is None else Record.parse(content)
        except (KeyError, TypeError, ValueError) as error:
            raise statefile.Damaged(f"{RECORD}: {error!r}") from error

    def _is_folder(self, path: str) -> bool:
        return self.place(path, follow=True).is_dir()

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
        if self._put_back(f"{RELEASES}/{version}"):
            return
        if self.bundle is None:
            raise NotFound("this program was not started from a bundle: name one with --from")
        target = self.place(f"{RELEASES}/{version}")
        placing = target.with_name(f"{ASIDE}{version}.new")
        if placing.exists():  # left by a kill
            shutil.rmtree(placing)
        shutil.copytree(self.bundle, placing, symlinks=True)
        os.utime(placing)  # releases are told apart by age
        _flush(placing)  # a power cut after the rename must not leave empty files
        placing.rename(target)

    def _withdraw(self, daemon: str) -> None:
        """The agent's files are removed here; cgroups are put back by the installed nri-qos, which knows how."""
        if daemon == "nri-qos":
            program = self.place(f"{CURRENT}/nri-qos", follow=True)
            subprocess.run(
                [program, "--restore"], env={"UB_ROOT": str(self.root)}, check=True, capture_output=True, text=True
            )
            return
        if _answers(self.place(AGENT_SOCKET, follow=True)):
            raise Busy("ub-agent runs on this node: end it first, or it writes again what is removed")
        file = self.place(f"{CONFIGS}/agent.yaml", follow=True)
        try:
            settings = config.load(file if file.exists() else None, AgentConfig)
        except InvalidRequest:  # the agent could not run with it either
            settings = AgentConfig()
        clean(settings, Roots(self.root))

    def _put_aside(self, path: str) -> None:
        there = self.place(path)
        aside = there.with_name(ASIDE + there.name)
        if not there.exists():
            return
        if aside.exists():  # left by a kill
            shutil.rmtree(aside)
        there.rename(aside)

    def _put_back(self, path: str) -> bool:
        there = self.place(path)
        aside = there.with_name(ASIDE + there.name)
        if not aside.exists():
            return False
        aside.rename(there)
        return True

    def _set_link(self, path: str, target: str | None) -> None:
        there = self.place(path)
        if target is None:
            there.unlink(missing_ok=True)
            return
        aside = there.with_name(f".{there.name}.ub-node")  # a dot file is no CNI plugin and no unit
        aside.unlink(missing_ok=True)
        aside.symlink_to(target)
        aside.replace(there)

    def _set_file(self, path: str, content: str | None, mode: int) -> None:
        there = self.place(path)
        if content is None:
            there.unlink(missing_ok=True)
            return
        if there.exists():
            mode = stat.S_IMODE(there.stat().st_mode)
        aside = there.with_name(f".{there.name}.ub-node")
        aside.unlink(missing_ok=True)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as out:
            os.fchmod(fd, mode)
            out.write(content)
            out.flush()
            os.fsync(fd)
        aside.replace(there)

    def _remove_if_empty(self, path: str) -> None:
        there = self.place(path)
        if not there.is_dir() or there.is_symlink():
            return
        if all(entry.name.startswith(ASIDE) for entry in there.iterdir()):
            shutil.rmtree(there)


def _answers(path: Path) -> bool:
    """Whether a living process listens at a socket."""
    if not path.is_socket():
        return False
    with socketpath.short(path) as near, socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(near) == 0


def _run(command: tuple[str, ...]) -> None:
    if command:
        subprocess.run(command, check=True, capture_output=True, text=True)


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
