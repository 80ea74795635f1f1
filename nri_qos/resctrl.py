"""The part of the last-level cache and of the memory bandwidth that offline work may use: one resctrl group of ours.

The group is made when it is configured, gets the threads of offline containers, and is removed by a restore, which
gives its threads back to the default group. Groups of others are never touched, nor is a thread that is in one.

Source: Linux Documentation/filesystems/resctrl.rst; reference/nri.md sections 2.2 and 5 (D23).
"""

import contextlib
import errno
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nri_qos.config import Resctrl
from nri_qos.files import Hierarchy
from nri_qos.writer import Writer
from ubhost.errors import HostFault

GROUP = "ub-offline"
ROUNDS = 5  # periods between two looks for new threads; those of a thread that was moved are born in the group
CACHE, BANDWIDTH = ("L3", "L3CODE", "L3DATA"), "MB"
PERCENT = 100  # what "MB" says where it is one; other machines count absolutely, and would need absolute limits
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Domains:
    """One resource: what its domains have, and in which steps it is divided."""

    full: Mapping[str, str]  # id of a cache or a memory controller -> mask or percentage
    least: int  # bits of the mask, or percent
    step: int = 1  # percent


def parse(schemata: str) -> dict[str, dict[str, str]]:
    """Return resource -> domain -> value of lines such as ``L3:0=ff;1=ff``."""
    found = {}
    for line in schemata.splitlines():
        name, colon, domains = line.strip().partition(":")
        if colon:
            pairs = (domain.partition("=") for domain in domains.split(";"))
            found[name] = {key.strip(): value.strip() for key, _, value in pairs}
    return found


