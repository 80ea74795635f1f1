"""One CNI call as values: environment, configuration, arguments.

Nothing of the host is looked at here. Keys that we do not know are left alone: Multus puts some into every
configuration, and libcni leaves ``capabilities`` there.

Source: containernetworking/cni SPEC.md 1.1.0 and CONVENTIONS.md; design section 4; reference/cni.md 1.2, 1.3, 7.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_ub import spec
from cni_ub.errors import Undecodable
from cni_ub.fields import choice_of, number_of, object_of, size_of, text_of
from cni_ub.results import parse_dns
from ubhost.errors import InvalidRequest
from ubhost.provider import Bandwidth

LOG = logging.getLogger("cni_ub")
MODES = ("auto", "main", "chained")
NETDEVS = ("auto", "none")
ISOLATIONS = ("exclusive", "shared")
SOCKETS = ("off", "auto", "ums", "smc")
_RELEASING = ("DEL", "GC")
_VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")
UNLIMITED_BURST = 0xFFFFFFFF  # what containerd sends as burst when the pod asked for a rate only


@dataclass(frozen=True, slots=True)
class Shape:
    """Rates in bits a second, bursts in bits; 0 is no limit. Ingress is what the pod receives."""

    ingress_rate: int = 0
    ingress_burst: int = 0
    egress_rate: int = 0
    egress_burst: int = 0


@dataclass(frozen=True, slots=True)
class Qos:
    """What the configuration asks of the device. ``None`` means: leave alone."""

    bandwidth: Bandwidth | None = None
    service_level: int | None = None
    priority: int | None = None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class NetConf:
    """The network configuration. ``raw`` is all of it, as the delegates get it."""

    version: str
    name: str
    raw: Mapping[str, Any]
    mode: str = "auto"
    device_id: str = ""
    device_info_file: str = ""
    netdev: str = "auto"
    isolation: str = "exclusive"
    qos: Qos = Qos()
    sockets: str = "off"
    shared_memory: int = 0  # bytes
    ipam_type: str = ""
    dns: Mapping[str, Any] = field(default_factory=dict)
    mtu: int | None = None
    log_level: str = "info"
    log_file: str = ""
    prev_result: object = None

    @property
    def is_shared(self) -> bool:
        return self.isolation == "shared"

    @property
    def is_chained(self) -> bool:
        return self.mode == "chained" or (self.mode == "auto" and self.prev_result is not None)

    @property
    def valid_attachments(self) -> frozenset[tuple[str, str]] | None:
        """The (containerID, ifname) that GC must keep; ``None`` if the runtime did not say.

        It may say so under two names, the specification's and that of an older libcni: what is in either is kept.

        Raises:
            InvalidRequest: one of them is not a list of attachments.
        """
        said = [_attachments(self.raw[key], key) for key in _VALID_ATTACHMENTS if self.raw.get(key) is not None]
        return frozenset().union(*said) if said else None


@dataclass(frozen=True, slots=True)
class Request:
    """One call. ``args`` are the CNI_ARGS, which need not hold anything."""

    command: str
    conf: NetConf
    environ: Mapping[str, str]
    stdin: bytes
    nonce: str
    container: str = ""
    netns: str = ""
    ifname: str = ""
    args: Mapping[str, str] = field(default_factory=dict)

    @property
    def pod(self) -> str:
        namespace, name = self.args.get("K8S_POD_NAMESPACE", ""), self.args.get("K8S_POD_NAME", "")
        return f"{namespace}/{name}" if name else ""

    @property
    def trace(self) -> str:
        """The trace id of the W3C ``traceparent`` that libcni passes on."""
        parts = self.environ.get("TRACEPARENT", "").split("-")
        return parts[1] if len(parts) == 4 else ""


def read_request(environ: Mapping[str, str], nonce: str, stdin: bytes) -> Request:
    """Parse one call.

    Raises:
        spec.Refused: the environment or the configuration is malformed.
        InvalidRequest: a key of ours has a wrong value, and the verb needs it.
    """
    command = spec.check_environment(environ)
    raw = spec.check_config(command, stdin)
    return Request(
        command,
        (read_leniently if command in _RELEASING else read_conf)(raw),
        environ,
        stdin,
        nonce,
        environ.get("CNI_CONTAINERID", ""),
        environ.get("CNI_NETNS", ""),
        environ.get("CNI_IFNAME", ""),
        read_args(environ.get("CNI_ARGS", "")),
    )


def read_args(text: str) -> dict[str, str]:
    """Read ``K=V;K2=V2`` without ever failing: the values are the runtime's, and most are not for us."""
    pairs = (pair.partition("=") for pair in text.split(";") if pair)
    return {key: value for key, _, value in pairs}


