"""What people write in scenarios and orders: sizes, lists of CPUs, ports. Pure."""

import re

from ubhost.errors import InvalidRequest
from ubsim.scenario import PortId

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size_of(text: str) -> int:
    """Return the bytes that ``text`` means: ``64GiB``, ``512MiB``, ``4096``."""
    match = re.fullmatch(r"(\d+) ?(KiB|MiB|GiB|TiB|)", text.strip())
    if not match:
        raise InvalidRequest(f"{text!r} is not a size, such as 64GiB")
    return int(match[1]) * UNITS[match[2]]


def cpus_of(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel CPU list: ``0-3,8``."""
    cpus: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]) or int(match[2] or 0) > 8191:
            raise InvalidRequest(f"{text!r} is not a list of CPUs, such as 0-3,8")
        cpus += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(cpus)


def port_of(text: str) -> PortId:
    """Read NODE/CHIP/DIE/PORT."""
    match = re.fullmatch(r"([^/]+)/(\d+)/(\d+)/(\d+)", text)
    if not match:
        raise InvalidRequest(f"{text!r} is not a port, such as node0/0/1/3 (NODE/CHIP/DIE/PORT)")
    return PortId(match[1], int(match[2]), int(match[3]), int(match[4]))
