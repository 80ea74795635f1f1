"""``ubnode attachments``: which pod holds which device, since when, and what is wrong with it."""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cni_ub.host import Host
from cni_ub.reconcile import Finding, inspect, repair
from ubhost import log, providers
from ubhost.arguments import Parser
from ubhost.errors import NotFound
from ubhost.ledger import Ledger
from ubhost.provider import Provider
from ubhost.roots import Roots
from ubhost.show.table import table

COLUMNS = ("DEVICE", "POD", "CONTAINER", "INTERFACE", "NETWORK", "ADDRESSES", "SINCE", "STATE")


def main(argv: Sequence[str]) -> int:
    """Print the table; return 1 if something could not be repaired."""
    arguments = _parser().parse_args(argv)
    log.set_up("error")  # what could not be repaired is said below
    roots = Roots.from_environ()
    host = Host(roots, Ledger(roots), lambda: _choose(roots), is_short_lived=True)
    gone = _container(host, arguments.gone) if arguments.gone else ""
    findings = repair(host, gone) if arguments.repair or gone else inspect(host)
    rows = [_row(finding) for finding in findings]
    if arguments.json:
        print(json.dumps({"attachments": rows}, indent=2))
    else:
        print(_shown(rows))
    return 1 if any(finding.problems for finding in findings) else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ubnode attachments", description="Which pod holds which UB device.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--repair", action="store_true", help="release the devices of pods that are gone")
    parser.add_argument(
        "--gone",
        metavar="CONTAINER",
        help="repair, and take this container's pod to be gone where its record is damaged",
    )
    return parser


def _choose(roots: Roots) -> Provider:
    return providers.choose(roots)


def _container(host: Host, start: str) -> str:
    """Return the one container whose id begins so; the table shows no more of it.

    Raises:
        NotFound: there is none, or there are several.
    """
    found = sorted({record.container for record in host.ledger.records() if record.container.startswith(start)})
    if len(found) != 1:
        raise NotFound(f"{len(found)} containers with an attachment begin with {start!r}: {', '.join(found) or 'none'}")
    return found[0]


def _row(finding: Finding) -> dict[str, Any]:
    record = finding.record
    state = finding.condition.value
    if finding.is_tried:
        state = f"{'not repaired' if finding.problems else 'repaired'}: {state}"
    return {
        "device": record.device,
        "pod": record.pod or "-",
        "container": record.container,
        "interface": (record.link.pod_name if record.link else "") or record.ifname,
        "network": record.network or "-",
        "addresses": ",".join(ip["address"] for ip in record.given.get("ips", ())) or "-",
        "eids": [eid for _, _, eid in record.eids],
        "netns": record.netns,
        "since": datetime.fromtimestamp(record.since, UTC).isoformat(timespec="seconds") if record.since else "-",
        "state": state,
        "problems": list(finding.problems),
    }


def _shown(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "no attachments"
    short = [{**row, "container": row["container"][:13]} for row in rows]
    troubles = [f"{row['device']}: {problem}" for row in rows for problem in row["problems"]]
    return "\n".join([table(COLUMNS, ([row[column.lower()] for column in COLUMNS] for row in short)), *troubles])
