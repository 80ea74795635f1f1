"""What decides whether UB pods can run on a node. Pure values; ``ubhost.doctor.look`` collects them.

What could not be looked at is ``None`` or empty.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ubhost.discovery import Discovery
from ubhost.ubse.generation import Generation


@dataclass(frozen=True, slots=True)
class Node:
    """A path and what is there; ``mode`` is ``None`` where nothing is."""

    path: str
    mode: int | None = None
    owner: str = ""
    group: str = ""

    @property
    def exists(self) -> bool:
        return self.mode is not None

    @property
    def is_socket(self) -> bool:
        return self.mode is not None and stat.S_ISSOCK(self.mode)

    @property
    def is_executable(self) -> bool:
        return self.mode is not None and stat.S_ISREG(self.mode) and bool(self.mode & 0o111)

    @property
    def is_char_device(self) -> bool:
        return self.mode is not None and stat.S_ISCHR(self.mode)

    @property
    def is_open_to_others(self) -> bool:
        return self.mode is not None and bool(self.mode & 0o007)


@dataclass(frozen=True, slots=True)
class Daemon:
    """One of ours. ``answers`` is ``None`` where we may not ask; ``unit`` is empty where systemd has none of it."""

    name: str
    socket: Node
    answers: bool | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file of another program, and what is in it; ``trouble`` where it cannot be understood."""

    path: str
    content: Mapping[str, Any] = field(default_factory=dict)
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """One look. ``others`` counts network namespaces besides our own; versions are the programs' own words.

    ``kinds`` are all providers that are possible here; ``damaged`` the devices whose records cannot be read.
    """

    kernel: str
    machine: str
    has_ubrt: bool = False
    modules: frozenset[str] = frozenset()
    is_root: bool = True
    kinds: tuple[str, ...] = ()
    found: Discovery | None = None
    trouble: str | None = None
    others: int = 0
    ubse: Node = field(default_factory=lambda: Node(""))
    ubse_generation: Generation | None = None
    has_ubse_group: bool = False
    device_nodes: tuple[Node, ...] = ()
    libraries: tuple[str, ...] = ()
    cgroup: str | None = None  # v1, v2 or hybrid
    controllers: frozenset[str] = frozenset()
    selinux: str | None = None  # enforcing or permissive
    kubelet_sockets: tuple[Node, ...] = ()
    kubelet: ConfigFile | None = None
    containerd: ConfigFile | None = None
    crio: tuple[ConfigFile, ...] = ()
    containerd_socket: Node = field(default_factory=lambda: Node(""))
    nri_socket: Node = field(default_factory=lambda: Node(""))
    cdi: tuple[ConfigFile, ...] = ()
    cni: tuple[ConfigFile, ...] = ()
    cni_plugin: Node = field(default_factory=lambda: Node(""))
    daemons: tuple[Daemon, ...] = ()
    damaged: tuple[str, ...] = ()
    ledger_trouble: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
