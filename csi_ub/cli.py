"""``ubnode volumes``: what volumes this node owns and uses."""

import argparse
import json
from collections.abc import Sequence

from csi_ub.driver import remembered
from csi_ub.engines.base import Reach
from csi_ub.model import Volume
from csi_ub.noderecord import NodeRecords
from csi_ub.pool import Pool
from csi_ub.volumes import Volumes
from ubhost.errors import UbError
from ubhost.roots import Roots


def main(argv: Sequence[str]) -> int:
    """Print a table, or JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="ubnode volumes", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    arguments = parser.parse_args(argv)
    roots = Roots.from_environ()
    volumes = remembered(roots)
    records = NodeRecords(roots.run.absolute() / "volumes")
    rows = [_row(volumes, volume, pool, records) for pool in volumes.pools for volume in pool.volumes.all()]
    print(json.dumps(rows, indent=1) if arguments.json else _table(rows))
    return 0


def _row(volumes: Volumes, volume: Volume, pool: Pool, records: NodeRecords) -> dict[str, object]:
    engine = volumes.engines.named(volume.engine)
    condition = "well"
    try:
        engine.verify(Reach(volume.id, volume.owner, engine.context(volume, pool), pool))
    except UbError as error:
        condition = str(error)
    record = records.read(volume.id)
    return {
        "volume": volume.id,
        "name": volume.name,
        "type": volume.spec.type.value,
        "size": volume.size,
        "used": pool.usage(volume).used if pool.space.has_quota else None,
        "consistency": volume.spec.consistency.value,
        "engine": volume.engine,
        "pool": pool.name,
        "nodes": [each.node for each in pool.users(volume.id)],
        "published": sorted(record.published) if record else [],
        "condition": condition,
    }


def _table(rows: list[dict[str, object]]) -> str:
    if not rows:
        return "no volumes"
    head = ("VOLUME", "NAME", "TYPE", "SIZE", "USED", "CONSISTENCY", "ENGINE", "POOL", "NODES", "PODS", "CONDITION")
    lines = [head]
    for row in rows:
        nodes, published = row["nodes"], row["published"]
        assert isinstance(nodes, list)
        assert isinstance(published, list)
        lines.append(
            (
                str(row["volume"]),
                str(row["name"]),
                str(row["type"]),
                size_text(row["size"] or None),
                size_text(row["used"]),
                str(row["consistency"]),
                str(row["engine"]),
                str(row["pool"]),
                ",".join(nodes) or "-",
                str(len(published)),
                str(row["condition"]),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def size_text(size: object) -> str:
    """Return bytes for people; "-" if they are unknown."""
    if not isinstance(size, int):
        return "-"
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"