def limits(resources: Mapping[str, Domains], share: Resctrl) -> dict[str, dict[str, str]]:
    """Return what the group's schemata shall say of the resources that are limited."""
    wanted = {}
    for name, domains in resources.items():
        if name in CACHE and share.cache is not None:
            wanted[name] = {key: _mask(full, share.cache, domains.least) for key, full in domains.full.items()}
        is_percent = name == BANDWIDTH and set(domains.full.values()) == {str(PERCENT)}
        if is_percent and share.bandwidth is not None:
            percent = max(-(-share.bandwidth // domains.step) * domains.step, domains.least)
            wanted[name] = dict.fromkeys(domains.full, str(min(percent, PERCENT)))
    return wanted


def _mask(full: str, percent: int, least: int) -> str:
    """Return the lowest ways of a cache: devices write to the highest ones."""
    ways = int(full, 16).bit_count()
    return f"{(1 << max(ways * percent // 100, least, 1)) - 1:x}"


def remove(root: Path) -> bool:
    """Remove our group below ``root``; return whether there was one.

    Raises:
        HostFault: it cannot be removed.
    """
    group = root / GROUP
    try:
        group.rmdir()
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise HostFault(f"cannot remove {group}: {error.strerror}") from error
        for name in ("schemata", "tasks"):  # plain files below another root
            (group / name).unlink(missing_ok=True)
        group.rmdir()
    return True


class Group:
    """Our group below ``root``, where the kernel has its resctrl files."""

    def __init__(self, root: Path, files: Hierarchy, writer: Writer) -> None:
        self._root = root
        self._group = root / GROUP
        self._files = files
        self._writer = writer  # whose capabilities and counts are ours as well
        self._is_made: bool | None = None  # None: not tried yet
        self._period = 0

    def turn(self, containers: Iterable[str], share: Resctrl) -> None:
        """Hold the threads of ``containers`` (cgroups) in the group, which is limited to ``share``."""
        self._period += 1
        if self._is_made is None:
            self._is_made = self._is_wanted(share)
        if self._is_made and self._period % ROUNDS == 1:
            self._gather(containers)

    def _is_wanted(self, share: Resctrl) -> bool:
        """See what there is; make the group, or remove what an earlier run left. Return whether it is there."""
        try:
            resources = self._resources()
        except HostFault as error:
            resources = {}
            if share != Resctrl():
                _log.warning("cache and memory bandwidth of offline work are not limited", extra={"error": str(error)})
        wanted, possible = limits(resources, share), limits(resources, Resctrl(PERCENT, PERCENT))
        self._writer.capabilities |= {
            "resctrl L3": any(name in possible for name in CACHE),
            "resctrl MB": BANDWIDTH in possible,
        }
        if self._writer.is_dry:
            return False
        try:
            if wanted:
                self._make(wanted)
            else:
                remove(self._root)
        except HostFault as error:
            _log.warning("cache and memory bandwidth of offline work are not limited", extra={"error": str(error)})
            return False
        return bool(wanted)

    def _resources(self) -> dict[str, Domains]:
        """Read which resources there are.

        Raises:
            HostFault: resctrl is not mounted, or its files cannot be read.
        """
        try:
            found = parse((self._root / "schemata").read_text(encoding="ascii"))
            return {name: self._domains(name, full) for name, full in found.items() if name in (*CACHE, BANDWIDTH)}
        except FileNotFoundError as error:
            raise HostFault(f"{error.filename} is not there: resctrl is not mounted on this node") from error
        except (OSError, ValueError) as error:
            raise HostFault(f"cannot read {self._root}: {error}") from error

    def _domains(self, name: str, full: Mapping[str, str]) -> Domains:
        info = self._root / "info" / name
        if name == BANDWIDTH:
            return Domains(full, _number(info / "min_bandwidth"), _number(info / "bandwidth_gran"))
        mask = (info / "cbm_mask").read_text(encoding="ascii").strip()
        return Domains(dict.fromkeys(full, mask), _number(info / "min_cbm_bits"))

    def _make(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        """Make the group and limit it.

        Raises:
            HostFault: the kernel refuses: there are as many groups as the processor can tell apart, or a mask overlaps
                with somebody's exclusive one.
        """
        text = "".join(
            f"{name}:{';'.join(f'{key}={value}' for key, value in domains.items())}\n"
            for name, domains in wanted.items()
        )
        try:
            self._group.mkdir(exist_ok=True)
            _append(self._group / "schemata", text, truncate=True)
            is_now = parse((self._group / "schemata").read_text(encoding="ascii"))
        except OSError as error:
            why = ""
            with contextlib.suppress(OSError):
                why = (self._root / "info/last_cmd_status").read_text(encoding="ascii").strip()
            with contextlib.suppress(HostFault):
                remove(self._root)
            raise HostFault(f"cannot make {self._group} with {text!r}: {error.strerror} {why}") from error
        if any(is_now.get(name) != domains for name, domains in wanted.items()):
            self._writer.counts["ineffective", "resctrl schemata"] += 1
            _log.warning("resctrl did not become what was written", extra={"written": text, "is": is_now})
        _log.info("cache and memory bandwidth of offline work are limited", extra={"group": GROUP, "limits": text})

    def _gather(self, containers: Iterable[str]) -> None:
        """Move threads that are in the default group, and no others."""
        threads = {thread for folder in containers for thread in self._threads(folder)}
        try:
            if not threads or not (new := threads & _tasks(self._root) - _tasks(self._group)):
                return
            for thread in sorted(new, key=int):
                with contextlib.suppress(ProcessLookupError):
                    _append(self._group / "tasks", f"{thread}\n")
            self._writer.counts["writes", "resctrl tasks"] += 1
        except OSError as error:
            self._writer.counts["write_errors", "resctrl tasks", errno.errorcode.get(error.errno or 0, "unknown")] += 1
            self._is_made = None if error.errno == errno.ENOENT else self._is_made  # somebody removed the group

    def _threads(self, folder: str) -> set[str]:
        """Return the threads in a cgroup and in all below it."""
        return self._files.threads(folder).union(*(self._threads(child) for child in self._files.children(folder)))


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _tasks(group: Path) -> set[str]:
    path = group / "tasks"
    return set(path.read_text(encoding="ascii").split()) if path.exists() else set()


def _append(path: Path, text: str, *, truncate: bool = False) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_TRUNC if truncate else os.O_APPEND)
    fd = os.open(path, flags, 0o644)  # the kernel's files are there already
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
