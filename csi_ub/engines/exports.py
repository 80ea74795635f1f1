"""What the kernel's NFS server on this node offers: one export for each volume, to the nodes that may have it.

The server is the node's own. One that runs is used as it is; otherwise it is started, by systemd where that runs. Its
threads are the kernel's, so exports outlive the driver. What is exported is read from the table that exportfs(8) keeps.
Each export is written to a file as well, so that the server has it from its first moment when it starts again, before
any driver runs: else the programs of other nodes would be told that their open files are stale.

Source: exports(5), exportfs(8), rpc.nfsd(8), rpc.mountd(8), nfsd(7); Linux Documentation/admin-guide/nfs.
"""

import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_ub import programs
from csi_ub.pools.base import doing
from ubhost.errors import HostFault, UbError, Unsupported
from ubhost.kernel import mounts

PORT = 2049
_THREADS = "8"
_V4_ONLY = ("--no-nfs-version", "3")
# Handles name the volume, not a disk's number, so they are good after a reboot; pods' root may be root in there.
_OPTIONS = "rw,sync,no_root_squash,no_subtree_check,sec=sys"
_ETAB = re.compile(r"(\S+)\s+(\S+)\((\S*)\)")
_SPACE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Exports:
    """``proc`` is where the kernel tells of itself, ``table`` the file in which exportfs keeps what is exported.

    ``folder`` has the files that exportfs reads when the server starts.
    """

    proc: Path = Path("/proc")
    table: Path = Path("/var/lib/nfs/etab")
    folder: Path = Path("/etc/exports.d")
    mount: Callable[[str, Path, str], None] = mounts.mount

    def check(self) -> None:
        """Raise ``Unsupported`` if this node cannot serve."""
        refuse_without(self.proc, "nfsd", "an NFS server")
        for program in ("exportfs", "rpc.nfsd", "rpc.mountd"):
            programs.find(program)

    def is_serving(self) -> bool:
        try:
            return int((self._nfsd / "threads").read_text(encoding="ascii")) > 0
        except (OSError, ValueError):
            return False

    def ensure(self, path: Path, number: str, hosts: Iterable[str]) -> None:
        """See that ``path`` is offered to ``hosts`` and nobody else; ``number`` (a UUID) names it in file handles."""
        if not self.is_serving():
            self._start()
        wanted, found = {_client(address(host)) for host in hosts}, self.clients(path)
        options = f"{_OPTIONS},fsid={number}"
        self._write(number, f"{_escaped(path)} {' '.join(f'{client}({options})' for client in sorted(wanted))}\n")
        for client in sorted(found - wanted):
            programs.run(["exportfs", "-u", _place(client, path)])
        for client in sorted(wanted - found):
            programs.run(["exportfs", "-o", options, _place(client, path)])

    def remove(self, path: Path, number: str) -> None:
        """Offer ``path`` to nobody any more; it may not be offered."""
        with doing("remove", self._file(number)):
            self._file(number).unlink(missing_ok=True)
        for client in sorted(self.clients(path)):
            programs.run(["exportfs", "-u", _place(client, path)])

    def clients(self, path: Path) -> set[str]:
        """Return to whom ``path`` is offered, as exportfs writes it."""
        try:
            lines = self.table.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise HostFault(f"cannot read {self.table}: {error.strerror}") from error
        entries = [match for line in lines if (match := _ETAB.fullmatch(line.strip()))]
        return {match[2] for match in entries if _SPACE.sub(lambda code: chr(int(code[1], 8)), match[1]) == str(path)}

    def _file(self, number: str) -> Path:
        return self.folder / f"ub-csi-{number}.exports"

    def _write(self, number: str, text: str) -> None:
        file = self._file(number)
        with doing("write", file):
            if file.exists() and file.read_text(encoding="utf-8") == text:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = file.with_suffix(".draft")  # exportfs reads what ends in .exports
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)

    @property
    def _nfsd(self) -> Path:
        return self.proc / "fs/nfsd"

    def _start(self) -> None:
        self.check()
        if programs.has_systemd():
            programs.run(["systemctl", "start", "nfs-server.service"])
        else:
            self._start_alone()
        if not self.is_serving():
            raise HostFault(f"the NFS server of this node was started, but {self._nfsd / 'threads'} says it has none")

    def _start_alone(self) -> None:
        if not (self._nfsd / "threads").exists():
            try:
                self.mount("nfsd", self._nfsd, "nfsd")
            except OSError as error:
                raise HostFault(f"cannot mount nfsd at {self._nfsd}: {error.strerror}") from error
        with suppress(Unsupported):  # not all nfs-utils have it
            programs.run(programs.apart(["nfsdcld"]))  # remembers clients over a reboot, so that they keep their locks
        programs.run(programs.apart(["rpc.mountd", "--no-nfs-version", "2", *_V4_ONLY]))
        programs.run(["rpc.nfsd", "--no-udp", *_V4_ONLY, "--port", str(PORT), _THREADS])


def refuse_without(proc: Path, fstype: str, what: str) -> None:
    """Raise ``Unsupported`` if the kernel has no file system ``fstype``, even after it was asked to load it."""
    if _has(proc, fstype):
        return
    # Under systemd the driver itself may load nothing (its unit), but may ask for it.
    by_systemd = ["systemctl", "start", f"modprobe@fs-{fstype}.service"]
    with suppress(UbError):  # what counts is whether it is there
        programs.run(by_systemd if programs.has_systemd() else ["modprobe", f"fs-{fstype}"])
    if not _has(proc, fstype):
        raise Unsupported(
            f"consistency close-to-open needs {what} in the kernel of each node: {fstype} is not in {proc}/filesystems "
            "of this one, nor can modprobe load it"
        )


def address(host: str) -> str:
    """Return the address of a host; the kernel knows no names.

    Raises:
        HostFault: it has none.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise HostFault(f"cannot look up {host}: {error.strerror or error}") from error


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _has(proc: Path, fstype: str) -> bool:
    try:
        lines = (proc / "filesystems").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise HostFault(f"cannot read {proc}/filesystems: {error.strerror}") from error
    return fstype in {line.split()[-1] for line in lines if line.strip()}


def _escaped(path: Path) -> str:
    """Return a path as exports(5) has it: what would end it is written as octal digits."""
    return "".join(f"\\{ord(char):03o}" if char in ' \t\n"#\\' else char for char in str(path))


def _client(host: str) -> str:
    """Return the network of one address: exportfs would look for the name of a bare address, and keep that."""
    return f"{host}/128" if ":" in host else f"{host}/32"


def _place(client: str, path: Path) -> str:
    host, slash, bits = client.partition("/")
    return f"{bracketed(host)}{slash}{bits}:{path}"
