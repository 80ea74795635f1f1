"""CNI results of every specification version, and the way from one to another. Pure.

Inside, a result has the shape of 1.1.0. Its entries stay the JSON objects they came as, so that what an earlier
plugin of a chain said passes through untouched, keys that we do not know included.

Source: containernetworking/cni SPEC.md 0.1.0 to 1.1.0, "Result"; reference/cni.md section 1.6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface
from types import MappingProxyType
from typing import Any

from cni_ub.errors import NotExpressible, Undecodable
from cni_ub.spec import VERSIONS

Json = Mapping[str, Any]
_INTERFACE_TEXTS = ("name", "mac", "sandbox", "socketPath", "pciID")
_U8, _U32 = (1 << 8) - 1, (1 << 32) - 1
_ROUTE_NUMBERS = {"mtu": _U32, "advmss": _U32, "priority": _U32, "table": _U32, "scope": _U8}


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
    dns = parse_dns(document.get("dns"), f"{what}.dns")
    if own in ("0.1.0", "0.2.0"):
        return _parse_flat(document, dns, what)
    interfaces = _objects(document, "interfaces", what)
    for at, interface in enumerate(interfaces):
        _check_fields(interface, f"{what}.interfaces[{at}]", text=_INTERFACE_TEXTS, numbers={"mtu": _U32})
    ips = tuple({key: ip[key] for key in ip if key != "version"} for ip in _objects(document, "ips", what))
    for at, ip in enumerate(ips):
        _check_ip(ip, f"{what}.ips[{at}]")
    return Result(interfaces, ips, _routes(document, what), dns)


def parse_dns(document: object, what: str) -> Json:
    """Read the DNS part of a result or of a configuration; ``None`` says nothing.

    Raises:
        Undecodable: it is none.
    """
    dns = {} if document is None else document
    if not isinstance(dns, dict):
        raise Undecodable(f"{what} is not an object")
    _check_fields(dns, what, text=("domain",))
    for key in ("nameservers", "search", "options"):
        words = dns.get(key)
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise Undecodable(f"{what}.{key} is {words!r}, not a list of texts")
    return dns


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


def _routes(document: Json, what: str) -> tuple[dict[str, Any], ...]:
    routes = _objects(document, "routes", what)
    for at, route in enumerate(routes):
        where = f"{what}.routes[{at}]"
        _check_address(route.get("dst"), f"{where}.dst")
        _check_host(route.get("gw"), f"{where}.gw")
        _check_fields(route, where, numbers=_ROUTE_NUMBERS)
    return routes


def _check_ip(ip: Json, where: str) -> None:
    _check_address(ip.get("address"), f"{where}.address")
    _check_host(ip.get("gateway"), f"{where}.gateway")
    _check_fields(ip, where, numbers={"interface": _U32})


def _check_fields(
    entry: Json, where: str, *, text: tuple[str, ...] = (), numbers: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Judge the fields that are there; ``numbers`` are from 0 to what is said."""
    for key in text:
        if not isinstance(entry.get(key), str | None):
            raise Undecodable(f"{where}.{key} is {entry[key]!r}, not a text")
    for key, most in numbers.items():
        value = entry.get(key)
        if value is not None and not (type(value) is int and 0 <= value <= most):
            raise Undecodable(f"{where}.{key} is {value!r}, not a whole number from 0 to {most}")


def _check_host(text: object, where: str) -> None:
    """A gateway; there need be none. An address with a scope ("%eth0") is of one host only."""
    try:
        if text not in (None, ""):
            ip_address(text if isinstance(text, str) and "%" not in text else "")
    except ValueError:
        raise Undecodable(f"{where} is {text!r}, not an address") from None


def _check_address(text: object, where: str) -> None:
    try:
        ip_interface(text if isinstance(text, str) and "/" in text and "%" not in text else "")
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
        _check_ip({"address": config.get("ip"), "gateway": config.get("gateway")}, f"{what}.{key}")
        ips.append({"address": config["ip"], **_present(gateway=config.get("gateway"))})
        routes += [{"dst": route["dst"], **_present(gw=route.get("gw"))} for route in _routes(config, f"{what}.{key}")]
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
