"""What a container runtime needs so that it listens for NRI plugins.

- containerd >= 2.0: on by default, nothing to do. 1.7: there, but off; a drop-in turns it on, if the configuration
  imports one. A configuration that imports nothing gets one line, which uninstalling takes out again.
- CRI-O: a drop-in folder is always read.

A runtime that listens already (its socket is there) is left alone.

Source: reference nri.md section 1.1; containerd docs/NRI.md; CRI-O docs/crio.conf.5.md.
"""

import fnmatch
import tomllib
from dataclasses import dataclass
from typing import Any

from ubhost.errors import Conflict

CONTAINERD = "/etc/containerd/config.toml"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/90-ub-node-nri.toml"
CRIO_FOLDER = "/etc/crio"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/90-ub-node-nri.conf"
NRI_PLUGIN = "io.containerd.nri.v1.nri"

IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]  # by ubnode install nri\n'
CONTAINERD_ON = f"""# By ubnode install nri: containerd 1.7 knows NRI, but does not listen for plugins unless told so.
version = 2

[plugins."{NRI_PLUGIN}"]
  disable = false
"""
CRIO_ON = """# By ubnode install nri.
[crio.nri]
enable_nri = true
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The container runtime of a node, as far as its files tell.

    ``containerd`` is the text of its configuration (``None``: no such file), ``crio`` whether it has a folder for its
    configuration, ``listens`` whether the NRI socket is there.
    """

    containerd: str | None = None
    crio: bool = False
    listens: bool = False


@dataclass(frozen=True, slots=True)
class NriSwitch:
    """Files that turn NRI on, and whether containerd's own configuration needs the line ``IMPORTS`` at its head."""

    files: tuple[tuple[str, str], ...] = ()
    imports: bool = False


def nri_switch(runtime: Runtime) -> NriSwitch:
    """Return what turns NRI on.

    Raises:
        Conflict: containerd imports other files than our drop-in, or its configuration cannot be read; the message
            says what to write by hand.
    """
    if runtime.listens:
        return NriSwitch()
    if runtime.crio:
        return NriSwitch(files=((CRIO_DROP_IN, CRIO_ON),))
    if runtime.containerd is None:
        return NriSwitch()
    config = _parse(runtime.containerd)
    version, imports = config.get("version", 1), config.get("imports")
    if not isinstance(version, int) or not isinstance(imports, list | None):
        raise Conflict(f"{CONTAINERD} is none that containerd takes: version is a number, imports is a list")
    if version >= 3 or _is_on(config):
        return NriSwitch()
    drop_in = ((CONTAINERD_DROP_IN, CONTAINERD_ON),)
    if imports is None:
        return NriSwitch(drop_in, imports=True)
    if any(fnmatch.fnmatch(CONTAINERD_DROP_IN, str(pattern)) for pattern in imports):
        return NriSwitch(drop_in)
    raise Conflict(
        f"{CONTAINERD} imports {imports}, which does not take in {CONTAINERD_DROP_IN}: add that to the list, or set "
        f'disable = false in [plugins."{NRI_PLUGIN}"], and try again'
    )


def _parse(text: str) -> dict[str, Any]:
    try:
        text.encode()  # what is not UTF-8 was read as half a surrogate
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Conflict(f"{CONTAINERD} is not TOML: {error}") from error


def _is_on(config: dict[str, Any]) -> bool:
    plugins = config.get("plugins")
    plugin = plugins.get(NRI_PLUGIN) if isinstance(plugins, dict) else None
    return isinstance(plugin, dict) and plugin.get("disable") is False
