"""Makes docs/reference.md from the code: ``PYTHONPATH=.:proto python -m docs.reference > docs/reference.md``.

Names, types, defaults, choices, codes and metrics are taken from the code; the sentences are here, or beside a field in
the code. A test makes it again and compares, and fails where a key has no sentence.
"""

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import cni_ub.errors
import csi_ub.config
import csi_ub.errors
import csi_ub.metrics
import csi_ub.parameters
import nri_qos.config
import nri_qos.metrics
import nri_qos.model
from cni_ub import protocol
from cni_ub.agent.config import LEVELS, PROVIDERS, AgentConfig
from cni_ub.agent.inventory import Snapshot
from cni_ub.agent.metrics import Calls, Exposition
from cni_ub.agent.nodefeatures import labels
from csi_ub.engines import Engines
from csi_ub.model import Consistency, VolumeType, Writers
from csi_ub.models.switching import SwitchPolicy
from csi_ub.volumes import Volumes

AGENT: Mapping[str, str] = {
    "resources[].name": "extended resource that kubelet offers",
    "resources[].isolation": "whether one pod or several can have a device at a time",
    "resources[].devices": "names of devices, with `*` and `?`; a device belongs to the first resource that names it",
    "resources[].replicas": "pods at a time on one shared device, at most 1024",
    "kubelet.folder": "kubelet's folder, below `UB_ROOT`",
    "kubelet.registration": "how kubelet learns of a resource; `auto` is the plugin watcher, then a call",
    "kubelet.is_used": "`false` on a node without kubelet: no device plugin, no PodResources",
    "conf.mode": "how `ub-cni` gets into the CNI configuration; see docs/device-plugin.md",
    "conf.folder": "the runtime's CNI configuration folder, below `UB_ROOT`",
    "conf.network": "keys of `ub-cni`'s own configuration, as below",
    "conf.nad_name": "name of the NetworkAttachmentDefinition that `ubnode conf --mode nad` prints",
    "conf.nad_namespace": "its namespace",
    "metrics_address": "HOST:PORT of `/metrics`, `/healthz`, `/readyz`; off if not given",
    "node_features": "write the file of Node Feature Discovery, where that is installed",
    "workers": "CNI calls answered at a time, 1 to 256",
    "reconcile_period": "seconds between looks for attachments whose pod is gone, 0 to 86400; 0 is at start only",
    "log_level": f"{', '.join(LEVELS)}",
    "provider": f"{', '.join(PROVIDERS)}: what commands the devices",
}
CSI: Mapping[str, str] = {
    "pools[].name": "name that StorageClasses use, a DNS label",
    "pools[].path": "absolute path of a directory that exists",
    "pools[].type": "what the space lies on",
    "log_level": "",
    "peers[].node": "another node of the super-node, by its `--node-id`",
    "peers[].address": "where its data services listen",
    "supernode": "name of the super-node, the value of the topology key",
}
NRI: Mapping[str, str] = {
    "log_level": "",
    "on_exit": "leave cgroups as they are, or put back what was there",
    "failure": "what happens to a container about which nri-qos is in doubt: it runs, or its creation fails",
    "selectors[].qos": "class of the pods selected",
    "selectors[].labels": "labels that a pod must have, all of them",
    "selectors[].namespaces": "namespaces that it must be in, any if empty",
    "remote_budget.pod": "of one pod, such as `4Gi`",
    "remote_budget.namespace": "of all offline pods of a namespace",
    "remote_distance": "NUMA distance from which a node without CPUs counts as borrowed memory",
}
CNI: Mapping[str, str] = {
    "mode": "`main`: own network; `chained`: beside the one in prevResult; `auto`: chained if there is a prevResult",
    "deviceID": "the device, by UB or kernel name or address; also in `runtimeConfig`, which must agree",
    "pciBusID": "the same under the name that older Multus uses",
    "runtimeConfig": "what the runtime passes for declared capabilities",
    "CNIDeviceInfoFile": "`runtimeConfig`: file in which the device plugin describes the device",
    "bandwidth": "`runtimeConfig`: rates in bits a second, bursts in bits",
    "ingressRate": "`bandwidth`: what the pod receives", "ingressBurst": "`bandwidth`: with it",
    "egressRate": "`bandwidth`: what the pod sends", "egressBurst": "`bandwidth`: with it",
    "netdev": "whether the IP netdev of the device moves into the pod too",
    "isolation": "`exclusive` needs a host that shares no device (else code 103); `shared`: many pods, each with EIDs",
    "qos": "what the device itself is told",
    "minMbps": "`qos`: guaranteed, a multiple of 8", "maxMbps": "`qos`: at most, a multiple of 8",
    "serviceLevel": "`qos`: 0 to 15", "priority": "`qos`: jetty priority that the service level is for, 0 to 15",
    "zeroCopy": "paths without copies, for programs that know nothing of them",
    "sockets": "`zeroCopy`: for TCP programs",
    "sharedMemory": "`zeroCopy`: size of the segment that pods of one host share",
    "ipam": "any IPAM plugin; without one the address is the EID, where the provider has such a netdev",
    "type": "`ipam`: its executable",
    "dns": "passed on", "mtu": "of the netdev, 68 to 65535", "logLevel": "", "logFile": "instead of stderr",
}  # fmt: skip
STORAGE: Mapping[str, str] = {
    "type": "what the volume is",
    "consistency": "what other nodes see and when; docs/csi.md has the promises; mutable while no node uses the volume",
    "replicas": "size of the replica group",
    "pool": "pool of the node that gives the space; the first if not given",
    "engine": "which engine serves it, where there are several; chosen if not given",
    "switchPolicy": "model: a node goes over when every node has the whole version, or when it has it itself",
    "writers": "eventual files: every node writes, or the owner's alone, and the others mount it read-only",
    "maxStaleness": "eventual: the promised bound, such as `5s`; mutable",
}
ENUMS: Mapping[str, type[Enum]] = {
    "type": VolumeType,
    "consistency": Consistency,
    "switchPolicy": SwitchPolicy,
    "writers": Writers,
}
FILES = (
    ("`/run/ub-node/`", "what dies with the kernel state it describes: sockets, locks, allocations"),
    ("`/run/ub-node/agent.sock`", "CNI calls, root only"),
    ("`/var/lib/ub-node/attachments/`", "the ledger of ub-cni: one file for each attachment"),
    ("`/var/lib/ub-node/`", "what must survive a reboot"),
    ("`/var/run/cdi/unifiedbus.com-urma.json`", "CDI"),
    ("`/var/run/k8s.cni.cncf.io/devinfo/dp/`", "DeviceInfo files, while the agent runs"),
    ("`/etc/cni/net.d/00-ub-cni.conflist`", "with `conf.mode: conflist`"),
    ("`/etc/kubernetes/node-feature-discovery/features.d/ub-node`", "labels"),
    ("`/var/lib/kubelet/plugins_registry/<resource>.sock`", "device plugin"),
)


