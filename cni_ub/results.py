"""CNI results of every specification version, and the way from one to another. Pure.

Inside, a result has the shape of 1.1.0. Its entries stay the JSON objects they came as, so that what an earlier
plugin of a chain said passes through untouched, keys that we do not know included.

Source: containernetworking/cni SPEC.md 0.1.0 to 1.1.0, "Result"; reference/cni.md section 1.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface
from typing import Any

from cni_ub.errors import NotExpressible, Undecodable
from cni_ub.spec import VERSIONS

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What one or several plugins made. ``ips[].interface`` is an index into ``interfaces``."""

    interfaces: tuple[Json, ...] = ()
    ips: tuple[Json, ...] = ()
    routes: tuple[Json, ...] = ()
    dns: Json = field(default_factory=dict)

    def with_interface(self, interface: Json, ips: tuple[Json, ...], routes: tuple[Json, ...], dns: Json) -> "Result":
        """Add an interface at the end with its addresses; what was there keeps its place. Our DNS fills a gap only."""
        index = len(self.interfaces)
        return replace(
            self,
            interfaces=(*self.interfaces, interface),
            ips=(*self.ips, *({**ip, "interface": index} for ip in ips)),
            routes=(*self.routes, *routes),
            dns=self.dns or dns,
        )


def parse(document: object, version: str, what: str) -> Result:
    """Read a result. It says its own version; before 1.0.0 it may not, then it is of ``version``.

    Raises:
        Undecodable: it is not a result; ``what`` and the place are named.
    """
    if not isinstance(document, dict):
        raise Undecodable(f"{what} is not an object")
    own = next((document[key] for key in document if key.lower() == "cniversion"), None) or version
    if own not in VERSIONS:
        raise Undecodable(f"{what} has the unknown cniVersion {own!r}")
    dns = {} if document.get("dns") is None else document["dns"]
    if not isinstance(dns, dict):
        raise Undecodable(f"{what}.dns is not an object")
    if own in ("0.1.0", "0.2.0"):
        return _parse_flat(document, dns, what)
    interfaces = _objects(document, "interfaces", what)
    ips = tuple({key: ip[key] for key in ip if key != "version"} for ip in _objects(document, "ips", what))
    for at, ip in enumerate(ips):
        _check_address(ip.get("address"), f"{what}.ips[{at}].address")
        if not isinstance(ip.get("interface", 0), int):
            raise Undecodable(f"{what}.ips[{at}].interface is not a number")
    routes = _objects(document, "routes", what)
    for at, route in enumerate(routes):
        _check_address(route.get("dst"), f"{what}.routes[{at}].dst")
    return Result(interfaces, ips, routes, dns)


def express(result: Result, version: str) -> dict[str, Any]:
    """Return ``result`` as a document of ``version``.

    Raises:
        NotExpressible: before 0.3.0 a result must have an address.
    """
    if version in ("0.1.0", "0.2.0"):
        return _express_flat(result, version)
    document: dict[str, Any] = {"cniVersion": version}
    if version in ("0.3.0", "0.3.1", "0.4.0"):
        known = ("name", "mac", "sandbox")
        interfaces = [{key: entry[key] for key in known if key in entry} for entry in result.interfaces]
        ips = [{"version": str(_family(ip["address"])), **ip} for ip in result.ips]
        document |= _present(interfaces=interfaces, ips=ips, routes=list(result.routes))
        return {**document, "dns": dict(result.dns)}
    return document | _present(
        interfaces=list(result.interfaces), ips=list(result.ips), routes=list(result.routes), dns=dict(result.dns)
    )


def refuse_inexpressible(version: str, *, has_address: bool) -> None:
    """Refuse before anything changes what could not be printed at the end.

    Raises:
        NotExpressible: see ``express``.
    """
    if version in ("0.1.0", "0.2.0") and not has_address:
        raise NotExpressible(f"cniVersion {version} has no result without an IP address: configure ipam, or use 0.3.1")


def _present(**lists: Any) -> dict[str, Any]:
    return {key: value for key, value in lists.items() if value}


def _objects(document: Json, key: str, what: str) -> tuple[dict[str, Any], ...]:
    entries = [] if document.get(key) is None else document[key]
    if not isinstance(entries, list):
        raise Undecodable(f"{what}.{key} is not a list")
    for at, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise Undecodable(f"{what}.{key}[{at}] is {entry!r}, not an object")
    return tuple(entries)


def _check_address(text: object, where: str) -> None:
    try:
        ip_interface(text if isinstance(text, str) and "/" in text else "")
    except ValueError:
        raise Undecodable(f"{where} is {text!r}, not an address with a prefix length") from None


def _family(address: str) -> int:
    return ip_interface(address).version


def _parse_flat(document: Json, dns: Json, what: str) -> Result:
    ips: list[Json] = []
    routes: list[Json] = []
    for key in ("ip4", "ip6"):
        config = document.get(key)
        if config is None:
            continue
        if not isinstance(config, dict):
            raise Undecodable(f"{what}.{key} is not an object")
        _check_address(config.get("ip"), f"{what}.{key}.ip")
        ips.append({"address": config["ip"], **_present(gateway=config.get("gateway"))})
        for at, route in enumerate(_objects(config, "routes", f"{what}.{key}")):
            _check_address(route.get("dst"), f"{what}.{key}.routes[{at}].dst")
            routes.append({"dst": route["dst"], **_present(gw=route.get("gw"))})
    return Result(ips=tuple(ips), routes=tuple(routes), dns=dns)


def _express_flat(result: Result, version: str) -> dict[str, Any]:
    document: dict[str, Any] = {"cniVersion": version}
    for family in (4, 6):
        ip = next((ip for ip in result.ips if _family(ip["address"]) == family), None)
        if ip is None:
            continue
        routes = [
            {"dst": route["dst"], **_present(gw=route.get("gw"))}
            for route in result.routes
            if _family(route["dst"]) == family
        ]
        document[f"ip{family}"] = {"ip": ip["address"], **_present(gateway=ip.get("gateway"), routes=routes)}
    if len(document) == 1:
        raise NotExpressible(f"cannot convert to cniVersion {version}: no valid IP addresses")
    return {**document, "dns": dict(result.dns)}


def gateway_of(ip: Json) -> str | None:
    """Return the gateway of an address.

    Raises:
        Undecodable: it is not an address.
    """
    text = ip.get("gateway")
    if not text:
        return None
    try:
        return str(ip_address(text))
    except ValueError:
        raise Undecodable(f"gateway {text!r} is not an address") from None
