"""``ubnode sim``: simulated super-nodes for development and tests."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ubhost.arguments import Parser
from ubhost.errors import InvalidRequest, UbError
from ubsim import daemon, inside, record, supernode
from ubsim.control import OPERATIONS
from ubsim.generate import generate
from ubsim.handles import NodeHandle, SuperNodeHandle, handle
from ubsim.scenario import Wiring

DEFAULT_ROOT = Path("/run/ubsim")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="ubnode sim", description="A simulated super-node: every result of it is simulated.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help_: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help_, description=help_)
        added.add_argument("--root", type=Path, default=DEFAULT_ROOT, metavar="DIR", help=f"default {DEFAULT_ROOT}")
        return added

    up = command("up", "bring a scenario up; return when every node answers")
    up.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="YAML, see ubsim/scenarios/")
    command("down", "take it down, leave nothing behind")
    command("status", "what is up, and in what state").add_argument("--json", action="store_true")
    for name, help_ in (("fail", "let calls of an operation fail"), ("delay", "let calls of an operation take longer")):
        _add_fault(command(name, help_), name)
    _add_node(command("clear", "forget all failures and delays on order"))
    log = command("log", "what was asked of a node, and how it ended")
    _add_node(log)
    log.add_argument("--json", action="store_true")
    inside_ = command("exec", "run a program on a node, as if the node were this machine: for tools without UB_ROOT")
    _add_node(inside_)
    inside_.add_argument("--netns", metavar="PATH", help="as a process of a pod: the pod's network namespace")
    inside_.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- PROGRAM …")
    _add_happenings(command)
    made = commands.add_parser("generate", help="print a scenario of a given size")
    made.add_argument("--nodes", type=int, required=True, metavar="N", help="1 to 1024")
    made.add_argument("--devices", type=int, default=2, metavar="M", help="URMA devices of a node, default 2")
    made.add_argument("--wiring", choices=[wiring.value for wiring in Wiring], default="auto")
    made.add_argument("--super-node-id", type=int, default=1, metavar="ID")
    return top


def _add_node(command: argparse.ArgumentParser) -> None:
    command.add_argument("--node", metavar="NODE", help="default: that of UB_ROOT, or the only one")


def _add_fault(command: argparse.ArgumentParser, name: str) -> None:
    command.add_argument("--op", required=True, choices=sorted(OPERATIONS), metavar="OPERATION", dest="operation")
    command.add_argument("--device", default="", metavar="NAME", help="urma_1, udma2 …; default: any")
    command.add_argument("--count", type=int, default=1, metavar="N", help="calls that are hit, default 1")
    command.add_argument("--skip", type=int, default=0, metavar="N", help="calls that pass before")
    if name == "fail":
        command.add_argument("--errno", required=True, metavar="NAME", help="such as EPERM")
        command.add_argument("--when", choices=["before", "after"], default="before", help="the work is done")
    else:
        command.add_argument("--seconds", type=float, required=True, metavar="S", dest="delay_s")
    _add_node(command)


def _add_happenings(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    port = command("port", "change the state of a port")
    port.add_argument("port", metavar="NODE/CHIP/DIE/PORT")
    port.add_argument("state", help="DOWN, ACTIVE …")
    link = command("link", "pull or plug the cable of a port, or label it")
    link.add_argument("end", metavar="NODE/CHIP/DIE/PORT")
    link.add_argument("state", nargs="?", choices=["up", "down"])
    link.add_argument("--mbps", type=int, metavar="N", help="limits the netdevs behind it; 0 lifts the limit")
    link.add_argument("--latency-us", type=float, metavar="N", help="a label: this kernel cannot delay packets")
    for name, help_ in (("plug", "a device appears"), ("unplug", "a device is gone")):
        plug = command(name, help_)
        plug.add_argument("node")
        plug.add_argument("device", metavar="urma_N")
    health = command("health", "a device breaks without a port showing it, or recovers")
    health.add_argument("node")
    health.add_argument("device", metavar="urma_N")
    health.add_argument("state", choices=["bad", "ok"])
    eid = command("eid", "the fabric takes an EID back, or gives it again")
    eid.add_argument("node")
    eid.add_argument("device", metavar="KERNEL_DEVICE")
    eid.add_argument("index", type=int, metavar="SLOT")
    eid.add_argument("state", choices=["lose", "restore"])
    ubse = command("ubse", "stop or start UBSE of a node")
    ubse.add_argument("node")
    ubse.add_argument("state", choices=["stop", "start"])
    borrow = command("borrow", "a node borrows memory as a NUMA node")
    borrow.add_argument("node")
    borrow.add_argument("--from", required=True, dest="lender", metavar="NODE")
    borrow.add_argument("--size", required=True, metavar="SIZE", help="such as 4GiB, in steps of 128MiB")
    share = command("share", "a node exports memory, others import it")
    share.add_argument("name")
    share.add_argument("--owner", required=True, metavar="NODE")
    share.add_argument("--to", required=True, nargs="+", dest="importers", metavar="NODE")
    share.add_argument("--size", required=True, metavar="SIZE", help="128MiB to 256GiB, in steps of 4MiB")
    share.add_argument(
        "--cacheable", action="store_true", help="each node has a copy; ownership publishes and refreshes"
    )
    command("unshare", "take shared memory away; refused while it is open").add_argument("name")
    back = command("return", "a node gives borrowed memory back")
    back.add_argument("node")
    back.add_argument("numa", type=int, metavar="NUMA_NODE")


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
        case "status":
            return _status(handle(arguments.root), as_json=arguments.json)
        case "log":
            _print_log(_node(handle(arguments.root), arguments.node), as_json=arguments.json)
        case "exec":
            argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
            if not argv:
                raise InvalidRequest("say what to run: ubnode sim exec -- PROGRAM ARGUMENT …")
            return inside.run(_node(handle(arguments.root), arguments.node), argv, arguments.netns)
        case "generate":
            asked = (arguments.nodes, arguments.devices)
            print(generate(*asked, wiring=Wiring(arguments.wiring), super_node_id=arguments.super_node_id), end="")
        case _:
            _order(handle(arguments.root), arguments)
    return 0


def _order(found: SuperNodeHandle, asked: argparse.Namespace) -> None:
    given = {key: value for key, value in vars(asked).items() if key not in ("command", "root", "node", "state")}
    match asked.command:
        case "fail" | "delay":
            _node(found, asked.node).order("fail", **given)
        case "clear":
            _node(found, asked.node).order("clear")
        case "eid":
            _node(found, asked.node).order("eid", **given, lost=asked.state == "lose")
        case "ubse":
            _node(found, asked.node).order("ubse", up=asked.state == "start")
        case happening:
            found.happen(happening, **_happening(asked, given))


def _happening(asked: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of an order that every node must hear of."""
    match asked.command:
        case "link":
            return {**given, "up": None if asked.state is None else asked.state == "up"}
        case "port":
            return {"port": asked.port, "state": asked.state}
        case "health":
            return {"node": asked.node, "device": asked.device, "healthy": asked.state == "ok"}
        case "borrow":
            return {"borrower": asked.node, "lender": asked.lender, "size": asked.size}
        case "return":
            return {"borrower": asked.node, "numa": asked.numa}
        case "plug" | "unplug":
            return {"node": asked.node, "device": asked.device}
        case _:
            return given