def read_conf(raw: Mapping[str, Any]) -> NetConf:
    """Read the keys of design section 4 from a configuration that ``spec.check_config`` passed.

    Raises:
        InvalidRequest: a value has the wrong type, or two keys contradict each other; key and value are named.
    """
    runtime = object_of(raw, "runtimeConfig")
    ipam = object_of(raw, "ipam")
    zero_copy = object_of(raw, "zeroCopy")
    mtu = number_of(raw, "mtu")
    if mtu is not None and not 68 <= mtu <= 65535:
        raise InvalidRequest(f"mtu {mtu} is not between 68 and 65535")
    return NetConf(
        version=str(raw["cniVersion"]),
        name=str(raw["name"]),
        raw=raw,
        mode=choice_of(raw, "mode", MODES),
        device_id=_device_id(raw, runtime),
        device_info_file=text_of(runtime, "CNIDeviceInfoFile"),
        netdev=choice_of(raw, "netdev", NETDEVS),
        isolation=choice_of(raw, "isolation", ISOLATIONS),
        qos=_qos(object_of(raw, "qos"), object_of(runtime, "bandwidth")),
        sockets=choice_of(zero_copy, "sockets", SOCKETS),
        shared_memory=size_of(zero_copy, "sharedMemory"),
        ipam_type=_plugin(ipam),
        dns=_dns(raw),
        mtu=mtu,
        log_level=choice_of(raw, "logLevel", ("info", "debug", "warning", "error")),
        log_file=text_of(raw, "logFile"),
        prev_result=raw.get("prevResult"),
    )


def read_leniently(raw: Mapping[str, Any]) -> NetConf:
    """Read what a release needs: the name, and who gives out addresses. What else is wrong must not hold a device."""
    try:
        return read_conf(raw)
    except InvalidRequest as error:
        LOG.warning("a key of the configuration is wrong; it is released without it", extra={"error": str(error)})
    try:
        ipam_type = _plugin(object_of(raw, "ipam"))
    except InvalidRequest:  # then no ADD can have used it; the record of an attachment knows another one
        ipam_type = ""
    return NetConf(
        version=str(raw["cniVersion"]),
        name=str(raw["name"]),
        raw=raw,
        ipam_type=ipam_type,
        prev_result=raw.get("prevResult"),
    )


def _dns(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return parse_dns(raw.get("dns"), "dns")
    except Undecodable as error:
        raise InvalidRequest(str(error)) from error


def _plugin(ipam: Mapping[str, Any]) -> str:
    """Return the name of the IPAM plugin, "" for none: a file name, because it is looked for in CNI_PATH."""
    name = text_of(ipam, "type")
    if "type" in ipam and ipam["type"] is not None and (not name or name in (".", "..") or {"/", "\0"} & set(name)):
        raise InvalidRequest(f"ipam.type {name!r} is not the name of a plugin")
    return name


def _device_id(raw: Mapping[str, Any], runtime: Mapping[str, Any]) -> str:
    """runtimeConfig.deviceID, then deviceID, then pciBusID. The first two are both the runtime's: they must agree."""
    explicit, injected = text_of(runtime, "deviceID"), text_of(raw, "deviceID")
    if explicit and injected and explicit != injected:
        raise InvalidRequest(f"runtimeConfig.deviceID is {explicit!r} and deviceID is {injected!r}: which one?")
    return explicit or injected or text_of(raw, "pciBusID")


def _qos(qos: Mapping[str, Any], bandwidth: Mapping[str, Any]) -> Qos:
    low, high = number_of(qos, "minMbps"), number_of(qos, "maxMbps")
    level, priority = number_of(qos, "serviceLevel"), number_of(qos, "priority")
    if low and low > (high or 0):
        raise InvalidRequest(f"qos.minMbps {low} needs a qos.maxMbps that is not below it; it is {high}")
    for key, value in (("serviceLevel", level), ("priority", priority)):
        if value is not None and not 0 <= value <= 15:
            raise InvalidRequest(f"qos.{key} {value} is not between 0 and 15")
    limit = Bandwidth(low or 0, high or 0) if low or high else None
    # containerd writes IngressRate: its values have no names for JSON, and decoders written in Go take any case.
    given = {key[:1].lower() + key[1:]: value for key, value in bandwidth.items()}
    keys = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
    rates = {key: number_of(given, key, most=(1 << 64) - 1) or 0 for key in keys}
    for key, value in rates.items():
        if key.endswith("Rate") and 0 < value < 8:
            raise InvalidRequest(f"runtimeConfig.bandwidth.{key} {value} is below 8 bits a second, the least there is")
    shape = Shape(*rates.values()) if rates["ingressRate"] or rates["egressRate"] else None
    return Qos(limit, level, priority, shape)


def _attachments(entries: object, key: str) -> frozenset[tuple[str, str]]:
    """Read the list of what GC must keep. What is misread here is a living attachment released: nothing is guessed."""
    if not isinstance(entries, list):
        raise InvalidRequest(f"{key} is {entries!r}, expected a list of attachments")
    return frozenset(_attachment(entry, key) for entry in entries)


def _attachment(entry: object, key: str) -> tuple[str, str]:
    if isinstance(entry, dict):
        container, ifname = entry.get("containerID"), entry.get("ifname")
        if isinstance(container, str) and isinstance(ifname, str) and container and ifname:
            return container, ifname
    raise InvalidRequest(f"{key} holds {entry!r}, expected an object with containerID and ifname, both text")