def main() -> int:
    sys.stdout.write(document())
    return 0


def document() -> str:
    """Return the whole page."""
    return "\n".join(line.rstrip() for line in _lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Made from the code by `docs/reference.py`; do not edit. Configuration files are YAML, strict: unknown keys"
    yield "and wrong values are all named at once, with exit code 2. A key is optional unless it says *required*."
    yield from _section("ub-agent --config FILE", _keys(AgentConfig, AGENT))
    yield from _section("ub-csi --config FILE", _keys(csi_ub.config.Config, CSI))
    yield from _section("nri-qos --config FILE", _keys(nri_qos.config.Config, NRI))
    yield from _section("Network configuration of ub-cni", _cni(), ("key", "values, default first", ""))
    yield from _section("CNI error codes", _cni_codes(), ("code", "reason", ""))
    yield from _section("StorageClass parameters of ub-csi", _storage(), ("key", "values, default first", ""))
    yield from _section("gRPC status codes of ub-csi", _grpc_codes(), ("status", "reason", ""))
    yield from _section("Annotations and labels that are read", _annotations(), ("key", "values", ""))
    yield from _section("Labels that are published", _labels(), ("label", "by", ""))
    yield from _section("Metrics of ub-agent", _agent_metrics(), ("metric", "labels", ""))
    yield from _section("Metrics of ub-csi", _csi_metrics(), ("metric", "labels", ""))
    yield from _section("Metrics of nri-qos", _nri_metrics(), ("metric", "labels", ""))
    yield from ("", "Histograms and per-pod metrics of nri-qos are in docs/qos.md.")
    yield from _section("Files and sockets", FILES, ("path", ""))
    yield from ("", "All are below `UB_ROOT` (default `/`), which every executable takes from its environment.")


def _section(title: str, rows: Any, head: Sequence[str] = ("key", "type", "default", "")) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}")
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|').replace('``', '`') for cell in row)} |"


def _keys(kind: type, sentences: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    for path, type_, default, beside in walk(kind):
        yield f"`{path}`", type_, default, sentences.get(path) or beside


def walk(kind: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield path, type, default and the sentence in the code of every key of a configuration, deeply."""
    hints, beside = typing.get_type_hints(kind), beside_fields(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        inner = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
        if inner:
            many = "[]" if typing.get_origin(hint) in (tuple, list) else ""
            yield from walk(inner[0], f"{prefix}{field.name}{many}.")
        else:
            yield f"{prefix}{field.name}", _type(hint), _default(field), beside.get(field.name, "")


def beside_fields(kind: type) -> dict[str, str]:
    """Return the text that stands under each field of a class."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = str(ast.literal_eval(text.value)).replace("\n    ", " ")
    return found


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return ", ".join(str(member.value) for member in hint)
    if origin is typing.Literal:
        return ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return "map"
    return {str: "text", int: "whole number", float: "number", bool: "true, false"}.get(hint, str(hint))


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "*required*"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"`{_plain(value)}`" if value not in (None, (), [], {}) else ""


def _plain(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{_plain(key)}: {_plain(item)}" for key, item in value.items()) if len(str(value)) < 99 else "…"
        )
    return ", ".join(map(_plain, value)) if isinstance(value, tuple | list) else str(value)


def cni_keys() -> list[str]:
    """Return every key that the parser of network configurations looks at, in its order."""
    found: list[str] = []
    for node in ast.walk(ast.parse(inspect.getsource(protocol))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            key = node.args[1]
            if (node.func.id.endswith("_of") or node.func.id == "parse_dns") and isinstance(key, ast.Constant):
                found.append(str(key.value))
    return [*(key for key in CNI if key in found), *(key for key in dict.fromkeys(found) if key not in CNI)]


def _cni() -> Iterator[tuple[str, str, str]]:
    choices = {
        "mode": protocol.MODES, "netdev": protocol.NETDEVS, "isolation": protocol.ISOLATIONS,
        "sockets": protocol.SOCKETS, "logLevel": ("info", "debug", "warning", "error"),
    }  # fmt: skip
    for key in cni_keys():
        yield f"`{key}`", ", ".join(choices.get(key, ())), CNI.get(key, "")


def _cni_codes() -> Iterator[tuple[int, str, str]]:
    for reason, code in sorted(cni_ub.errors.CODES.items(), key=lambda item: item[1]):
        yield code, reason.__name__, _first_line(reason)


def _grpc_codes() -> Iterator[tuple[str, str, str]]:
    for reason, status in csi_ub.errors.STATUS.items():
        yield status.name, reason.__name__, _first_line(reason)


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _storage() -> Iterator[tuple[str, str, str]]:
    known = csi_ub.parameters._KEYS
    for key in [*(key for key in STORAGE if key in known), *sorted(known - STORAGE.keys())]:
        values = ", ".join(member.value for member in ENUMS[key]) if key in ENUMS else ""
        yield f"`{key}`", values, STORAGE.get(key, "")


def _annotations() -> Iterator[tuple[str, str, str]]:
    classes = ", ".join(c.value for c in nri_qos.model.QosClass if c is not nri_qos.model.QosClass.UNDECLARED)
    yield f"`{nri_qos.model.OWN_KEY}`", classes, "QoS class of a pod"
    yield f"`{nri_qos.model.NUMA_KEY}`", ", ".join(p.value for p in nri_qos.model.NumaPolicy), "NUMA policy of a pod"
    for key, values in nri_qos.config.FOREIGN_KEYS.items():
        yield f"`{key}`", ", ".join(f"{text} → {qos.value}" for text, qos in values.items()), "of another system"


def _labels() -> Iterator[tuple[str, str, str]]:
    from csi_ub.topology import NODE, SUPERNODE

    full = dataclasses.replace(Snapshot(), level="stand-in")
    texts = {
        "unifiedbus.com/super-node": "id of the super-node", "unifiedbus.com/slot": "of the node in it",
        "unifiedbus.com/level": "how real this is: stand-in, soft-device, hardware",
        "unifiedbus.com/devices": "devices that pods can be given", "unifiedbus.com/devices-healthy": "of them healthy",
        "unifiedbus.com/planes": "IO dies, each a network of its own",
        "unifiedbus.com/bandwidth-mbps": "nominal, of the links that are up",
        "unifiedbus.com/numa": "NUMA nodes that have devices, joined by `_`",
    }  # fmt: skip
    for name in [*texts, *(labels(full).keys() - texts.keys())]:
        yield f"`{name}`", "ub-agent, through Node Feature Discovery", texts.get(name, "")
    yield f"`{NODE}`", "kubelet, for ub-csi", "the node"
    yield f"`{SUPERNODE}`", "kubelet, for ub-csi", "the super-node"


def _agent_metrics() -> Iterator[tuple[str, str, str]]:
    yield from map(_family, Exposition(Snapshot, tuple, tuple, Calls()).collect())


def _csi_metrics() -> Iterator[tuple[str, str, str]]:
    no_volumes = csi_ub.metrics.Exposition(Volumes("", (), Engines({})), Path("/nonexistent"))
    for collector in (csi_ub.metrics.Calls(), no_volumes):
        yield from map(_family, collector.collect())


def _family(family: Any) -> tuple[str, str, str]:
    suffix = "_total" if family.type == "counter" else ""
    return f"`{family.name}{suffix}`", ", ".join(family._labelnames), family.documentation


def _nri_metrics() -> Iterator[tuple[str, str, str]]:
    prefix = nri_qos.metrics.PREFIX
    for name, (help_, names) in nri_qos.metrics.COUNTERS.items():
        yield f"`{prefix}{name}_total`", ", ".join(names), help_
    for name, help_ in nri_qos.metrics.GAUGES.items():
        yield f"`{prefix}{name}`", "", help_


def page() -> Path:
    return Path(__file__).with_name("reference.md")


if __name__ == "__main__":
    sys.exit(main())
