"""``ubnode show`` and ``ubnode watch``: what was found on this host, and what changes. They change nothing."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ubhost import paths
from ubhost.arguments import Parser
from ubhost.capacity import capacity
from ubhost.changes import Change
from ubhost.discovery import Discovery
from ubhost.kernel.netns import open_netns
from ubhost.providers import AUTO, choose
from ubhost.roots import Roots
from ubhost.show import data, dot, svg, text
from ubhost.show.table import table
from ubhost.survey import survey
from ubhost.uevents import Uevents
from ubhost.watch import watch
from ubhost.zerocopy import ZeroCopy

TEXTS: Mapping[str, Callable[[Discovery], str]] = {
    "all": text.overview,
    "capacity": text.capacity,
    "devices": text.devices,
    "eids": text.eids,
    "entities": text.entities,
    "memory": text.memory,
    "numa": lambda found: text.numa(found.host.numa),
    "rdma": text.rdma,
    "topology": text.topology,
}

DATA: Mapping[str, Callable[[Discovery], dict[str, Any]]] = {
    "all": data.overview,
    "capacity": lambda found: data.document(found, capacity=capacity(found)),
    "devices": lambda found: data.document(found, sharing=found.sharing, devices=data.devices(found)),
    "eids": lambda found: data.document(found, eids=[slot for device in found.devices for slot in device.eids]),
    "entities": lambda found: data.document(found, bus=found.host.bus, entities=found.host.entities),
    "memory": lambda found: data.document(found, regions=found.host.shared_memory, pools=found.host.memory_pools),
    "numa": lambda found: data.document(found, numa=found.host.numa),
    "rdma": lambda found: data.document(found, rdma=found.rdma),
    "topology": lambda found: data.document(found, topology=data.topology(found.topology)),
}


PATHS = "paths"  # of pods, as the attachments have them: no look at the devices is needed


def parser() -> argparse.ArgumentParser:
    result = Parser(prog="ubnode show", description="Show what was found on this host.")
    result.add_argument("what", nargs="?", choices=sorted([*TEXTS, PATHS]), default="all", help="what to show (all)")
    form = result.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs: stable names, one document")
    form.add_argument("--dot", action="store_true", help="topology only: for Graphviz")
    form.add_argument("--svg", action="store_true", help="topology only: a picture")
    result.add_argument(
        "--netns", metavar="PATH", help="eids only: as a process in that network namespace sees them, /proc/PID/ns/net"
    )
    _add_provider(result)
    return result


def _add_provider(result: argparse.ArgumentParser) -> None:
    result.add_argument(
        "--provider", choices=(AUTO, "sim", "ubcore", "rdma"), default=AUTO, help="whom to ask (auto: the first found)"
    )


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse_args(argv)
    if (arguments.dot or arguments.svg) and arguments.what != "topology":
        parser().error("--dot and --svg draw the topology: ubnode show topology")
    if arguments.netns is not None:
        if arguments.what != "eids":
            parser().error("--netns shows what a namespace sees: ubnode show eids")
        print(_seen_from(arguments))
        return 0
    if arguments.what == PATHS:
        print(_paths(as_json=arguments.json))
        return 0
    with_memory = arguments.what == "capacity"
    print(_shown(arguments, survey(Roots.from_environ(), arguments.provider, with_memory=with_memory)))
    return 0


def _shown(arguments: argparse.Namespace, found: Discovery) -> str:
    if arguments.json:
        return json.dumps(DATA[arguments.what](found), indent=1, ensure_ascii=False)
    if arguments.dot:
        return dot.graph(found)
    if arguments.svg:
        return svg.picture(found)
    return TEXTS[arguments.what](found)


def _paths(*, as_json: bool) -> str:
    """The best way of each pod to every peer that it is told of."""
    documents = ZeroCopy(Roots.from_environ()).documents()
    if as_json:
        return json.dumps({"version": data.VERSION, "attachments": list(documents.values())}, indent=1)
    if not documents:
        return "no pod asked for a zero-copy path (zeroCopy in the network configuration)"
    return table(("POD", "NETWORK", "INTERFACE", "PEER IS A", "PEER", "BEST", "WAYS"), paths.rows(documents))


def _seen_from(arguments: argparse.Namespace) -> str:
    """What a pod has, read in its own namespace; slots of others read as zero there and are not listed."""
    provider = choose(Roots.from_environ(), arguments.provider)
    netns = open_netns(arguments.netns)
    try:
        exposed, slots = provider.exposed(netns), provider.visible(netns)
    finally:
        os.close(netns)
    if arguments.json:
        seen = {"netns": arguments.netns, "exposed": exposed, "eids": data.plain(slots)}
        return json.dumps({"version": data.VERSION, "provider": provider.kind.value, **seen}, indent=1)
    rows: list[tuple[object, ...]] = [(slot.device, slot.index, slot.eid) for slot in slots]
    rows += [(name, None, None) for name in exposed if name not in {slot.device for slot in slots}]
    return table(("MEMBER", "SLOT", "EID"), rows)


def watch_main(argv: Sequence[str]) -> int:
    """Print each change as it comes, until interrupted."""
    arguments = watch_parser().parse_args(argv)
    roots = Roots.from_environ()
    with Uevents(roots) as uevents:
        for found, seen in watch(lambda: survey(roots, arguments.provider), uevents):
            if not seen and not arguments.json:
                print(f"{text.heading(found)}\nwatching {len(found.devices)} devices", flush=True)
            for change in seen:
                print(_line(change, as_json=arguments.json), flush=True)
    return 0


def watch_parser() -> argparse.ArgumentParser:
    result = Parser(prog="ubnode watch", description="Print what changes on this host, as it comes.")
    result.add_argument("--json", action="store_true", help="one JSON object a line")
    _add_provider(result)
    return result


def _line(change: Change, *, as_json: bool) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    if as_json:
        return json.dumps({"time": now, **data.plain(change)}, ensure_ascii=False)
    touched = f"; touches {' '.join(change.devices)}" if change.devices else ""
    return f"{now}  {change.what.value}: {change.subject}: {change.cause}{touched}"
