"""Nodes with a network of their own: namespaces on a bridge, for engines that span machines.

A driver is started with ``nsenter --net``, so its mounts stay where the test sees them.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def network(names: list[str], prefix: str = "10.77.9") -> Iterator[dict[str, str]]:
    """Make a namespace ``ubcsi-<name>`` for each name; yield their addresses."""
    bridge = "ubcsi-br"
    addresses = {name: f"{prefix}.{index + 1}" for index, name in enumerate(names)}
    _ip("link", "add", bridge, "type", "bridge")
    _ip("link", "set", bridge, "up")
    try:
        for index, (name, address) in enumerate(addresses.items()):
            _ip("netns", "add", f"ubcsi-{name}")
            _ip("link", "add", f"ubcsi-v{index}", "type", "veth", "peer", "name", "eth0", "netns", f"ubcsi-{name}")
            _ip("link", "set", f"ubcsi-v{index}", "master", bridge, "up")
            _ip("-n", f"ubcsi-{name}", "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", f"ubcsi-{name}", "link", "set", "eth0", "up")
            _ip("-n", f"ubcsi-{name}", "link", "set", "lo", "up")
        yield addresses
    finally:
        for index, name in enumerate(names):
            _ip("link", "del", f"ubcsi-v{index}", check=False)  # a namespace goes later, with its last process
            _ip("netns", "del", f"ubcsi-{name}", check=False)
        _ip("link", "del", bridge, check=False)


def cut(name: str, index: int, *, off: bool) -> None:
    """Take the cable of node number ``index`` out, or put it back."""
    _ip("link", "set", f"ubcsi-v{index}", "down" if off else "up")


def inside(name: str) -> list[str]:
    """Return the beginning of a command that is to run in the namespace of node ``name``."""
    return ["nsenter", f"--net=/run/netns/ubcsi-{name}"]


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True)
