"""A host as plain data, for JSON. Pure.

The names are part of our interface: they may be added to, and are never renamed within one ``version``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum, IntFlag
from typing import Any

from ubhost.discovery import Discovery
from ubhost.model import Eid
from ubhost.topology import Topology

VERSION = 1


def document(found: Discovery, **parts: object) -> dict[str, Any]:
    """Return ``parts`` with what says where they come from."""
    return {
        "version": VERSION,
        "provider": found.kind.value,
        "level": found.level.value,
        "notes": list(found.notes),
        **{name: plain(part) for name, part in parts.items()},
    }


def overview(found: Discovery) -> dict[str, Any]:
    return document(
        found,
        sharing=found.sharing,
        devices=devices(found),
        topology=topology(found.topology),
        host=found.host,
    )


def devices(found: Discovery) -> list[dict[str, Any]]:
    """Each device with the planes it reaches."""
    return [{**plain(d), "planes": list(found.topology.planes_of(d.members))} for d in found.devices]


def topology(found: Topology) -> dict[str, Any]:
    dies = [{**plain(die), "links_up": len(die.links), "nominal_mbps": die.bandwidth_mbps} for die in found.dies]
    return {
        "position": plain(found.position),
        "dies": dies,
        "nodes": plain(found.nodes),
        "links": sorted(list(pair) for pair in found.links),
        "numa": plain(found.numa),
    }


def plain(value: object) -> Any:
    """Return dataclasses, enumerations and mappings as what JSON knows; an EID is its full text."""
    match value:
        case Eid():
            return str(value)
        case IntFlag():
            return [flag.name for flag in type(value) if flag in value]
        case IntEnum():
            return value.name
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case Iterable():
            return [plain(item) for item in value]
        case _:
            raise TypeError(f"{value!r} has no plain form")
