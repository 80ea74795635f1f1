"""Look at everything that decides whether UB pods can run on this node. Changes nothing.

A doctor must be able to examine a broken host: what cannot be looked at is left out.
"""

import contextlib
import grp
import json
import os
import socket
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ubhost.discovery import Discovery
from ubhost.doctor.facts import ConfigFile, Daemon, Facts, Node
from ubhost.errors import UbError
from ubhost.kernel.netns import living
from ubhost.ledger import Ledger
from ubhost.providers import possible
from ubhost.roots import Roots
from ubhost.survey import survey
from ubhost.ubse.client import Ubse
from ubhost.ubse.generation import Generation

MODULES = (
    "ubus",
    "ummu",
    "ubase",
    "ubcore",
    "uburma",
    "udma",
    "ubagg",
    "ipourma",
    "obmm",
    "ib_core",
    "rdma_rxe",
    "smc",
)
LARGEST = 1 << 20  # bytes of a configuration file
VERSION_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 2
UNITS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
CSI_SOCKET = "var/lib/kubelet/plugins/csi-ub.unifiedbus.com/csi.sock"


def look(roots: Roots) -> Facts:
    """Return everything that the checks need."""
    found, trouble = _discover(roots)
    root, system = roots.root, os.uname()
    devices = [name for device in (found.devices if found else ()) for name in device.nodes]
    damaged, ledger_trouble = _records(roots)
    cgroup, controllers = _cgroup(roots.sys / "fs/cgroup")
    return Facts(
        kernel=system.release,
        machine=system.machine,
        has_ubrt=(roots.sys / "firmware/acpi/tables/UBRT").exists(),
        modules=frozenset(name for name in MODULES if (roots.sys / "module" / name).is_dir()),
        is_root=os.geteuid() == 0,
        kinds=possible(roots),
        found=found,
        trouble=trouble,
        others=max(len(living()) - 1, 0),
        ubse=_node(roots.ubse_socket),
        ubse_generation=_generation(Ubse(roots.ubse_socket)),
        has_ubse_group=_has_group("ubse"),
        device_nodes=tuple(_node(roots.dev / name) for name in dict.fromkeys(devices)),
        libraries=_libraries(root),
        cgroup=cgroup,
        controllers=controllers,
        selinux=_selinux(roots.sys / "fs/selinux/enforce"),
        kubelet_sockets=tuple(
            _node(root / "var/lib/kubelet" / name)
            for name in ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "plugins_registry")
        ),
        kubelet=_read(root / "var/lib/kubelet/config.yaml", yaml.safe_load),
        containerd=_containerd(root),
        crio=_folder(root / "etc/crio", ("*.conf", "crio.conf.d/*.conf"), tomllib.loads),
        containerd_socket=_node(root / "run/containerd/containerd.sock"),
        nri_socket=_node(root / "var/run/nri/nri.sock"),
        cdi=_folder(root, ("etc/cdi/*.json", "var/run/cdi/*.json"), json.loads),
        cni=_folder(root / "etc/cni/net.d", ("*.conflist", "*.conf"), json.loads),
        cni_plugin=_node(root / "opt/cni/bin/ub-cni"),
        daemons=(
            _daemon("ub-agent", roots.agent_socket, root),
            _daemon("ub-csi", root / CSI_SOCKET, root),
            _daemon("nri-qos", roots.run / "nri-qos.sock", root),
        ),
        damaged=damaged,
        ledger_trouble=ledger_trouble,
        versions=_versions() if root == Path("/") else {},
    )


def _discover(roots: Roots) -> tuple[Discovery | None, str | None]:
    try:
        return survey(roots), None
    except UbError as error:
        return None, str(error)


def _generation(ubse: Ubse) -> Generation | None:
    try:
        return ubse.generation()
    except UbError:
        return None


def _node(path: Path) -> Node:
    try:
        status = path.stat()
        return Node(str(path), status.st_mode, path.owner(), path.group())
    except (OSError, KeyError):
        return Node(str(path), _mode(path))


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _daemon(name: str, path: Path, root: Path) -> Daemon:
    unit = f"{name}.service"
    is_unit = any((root / folder / unit).is_file() for folder in UNITS)
    return Daemon(name, _node(path), _answers(path), unit if is_unit else "")


