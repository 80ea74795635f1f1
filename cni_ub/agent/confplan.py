"""What the node's CNI configuration must look like so that pods get ub-cni beside their own network. Pure.

Three ways, chosen by the administrator:

*conflist*  a copy of the cluster's configuration with ub-cni at its end, under a name that sorts before it
*subdir*    one file in the folder named after the cluster's network; libcni 1.3 and later appends it by itself
*nad*       nothing on the node: a NetworkAttachmentDefinition for Multus, printed for ``kubectl apply``

The cluster's own configuration, the *primary*, is the first file that a runtime would take, leaving out ours and
those of Multus, which only passes on to another one.

Source: design section 6; reference/cni.md sections 1.8, 7.1 and H47; containernetworking/cni SPEC.md 1.1.0, libcni.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from cni_ub.agent.settings import ConfMode, ConfSettings
from ubhost.errors import Conflict, InvalidRequest, NotFound, Unsupported

PLUGIN = "ub-cni"
VERSION = "1.1.0"
MARK = "generatedBy"  # key of our entry: a file of an administrator that holds ub-cni lacks it
MARKED = "ub-agent"
NAMES = ("00-ub-cni.conflist", "0-ub-cni.conflist", "+ub-cni.conflist")  # the first that sorts before the primary
SUBDIR_FILE = "ub-cni.conf"
CAPABILITIES = {"deviceID": True, "CNIDeviceInfoFile": True}
# In a chain that every pod of the node passes, a lack of devices must not make the node's network unready. And a
# bandwidth there is meant for the cluster's own network.
CHAINED: Mapping[str, Any] = {"mode": "chained", "capabilities": CAPABILITIES}
ALONE: Mapping[str, Any] = {"capabilities": {**CAPABILITIES, "bandwidth": True}}
_SUFFIXES = (".conf", ".conflist", ".json")
_META = ("multus", "multus-shim")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the folder as libcni reads it; ``problem`` says why it would not."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def plugins(self) -> list[Mapping[str, Any]]:
        plugins = self.content.get("plugins", [self.content])
        return [plugin for plugin in plugins if isinstance(plugin, dict)] if isinstance(plugins, list) else []

    @property
    def types(self) -> list[str]:
        return [str(plugin.get("type", "")) for plugin in self.plugins]

    @property
    def is_list(self) -> bool:
        return "plugins" in self.content

    @property
    def network(self) -> str:
        return str(self.content.get("name", ""))

    @property
    def is_ours(self) -> bool:
        """Whether we wrote it, or it is in the place of what we wrote and no use to anybody."""
        marked = any(plugin.get("type") == PLUGIN and plugin.get(MARK) == MARKED for plugin in self.plugins)
        return marked or (bool(self.problem) and self.name in (*NAMES, SUBDIR_FILE))


def read(name: str, text: bytes) -> Found:
    """Judge one file of the folder."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Found(name, problem=f"not JSON: {error}")
    if not isinstance(content, dict):
        return Found(name, problem=f"a {type(content).__name__}, not an object")
    found = Found(name, content)
    if name.endswith(".conflist") and not found.is_list:
        return Found(name, content, "a list without plugins")
    if not found.types or not all(found.types):
        return Found(name, content, "a plugin without a type")
    return found


def counts(name: str) -> bool:
    """Whether a runtime looks at a file of this name."""
    return name.endswith(_SUFFIXES)


def primary(files: Iterable[Found]) -> Found:
    """Return the cluster's own configuration.

    Raises:
        NotFound: there is none.
        Conflict: what should be it cannot be read. It may be half-written, so nothing is concluded from it.
    """
    for found in sorted(files, key=lambda found: found.name):
        if found.is_ours or any(type_ in _META for type_ in found.types):
            continue
        if found.problem:
            raise Conflict(f"{found.name} is {found.problem}")
        return found
    raise NotFound("no network is configured on this node yet")


def entry(settings: ConfSettings, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return ub-cni's own part: what is usual, and what the administrator wrote, which wins but for type and mark.

    Raises:
        InvalidRequest: the administrator's part is not for ub-cni.
    """
    if settings.network.get("type", PLUGIN) != PLUGIN:
        raise InvalidRequest(f"conf.network.type is {settings.network['type']!r}, expected {PLUGIN!r}")
    return {"type": PLUGIN, **usual, **settings.network, MARK: MARKED}


def wanted(files: Iterable[Found], settings: ConfSettings) -> dict[str, bytes]:
    """Return the files that must be ours, by path below the folder; every other file of ours must go.

    Raises:
        Conflict: the primary cannot be read now: leave everything as it is.
        Unsupported: it cannot be extended in this way; the message says what could be done.
        InvalidRequest: see ``entry``.
    """
    if settings.mode in (ConfMode.OFF, ConfMode.NAD):
        return {}
    try:
        found = primary(files)
    except NotFound:
        return {}  # what we made for a network that is gone would keep the runtime on it
    if PLUGIN in found.types:
        return {}  # the administrator has seen to it
    if settings.mode is ConfMode.CONFLIST:
        return {_before(found.name): _text(extended(found, settings))}
    return {f"{_folder(found)}/{SUBDIR_FILE}": _text(entry(settings, CHAINED))}


def extended(found: Found, settings: ConfSettings) -> dict[str, Any]:
    """Return the primary with ub-cni at its end: what comes last is undone first."""
    ours = entry(settings, CHAINED)
    if found.is_list:
        return {**found.content, "plugins": [*found.plugins, ours]}
    single = dict(found.content)
    head: dict[str, Any] = {key: single.pop(key) for key in ("cniVersion", "name") if key in single}
    return {**head, "plugins": [single, ours]}


def _before(name: str) -> str:
    for ours in NAMES:
        if ours < name:
            return ours
    raise Unsupported(f"no name of ours sorts before {name}: rename it, or use conf.mode subdir")


def _folder(found: Found) -> str:
    if not found.is_list:
        raise Unsupported(f"{found.name} is one plugin, not a list: libcni adds nothing to it; use conf.mode conflist")
    if str(found.content.get("loadOnlyInlinedPlugins", "")).lower() == "true":
        raise Unsupported(f"{found.name} sets loadOnlyInlinedPlugins: use conf.mode conflist")
    if not _NETWORK.fullmatch(found.network):
        raise Unsupported(f"network name {found.network!r} in {found.name} cannot be a folder: use conf.mode conflist")
    return found.network


def net_attach_def(settings: ConfSettings, resource: str) -> str:
    """Return a NetworkAttachmentDefinition as YAML: Multus asks kubelet for the device of ``resource``."""
    plugin = {key: value for key, value in entry(settings, ALONE).items() if key != MARK}
    config = {"cniVersion": VERSION, "name": settings.nad_name, "plugins": [plugin]}
    definition = {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": settings.nad_name,
            "namespace": settings.nad_namespace,
            "annotations": {"k8s.v1.cni.cncf.io/resourceName": resource},
        },
        "spec": {"config": _Block(json.dumps(config, indent=2) + "\n")},
    }
    text: str = yaml.dump(definition, Dumper=_Dumper, sort_keys=False)
    return text


class _Block(str):
    """Text that YAML shall show line by line."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def _text(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
