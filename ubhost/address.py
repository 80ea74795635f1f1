"""Network addresses in configurations. Pure, so that plans may know configurations."""

from ubhost import quantity

LONGEST = 255  # characters of a wrong one that are shown


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``127.0.0.1:9479``, ``[::1]:9479`` or ``:9479`` (no host: any address, of IPv4 and IPv6).

    Raises:
        ValueError: it is none of these.
    """
    host, colon, port = address.rpartition(":")
    number = quantity.number(port)
    if not colon or number is None or number > 65535:
        raise ValueError(f"metrics_address {address[:LONGEST]!r} is not HOST:PORT")
    return host.strip("[]"), number
