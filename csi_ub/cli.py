"""``ubnode volumes``: what volumes this node owns and uses; ``ubnode volumes conflicts``: edits that collided."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from csi_ub.connect import remembered
from csi_ub.engines.base import Reach
from csi_ub.engines.syncthing import SyncthingEngine
from csi_ub.noderecord import NodeRecord, NodeRecords
from csi_ub.share import attachments
from csi_ub.syncthing import beats, conflicts
from csi_ub.volumes import Volumes
from ubhost.arguments import Parser
from ubhost.errors import UbError
from ubhost.roots import Roots
from ubhost.show.table import size, table

Row = dict[str, object]
_COLUMNS = {
    "volume": "VOLUME",
    "name": "NAME",
    "type": "TYPE",
    "size": "SIZE",
    "used": "USED",
    "consistency": "CONSISTENCY",
    "lag": "LAG",
    "engine": "ENGINE",
    "owner": "OWNER",
    "pool": "POOL",
    "nodes": "NODES",
    "published": "PODS",
    "condition": "CONDITION",
}
_CONFLICT_COLUMNS = {"volume": "VOLUME", "file": "FILE", "copy": "COPY", "when": "WHEN", "winner": "WINNER"}


def main(argv: Sequence[str]) -> int:
    """Print a table, or JSON; return the exit code."""
    parser = Parser(prog="ubnode volumes", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["conflicts"], help="edits of one file on two nodes, both kept")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    arguments = parser.parse_args(argv)
    roots = Roots.from_environ()
    volumes, records = remembered(roots), NodeRecords(roots.run.absolute() / "volumes")
    if arguments.what == "conflicts":
        rows, columns, nothing = list(_conflicts(volumes, records)), _CONFLICT_COLUMNS, "no conflicts"
    else:
        rows, columns, nothing = [*_own(volumes, records), *_others(volumes, records)], _COLUMNS, "no volumes"
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print(table(columns.values(), ([_text(key, row[key]) for key in columns] for row in rows)) if rows else nothing)
    return 0


def _own(volumes: Volumes, records: NodeRecords) -> Iterator[Row]:
    """Yield the volumes in the pools of this node, used or not."""
    for pool in volumes.pools:
        for volume in pool.volumes.all():
            yield {
                **_row(volumes, volumes.reach(volume, pool), records.read(volume.id)),
                "name": volume.name,
                "pool": pool.name,
                "size": volume.size or None,
                "used": pool.usage(volume).used if pool.space.has_quota else None,
                "nodes": [each.node for each in pool.users(volume.id)],
            }


def _others(volumes: Volumes, records: NodeRecords) -> Iterator[Row]:
    """Yield the volumes of other nodes that are used here."""
    for record, reach in _foreign(volumes, records):
        share = _copy(volumes, reach)
        known = [each.node for each in attachments(share)] if share else [volumes.node]
        yield {**_row(volumes, reach, record), "nodes": known, "pool": record.context.get("pool")}


def _foreign(volumes: Volumes, records: NodeRecords) -> Iterator[tuple[NodeRecord, Reach]]:
    for record in records.all():
        if volumes.own(record.volume) is None:
            yield record, volumes.again(record.volume, record.context)


def _row(volumes: Volumes, reach: Reach, record: NodeRecord | None) -> Row:
    condition, share = "well", _copy(volumes, reach)
    try:
        volumes.engine(reach).verify(reach)
    except UbError as error:
        condition = str(error)
    return {
        "volume": reach.volume,
        "name": None,
        "type": reach.context.get("type"),
        "size": None,
        "used": None,
        "consistency": reach.context.get("consistency"),
        "lag": max(beats.lags(share, volumes.node).values(), default=None) if share else None,
        "engine": reach.context.get("engine"),
        "owner": reach.owner,
        "published": sorted(record.published) if record else [],
        "condition": condition,
    }


def _conflicts(volumes: Volumes, records: NodeRecords) -> Iterator[Row]:
    """Yield the conflict copies of every eventual volume of which this node has a copy."""
    devices = _devices(volumes)
    own = [volumes.reach(volume, pool) for pool in volumes.pools for volume in pool.volumes.all()]
    for reach in (*own, *(reach for _, reach in _foreign(volumes, records))):
        share = _copy(volumes, reach)
        for found in conflicts.find(share / "data") if share else ():
            winner = next((node for device, node in devices.items() if device.startswith(found.winner)), found.winner)
            yield {
                "volume": reach.volume,
                "file": found.original,
                "copy": found.copy,
                "when": found.when,
                "winner": winner,
            }


def _devices(volumes: Volumes) -> dict[str, str]:
    """Return device ids and their nodes, as far as Syncthing can tell just now."""
    engine = volumes.engines.known.get(SyncthingEngine.name)
    if not isinstance(engine, SyncthingEngine):
        return {}
    try:
        known = {each["deviceID"]: each["name"] for each in engine.daemon.get("config/devices")}
        return known | {engine.daemon.device: volumes.node}
    except (UbError, OSError):
        return {}


def _copy(volumes: Volumes, reach: Reach) -> Path | None:
    """Return this node's copy of an eventual volume; ``None`` if the volume is of another kind, or not here."""
    engine = volumes.engine(reach)
    share = engine.copy(reach) if isinstance(engine, SyncthingEngine) else None
    return share if share and share.is_dir() else None


def _text(key: str, value: object) -> str:
    """Return a value as people read it; what is not known is "-"."""
    match key, value:
        case "published", list():
            return str(len(value))
        case _, list():
            return ",".join(map(str, value)) or "-"
        case "size" | "used", int():
            return size(value)
        case "lag", float():
            return f"{value:.1f} s"
        case _:
            return "-" if value is None else str(value)
