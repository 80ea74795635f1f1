"""``ubnode qos``: what pods get on this node, and why."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from nri_qos import cpulist, manifests, observe
from nri_qos.config import Config
from nri_qos.model import Container, Decision, Pod
from nri_qos.world import World
from ubhost import config
from ubhost.errors import Exhausted, InvalidRequest
from ubhost.roots import Roots


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code. Errors of the domain are the caller's to print."""
    args = _parser().parse_args(argv)
    rows = list(_plan(args))
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print(_table(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ubnode qos", description=__doc__.partition(": ")[2] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan",
        help="what the pods of a manifest would get on this node",
        description="Decide about the pods of Kubernetes manifests as if they were created on this empty node, one "
        "after another. Nothing is changed, and no runtime is needed: kubectl get pod -o yaml | ubnode qos plan -f -",
    )
    plan.add_argument("-f", "--file", required=True, metavar="FILE", help="manifests, YAML; - is stdin")
    plan.add_argument("--config", type=Path, metavar="FILE", help="configuration of nri-qos")
    plan.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _plan(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    world = World(config.load(args.config, Config))
    world.machine = observe.read_machine(Roots.from_environ().sys)
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
        return list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file} is not YAML: {error}") from error


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("POD", "CONTAINER", "CLASS", "WEIGHT", "CPUS", "MEMORY", "WHY")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "refused" in row:
        return row["pod"], row["container"], row["class"], "-", "-", "-", f"REFUSED: {row['refused']}"
    memory = "any" if row["mems"] is None else f"node {row['mems']}"
    weight = "as requested" if row["shares"] is None else "least"
    return row["pod"], row["container"], row["class"], weight, row["cpus"] or "any", memory, "; ".join(row["why"])
