"""``ubnode qos``: what pods get on this node, and why."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nri_qos import cpulist, manifests, observe, serve
from nri_qos.config import Config
from nri_qos.model import Container, Decision, Pod
from nri_qos.pools import misfit
from nri_qos.world import World
from ubhost import config, quantity
from ubhost.arguments import Parser
from ubhost.errors import Exhausted, InvalidRequest, NotFound, UbError
from ubhost.roots import Roots
from ubhost.show.table import printable, table


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code. Errors of the domain are the caller's to print."""
    args = _parser().parse_args(argv, argparse.Namespace(json=False))  # before a subcommand, or after it
    if getattr(args, "watch", None) is None:
        print(_told(args))
    else:
        _watch(args)
    return 0


def _told(args: argparse.Namespace) -> str:
    text, content = args.run(args)
    return json.dumps(content, indent=2 if args.watch is None else None) if args.json else str(text)


def _watch(args: argparse.Namespace) -> None:
    """Print it again and again until Ctrl-C; a daemon that is away may come back."""
    clear = "\033[H\033[2J" if sys.stdout.isatty() and not args.json else ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                told = _told(args)
            except UbError as error:
                told = json.dumps({"error": str(error)}) if args.json else str(error)
            print(f"{clear}{told}", flush=True)
            time.sleep(args.watch)


def _parser() -> argparse.ArgumentParser:
    as_json = Parser(add_help=False)
    as_json.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON")
    parser = Parser(
        prog="ubnode qos", parents=[as_json], description="What runs on this node, by class; without COMMAND, now."
    )
    parser.add_argument(
        "--watch", type=_seconds, nargs="?", const=2.0, metavar="SECONDS", help="again and again, every 2 s"
    )
    parser.set_defaults(run=_show)
    commands = parser.add_subparsers(metavar="COMMAND")
    explain = commands.add_parser("explain", parents=[as_json], help="why a pod has what it has")
    explain.add_argument("pod", metavar="POD", help="NAME, or NAMESPACE/NAME")
    explain.set_defaults(run=_explain)
    node = commands.add_parser("node", parents=[as_json], help="who uses the memory of a NUMA node")
    node.add_argument("number", type=_node_number, metavar="N")
    node.add_argument("--users", action="store_true", help="the pods that have memory on it (the default)")
    node.set_defaults(run=_node)
    plan = commands.add_parser(
        "plan",
        parents=[as_json],
        help="what the pods of a manifest would get on this node",
        description="Decide about the pods of Kubernetes manifests as if they were created on this empty node, one "
        "after another. Nothing is changed, and no runtime is needed: kubectl get pod -o yaml | ubnode qos plan -f -",
    )
    plan.add_argument("-f", "--file", required=True, metavar="FILE", help="manifests, YAML; - is stdin")
    plan.add_argument("--config", type=Path, metavar="FILE", help="configuration of nri-qos")
    plan.set_defaults(run=_show_plan)
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= (seconds := float(text)) <= 3600:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not from 0.1 to 3600 seconds")


def _node_number(text: str) -> int:
    number = quantity.number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not the number of a NUMA node")
    return number


Shown = tuple[str, Any]  # for people, and for --json


def _show(_: argparse.Namespace) -> Shown:
    status = serve.ask(Roots.from_environ().run)
    head = ("POD", "CLASS", "CPUS", "USED", "LIMIT", "WAITS", "THROTTLED", "MEMORY")
    rows = [_live_cells(pod) for pod in sorted(status["pods"], key=lambda pod: (pod["class"], _name(pod)))]
    return f"{table(head, rows)}\n\n{_summary(status['state'])}", status


def _live_cells(pod: dict[str, Any]) -> tuple[str, ...]:
    cpus = sorted({c["files"].get("cpuset.cpus") or "any" for c in pod["containers"]})
    memory = "  ".join(f"N{node} {_mib(size)}" for node, size in pod["memory_by_node"].items())
    return (
        _name(pod),
        pod["class"],
        " ".join(cpus),
        _number(pod["usage_cpus"], "{:.2f}"),
        _number(pod["quota_cpus"], "{:.2f}", "-"),
        _number(pod["waiting_ratio"], "{:.1%}"),
        {True: "yes", False: "no", None: "?"}[pod["is_throttled"]],
        memory or "?",
    )


def _summary(state: dict[str, Any]) -> str:
    why = state["not_ready"]
    quota = _number(state["offline_quota_cpus"], "{:.2f} CPUs", "not limited yet")
    runtime = state["runtime"].strip() or "no runtime"
    return (
        f"offline work may use {quota} on {state['offline_cpuset_cpus']} CPUs ({state['because']}); online work uses "
        f"{_number(state['online_usage_cpus'], '{:.2f}')}, the rest of the node "
        f"{_number(state['other_usage_cpus'], '{:.2f}')}\n{runtime}: {'ready' if why is None else f'NOT READY: {why}'}"
    )


def _explain(args: argparse.Namespace) -> Shown:
    pods = serve.ask(Roots.from_environ().run)["pods"]
    found = [pod for pod in pods if args.pod in (pod["pod"], _name(pod), pod["uid"])]
    if not found:
        raise NotFound(f"no pod {args.pod} runs on this node")
    lines = (line for pod in found for line in (*_explained(pod), ""))
    return "\n".join(map(printable, lines)).rstrip(), found


