"""What a CNI result says of addresses and routes, as the kernel takes it. Pure."""

from ipaddress import ip_address, ip_interface, ip_network

from cni_ub.results import Result
from ubhost.model import Interface, Route


def addresses_of(result: Result) -> tuple[Interface, ...]:
    return tuple(ip_interface(ip["address"]) for ip in result.ips)


def routes_of(result: Result) -> tuple[Route, ...]:
    """Return the routes as the kernel takes them: without a gateway of its own, a route uses that of its family."""
    gateways = {ip_interface(ip["address"]).version: ip.get("gateway") for ip in reversed(result.ips)}
    routes = []
    for entry in result.routes:
        network = ip_network(entry["dst"], strict=False)
        gateway = entry.get("gw") or gateways.get(network.version)
        metrics = {key: entry.get(key) for key in ("mtu", "advmss", "priority", "table", "scope")}
        routes.append(Route(network, str(ip_address(gateway)) if gateway else None, **metrics))
    return tuple(routes)
