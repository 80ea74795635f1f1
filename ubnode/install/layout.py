"""What each component wants on a node: files, links, units. Values only."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ubnode.install.runtimes import NriSwitch

RELEASES = "/opt/ub-node"
CURRENT = f"{RELEASES}/current"
UNITS = "/etc/systemd/system"
CONFIGS = "/etc/ub-node"
TMPFILES = "/etc/tmpfiles.d/ub-node.conf"
RECORD = "/var/lib/ub-node/install.json"
CNI_BIN = "/opt/cni/bin"
KUBELET = "/var/lib/kubelet"
DATA_DAEMONS = "ub-csi-*.scope"  # each in a scope of its own, which outlives the driver
STATE = ("/run/ub-node", "/var/lib/ub-node")
FILES = Path(__file__).parent / "files"


class Component(StrEnum):
    CNI = "cni"
    AGENT = "agent"
    CSI = "csi"
    NRI = "nri"


UNIT_OF = {Component.AGENT: "ub-agent.service", Component.CSI: "ub-csi.service", Component.NRI: "nri-qos.service"}


@dataclass(frozen=True, slots=True)
class File:
    """``edited`` marks a file that belongs to the administrator once it is there: never changed by us again."""

    path: str
    content: str
    mode: int = 0o644
    edited: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Folders that differ between nodes."""

    cni_bin: str = CNI_BIN
    kubelet: str = KUBELET


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that one or more components want. ``links`` maps a link to its target."""

    files: tuple[File, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    imports: bool = False


def wanted(components: Iterable[Component], places: Places, nri: NriSwitch) -> Wanted:
    """Return what ``components`` want on a node, apart from the release itself."""
    chosen = frozenset(components)
    units = tuple(UNIT_OF[component] for component in Component if component in chosen and component in UNIT_OF)
    files = [File(f"{UNITS}/{unit}", _unit(unit, places)) for unit in units]
    files += [
        File(f"{CONFIGS}/{component}.yaml", _text(f"{component}.yaml"), 0o600, edited=True)
        for component in Component
        if component in chosen and component in UNIT_OF
    ]
    if units:
        files.append(File(TMPFILES, _text("ub-node.tmpfiles")))
    if Component.NRI in chosen:
        files += [File(path, content) for path, content in nri.files]
    return Wanted(
        files=tuple(files),
        links=((f"{places.cni_bin}/ub-cni", f"{CURRENT}/ub-cni"),) if Component.CNI in chosen else (),
        folders=(f"{places.kubelet}/plugins/csi-ub.unifiedbus.com",) if Component.CSI in chosen else (),
        units=units,
        imports=Component.NRI in chosen and nri.imports,
    )


def _text(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _unit(name: str, places: Places) -> str:
    return _text(name).replace(KUBELET, places.kubelet)