def _node(found: SuperNodeHandle, name: str | None, environ: Mapping[str, str] = os.environ) -> NodeHandle:
    """Return the node that is meant: by name, by ``UB_ROOT``, or because there is no other."""
    if name is None:
        root = Path(environ.get("UB_ROOT") or "/").absolute()
        name = next((node.name for node in found.nodes.values() if node.root == root), None)
    if name is None and len(found.nodes) == 1:
        name = next(iter(found.nodes))
    if name is None or name not in found.nodes:
        raise InvalidRequest(f"say which node with --node: {', '.join(list(found.nodes)[:8])}")
    return found[name]


def _welcome(running: record.Record, folder: Path) -> str:
    lines = [f"super-node {running.name} is up: {len(running.nodes)} simulated nodes"]
    for node in running.nodes[:8]:
        netns = running.namespaces.get(node)
        enter = f"  (in a namespace of its own: nsenter --net={netns} …)" if netns else ""
        lines.append(f"  UB_ROOT={record.root_of(folder.absolute(), node)}{enter}")
    if len(running.nodes) > 8:
        lines.append(f"  … and {len(running.nodes) - 8} more")
    lines.append(f"try: UB_ROOT={record.root_of(folder.absolute(), running.nodes[0])} ubnode show")
    return "\n".join(lines)


def _status(found: SuperNodeHandle, *, as_json: bool) -> int:
    """Print the state of every node; 1 if one does not answer."""
    nodes = {name: _node_status(node) for name, node in found.nodes.items()}
    is_whole = all(node["up"] for node in nodes.values())
    running = supernode.required(found.folder)
    if as_json:
        json.dump(
            {"name": running.name, "level": "stand-in", "bridge": running.bridge, "nodes": nodes}, sys.stdout, indent=1
        )
        print()
        return 0 if is_whole else 1
    print(f"super-node {running.name} in {found.folder}, bridge {running.bridge}")
    counted = f"{'DEVICES':>7} {'HEALTHY':>7} {'HELD':>5} {'EXPOSED':>8} {'FAULTS':>7}"
    print(f"{'NODE':<16} {'STATE':<6} {'SHARING':<10} {counted}")
    for name, node in nodes.items():
        if not node["up"]:
            print(f"{name:<16} {'down':<6} {node['error']}")
            continue
        devices = node["devices"]
        healthy, held, exposed = (sum(bool(d[key]) for d in devices) for key in ("healthy", "held", "exposed"))
        counts = f"{len(devices):>7} {healthy:>7} {held:>5} {exposed:>8} {len(node['faults']):>7}"
        print(f"{name:<16} {'up':<6} {node['sharing']:<10} {counts}")
    return 0 if is_whole else 1


def _node_status(node: NodeHandle) -> dict[str, Any]:
    try:
        return {"up": True, "root": str(node.root), **node.status()}
    except UbError as error:
        return {"up": False, "root": str(node.root), "error": str(error)}


def _print_log(node: NodeHandle, *, as_json: bool) -> None:
    for event in node.log():
        if as_json:
            print(json.dumps({"node": node.name, **event}))
            continue
        clock = time.strftime("%H:%M:%S", time.localtime(event["time"])) + f"{event['time'] % 1:.3f}"[1:]
        print(
            f"{clock}  {event['operation']:<18} {event['device']:<14} {event['outcome']:<16} {event['detail']}".rstrip()
        )