def _explained(pod: dict[str, Any]) -> list[str]:
    lines = [f"{_name(pod)}: class {pod['class']}, because {pod['because']}"]
    if pod["quota_cpus"] is not None:
        lines.append(f"  held to {pod['quota_cpus']:.2f} CPUs")
    if pod["is_homebound"]:
        lines.append(
            "  kept off borrowed memory: it or its namespace has more than remote_budget or remote_limit allows"
        )
    lines += _file_lines(pod, "  ")
    for container in pod["containers"]:
        why = "; ".join(reason for reason in container["why"] if reason != pod["because"]) or "nothing was decided"
        lines.append(f"  container {container['container']}, when it was created: {why}")
        lines += _file_lines(container, "    ")
        if container["irqs"]:
            lines.append(f"    interrupts come to its CPUs: {cpulist.render(container['irqs'])} of /proc/irq")
    return lines


def _file_lines(of: dict[str, Any], indent: str) -> list[str]:
    """Return where a cgroup is, and what its files say now; an empty one means what its parent has."""
    files = "  ".join(f"{file}={value}" for file, value in of["files"].items() if value)
    return [f"{indent}{of['cgroup']}", f"{indent}  now: {files}"] if files else [f"{indent}no cgroup found"]


def _node(args: argparse.Namespace) -> Shown:
    status = serve.ask(Roots.from_environ().run)
    there, pods = status["state"]["numa_nodes"], status["pods"]
    users = [
        {
            "pod": _name(pod),
            "class": pod["class"],
            "bytes": pod["memory_by_node"].get(str(args.number), 0),
            "bound": sorted(
                c["container"] for c in pod["containers"] if args.number in cpulist.parse(c["effective_mems"])
            ),
        }
        for pod in pods
    ]
    users = [user for user in users if user["bytes"] or user["bound"]]
    users.sort(key=lambda user: (-user["bytes"], user["pod"]))
    rows = [(u["pod"], u["class"], _mib(u["bytes"]), " ".join(u["bound"]) or "-") for u in users]
    text = table(("POD", "CLASS", "MEMORY", "ALLOWED IN"), rows) if rows else f"no pod uses NUMA node {args.number}"
    return f"{text}\n\n{_numa(args.number, there)}", users


def _numa(number: int, there: dict[str, Any]) -> str:
    """Say what is in use of a NUMA node by whomever: what has memory there need not be a pod."""
    if (numa := there.get(str(number))) is None:
        return f"this node has no NUMA node {number}, only {', '.join(there) or 'what could not be read'}"
    kind = "borrowed" if numa["is_borrowed"] else "of this server"
    if numa["memory_total"] is None or numa["memory_free"] is None:
        return f"NUMA node {number}, {kind}"
    used = _mib(numa["memory_total"] - numa["memory_free"])
    return f"NUMA node {number}, {kind}: {used} of {_mib(numa['memory_total'])} in use, by pods and whoever else"


def _show_plan(args: argparse.Namespace) -> Shown:
    rows = list(_plan(args))
    head = ("POD", "CONTAINER", "CLASS", "WEIGHT", "CPUS", "MEMORY", "WHY")
    return table(head, map(_cells, rows)), rows


def _name(pod: dict[str, Any]) -> str:
    return f"{pod['namespace']}/{pod['pod']}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _number(value: float | None, form: str, missing: str = "?") -> str:
    return missing if value is None else form.format(value)


def _plan(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    world = World(config.load(args.config, Config))
    world.machine = observe.read_machine(Roots.from_environ().sys)
    if why := misfit(world.machine, world.config):
        raise InvalidRequest(why)
    for wanted in manifests.pods(_documents(args.file)):
        world.add_pod(wanted.pod)
        for container in wanted.starting:
            yield _row(world, wanted.pod, container)
            world.stopped(container)
        for container in wanted.containers:
            yield _row(world, wanted.pod, container)


def _row(world: World, pod: Pod, container: Container) -> dict[str, Any]:
    row = {"pod": f"{pod.namespace}/{pod.name}", "container": container.name}
    try:
        decision = world.create(pod, container)
    except Exhausted as error:
        return row | {"class": world.sandboxes[pod.id].classified.qos.value, "refused": str(error)}
    return row | _decided(decision)


def _decided(decision: Decision) -> dict[str, Any]:
    return {
        "class": decision.qos.value,
        "shares": decision.shares,
        "cpus": None if decision.cpus is None else cpulist.render(decision.cpus),
        "mems": None if decision.mems is None else cpulist.render(decision.mems),
        "why": list(decision.reasons),
    }


def _documents(file: str) -> list[object]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    return config.documents(text, where=file)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "refused" in row:
        return row["pod"], row["container"], row["class"], "-", "-", "-", f"REFUSED: {row['refused']}"
    memory = "any" if row["mems"] is None else f"node {row['mems']}"
    weight = "as requested" if row["shares"] is None else "least"
    return row["pod"], row["container"], row["class"], weight, row["cpus"] or "any", memory, "; ".join(row["why"])