def _answers(path: Path) -> bool | None:
    """Whether somebody accepts; a daemon that was killed leaves its socket behind."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(ANSWER_TIMEOUT_S)
            peer.connect(str(path))
    except PermissionError:
        return None
    except OSError:
        return False
    return True


def _records(roots: Roots) -> tuple[tuple[str, ...], str | None]:
    """Return the devices whose records are damaged, and why none can be read at all."""
    try:
        return tuple(record.device for record in Ledger(roots).records() if record.is_damaged), None
    except UbError as error:
        return (), str(error)


def _has_group(name: str) -> bool:
    try:
        return bool(grp.getgrnam(name))
    except KeyError:
        return False


def _libraries(root: Path) -> tuple[str, ...]:
    """User-space parts of URMA and UBSE, by file name."""
    patterns = ("usr/lib64/liburma*.so*", "usr/lib64/libtpsa.so*", "usr/lib64/libubse-client.so*", "usr/bin/urma_admin")
    return tuple(sorted(path.name for pattern in patterns for path in root.glob(pattern)))


def _cgroup(folder: Path) -> tuple[str | None, frozenset[str]]:
    """v2 has its controllers at the top; hybrid has v1 folders and a v2 tree without controllers beside them."""
    controllers = _text(folder / "cgroup.controllers")
    if controllers is not None:
        return "v2", frozenset(controllers.split())
    if (folder / "unified/cgroup.procs").exists():
        return "hybrid", frozenset()
    return ("v1" if (folder / "cpu").is_dir() else None), frozenset()


def _selinux(path: Path) -> str | None:
    text = _text(path)
    return None if text is None else "enforcing" if text.strip() == "1" else "permissive"


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8", "replace")
    except OSError:
        return None


def _read(path: Path, parse: Any) -> ConfigFile | None:
    text = _text(path)
    if text is None:
        return None
    try:
        content = parse(text)
    except Exception as error:  # each format has errors of its own
        return ConfigFile(str(path), trouble=str(error).split("\n")[0][:200])
    if not isinstance(content, Mapping):
        return ConfigFile(str(path), trouble="it holds no table")
    return ConfigFile(str(path), content)


def _containerd(root: Path) -> ConfigFile | None:
    """Read containerd's configuration with the files that it imports: a table of a plugin in one replaces another.

    Source: containerd cmd/containerd/server/config (mergeConfig): one file that cannot be read is no configuration.
    """
    folder = root / "etc/containerd"
    main = _read(folder / "config.toml", tomllib.loads)
    if main is None or main.trouble:
        return main
    plugins = _plugins(main)
    imports = main.content.get("imports")
    for pattern in imports if isinstance(imports, list) else ():
        below = str(pattern).lstrip("/")
        for file in _folder(root if below != pattern else folder, (below,), tomllib.loads):
            if file.trouble:
                return file
            plugins |= _plugins(file)
    return replace(main, content={**main.content, "plugins": plugins})


def _plugins(file: ConfigFile) -> dict[str, Any]:
    plugins = file.content.get("plugins")
    return dict(plugins) if isinstance(plugins, Mapping) else {}


def _folder(folder: Path, patterns: tuple[str, ...], parse: Any) -> tuple[ConfigFile, ...]:
    found = []
    with contextlib.suppress(OSError, ValueError, NotImplementedError):  # of patterns that others wrote
        paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
        found = [file for path in paths[:256] if (file := _read(path, parse)) is not None]
    return tuple(found)


def _versions() -> dict[str, str]:
    """Ask the programs of this machine themselves."""
    asked = {
        "containerd": ["containerd", "--version"],
        "crio": ["crio", "--version"],
        "kubelet": ["kubelet", "--version"],
    }
    found = {}
    for name, command in asked.items():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, timeout=VERSION_TIMEOUT_S, check=True)
            found[name] = done.stdout.decode("utf-8", "replace").strip().split("\n")[0][:200]
    return found
