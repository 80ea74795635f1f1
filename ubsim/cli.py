"""``ubnode sim``: simulated super-nodes for development and tests."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ubhost.errors import UbError
from ubsim import control, daemon, record, supernode

DEFAULT_ROOT = Path("/run/ubsim")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ubnode sim", description="A simulated super-node: every result of it is simulated."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="bring a scenario up; return when every node answers")
    up.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="YAML, see ubsim/scenarios/")
    commands.add_parser("down", help="take it down, leave nothing behind")
    status = commands.add_parser("status", help="what is up, and in what state")
    status.add_argument("--json", action="store_true")
    for command in commands.choices.values():
        command.add_argument("--root", type=Path, default=DEFAULT_ROOT, metavar="DIR", help=f"default {DEFAULT_ROOT}")
    return top


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Raises:
        UbError: it failed; ``ubnode`` prints it in one line.
    """
    if argv and argv[0] == "daemon":  # what `up` starts, not for people
        return daemon.main(argv[1:])
    arguments = parser().parse_args(argv)
    match arguments.command:
        case "up":
            print(_welcome(supernode.up(arguments.scenario, arguments.root), arguments.root))
        case "down":
            found = supernode.down(arguments.root)
            print(f"super-node {found.name} is down" if found else f"nothing is up in {arguments.root}")
        case _:
            return _status(arguments.root, as_json=arguments.json)
    return 0


def _welcome(running: record.Record, folder: Path) -> str:
    lines = [f"super-node {running.name} is up: {len(running.nodes)} simulated nodes"]
    for node in running.nodes[:8]:
        netns = running.namespaces.get(node)
        enter = f"  (in a namespace of its own: nsenter --net={netns} …)" if netns else ""
        lines.append(f"  UB_ROOT={record.root_of(folder, node)}{enter}")
    if len(running.nodes) > 8:
        lines.append(f"  … and {len(running.nodes) - 8} more")
    lines.append(f"try: UB_ROOT={record.root_of(folder, running.nodes[0])} ubnode show")
    return "\n".join(lines)


def _status(folder: Path, *, as_json: bool) -> int:
    """Print the state of every node; 1 if one does not answer."""
    running = supernode.required(folder)
    nodes = {name: _node_status(folder, name) for name in running.nodes}
    is_whole = all(node["up"] for node in nodes.values())
    if as_json:
        json.dump(
            {"name": running.name, "level": "stand-in", "bridge": running.bridge, "nodes": nodes}, sys.stdout, indent=1
        )
        print()
        return 0 if is_whole else 1
    print(f"super-node {running.name} in {folder}, bridge {running.bridge}")
    print(f"{'NODE':<16} {'STATE':<6} {'SHARING':<10} {'DEVICES':>7} {'HELD':>5} {'EXPOSED':>8} {'FAULTS':>7}")
    for name, node in nodes.items():
        if not node["up"]:
            print(f"{name:<16} {'down':<6} {node['error']}")
            continue
        devices = node["devices"]
        held, exposed = sum(d["held"] for d in devices), sum(d["exposed"] for d in devices)
        counts = f"{len(devices):>7} {held:>5} {exposed:>8} {len(node['faults']):>7}"
        print(f"{name:<16} {'up':<6} {node['sharing']:<10} {counts}")
    return 0 if is_whole else 1


def _node_status(folder: Path, name: str) -> dict[str, Any]:
    root = record.root_of(folder, name)
    try:
        return {"up": True, "root": str(root), **control.order(record.control_socket(folder, name), {"do": "status"})}
    except UbError as error:
        return {"up": False, "root": str(root), "error": str(error)}
