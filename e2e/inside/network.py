"""Networks of the node, as an administrator writes them, and what can be seen of them."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONF_DIR = Path("/etc/cni/net.d")
CONFLIST = CONF_DIR / "10-cluster.conflist"
BRIDGE: dict[str, Any] = {
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": True,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]},
}
PORTMAP: dict[str, Any] = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}


def write_conflist(*plugins: Mapping[str, Any], version: str = "1.0.0") -> None:
    """Make the cluster network a chain of plugins, as one rename so that the runtime never reads half a file."""
    text = json.dumps({"cniVersion": version, "name": "cluster", "plugins": plugins}, indent=1)
    temporary = CONF_DIR / ".10-cluster.new"
    temporary.write_text(text)
    temporary.replace(CONFLIST)


def install_plugin(name: str, target: Path) -> None:
    """Let the runtime find an executable under a name, as an installer does: by a link."""
    link = Path("/opt/cni/bin") / name
    link.unlink(missing_ok=True)
    link.symlink_to(target)


@contextmanager
def network_outside(name: str, *, node: str, client: str) -> Iterator[None]:
    """Join a network namespace to the node by a cable, as a client of its services would be."""
    script = f"""
        ip netns add {name}
        ip link add cable type veth peer name eth0 netns {name}
        ip address add {node} dev cable
        ip link set cable up
        ip -n {name} address add {client} dev eth0
        ip -n {name} link set eth0 up
    """
    subprocess.run(["sh", "-ec", script], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def in_netns(netns: Path, *command: str) -> str:
    """Return what a command of the node prints when it runs in a network namespace."""
    done = subprocess.run(["nsenter", f"--net={netns}", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} in {netns}: {done.stdout}{done.stderr}"
    return done.stdout


def links(netns: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the links of a network namespace (the node's own by default) by name."""
    command = ("ip", "-json", "-details", "link", "show")
    text = in_netns(netns, *command) if netns else subprocess.check_output(command, text=True)
    return {link["ifname"]: link for link in json.loads(text)}


def reserved_addresses() -> dict[str, str]:
    """Return the addresses that host-local has given out, and to which container."""
    folder = Path("/var/lib/cni/networks/cluster")
    files = folder.glob("*.*.*.*") if folder.exists() else ()
    return {path.name: path.read_text().partition("\n")[0].strip() for path in files}
