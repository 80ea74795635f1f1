"""The UB bus and what sits on it. Source: reference/ub.md section 4 (Documentation/ABI/testing/sysfs-bus-ub)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ubhost.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EntityPort:
    """``port<index>/`` of a UB entity. ``neighbor`` is the peer's entity number; ``None`` where there is no peer.

    The last five are about lanes that are switched off when idle, in the kernel's words, on physical ports only.
    """

    index: int
    cna: int | None = None
    linkup: bool | None = None
    neighbor: str | None = None
    neighbor_guid: str | None = None
    neighbor_port_idx: int | None = None
    boundary: bool | None = None
    asy_link_width: str | None = None
    glb_qdlws: str | None = None
    rx_qdlws: str | None = None
    tx_qdlws: str | None = None
    qdlws_exec_state: str | None = None


_DIRECT_LINK = re.compile(r"0x([0-9a-f]{1,4}) : 0x([0-9a-f]{1,4}) \[0x([0-9a-f]{1,5})\]")


@dataclass(frozen=True, slots=True)
class DirectLink:
    """One line of ``direct_link``: port here, port there, entity there. Source: ub.md section 4."""

    port: int
    peer_port: int
    peer: str  # entity number

    @classmethod
    def parse(cls, line: str) -> "DirectLink":
        """Read ``0x01 : 0x02 [0x00003]``.

        Raises:
            InvalidRequest: ``line`` is not of that form.
        """
        match = _DIRECT_LINK.fullmatch(line.strip())
        if match is None:
            raise InvalidRequest(f"{line!r} is not a direct link: expected '0x01 : 0x02 [0x00003]'")
        port, peer_port, peer = (int(part, 16) for part in match.groups())
        return cls(port, peer_port, f"{peer:05x}")


@dataclass(frozen=True, slots=True)
class UbEntity:
    """One entry of ``/sys/bus/ub/devices``. Entities are called by their number, 5 hex digits.

    ``fault`` says which attribute makes no sense; then nothing but the number is known.
    """

    number: str
    class_code: int | None = None
    vendor: int | None = None
    device: int | None = None
    type: int | None = None
    guid: str | None = None
    eid: int | None = None
    entity_idx: int | None = None
    tid: int | None = None
    upi: int | None = None
    primary_entity: str | None = None
    primary_cna: int | None = None
    numa: int | None = None  # None where firmware says -1
    direct_links: tuple[str, ...] = ()  # as the kernel prints them; ``peers`` says what they mean
    num_ues: int | None = None  # managing entities only; as sriov_numvfs
    total_ues: int | None = None  # as sriov_totalvfs
    ports: tuple[EntityPort, ...] = ()
    instance: int | None = None  # EID of the bus instance it is bound to
    ubc: str | None = None  # the controller above it
    kref: int | None = None
    match_driver: bool | None = None
    driver_override: str | None = None
    driver: str | None = None  # the driver that is bound to it
    sw_cap: int | None = None  # controllers only: forwarding
    total_entities: int | None = None  # entity 0 only
    mues: tuple[str, ...] = ()  # entity 0 only: managing entities below it
    ues: tuple[str, ...] = ()  # managing entities only: entities below it
    slots: Mapping[int, str] = field(default_factory=dict)  # hot-plug slots and their power state
    fault: str | None = None

    @property
    def peers(self) -> tuple[DirectLink, ...]:
        return tuple(DirectLink.parse(line) for line in self.direct_links)


@dataclass(frozen=True, slots=True)
class BusInstance:
    """One line of ``/sys/bus/ub/instance``."""

    guid: str
    type: int
    eid: int
    upi: int


@dataclass(frozen=True, slots=True)
class UbBus:
    """``/sys/bus/ub`` itself; ``cluster`` tells a super-node from a machine of its own."""

    cluster: bool | None = None
    feature: int | None = None  # one bit a capability
    instances: tuple[BusInstance, ...] = ()
