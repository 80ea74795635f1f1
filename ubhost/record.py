"""One attachment as the ledger remembers it: plain values, no input or output."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class State(Enum):
    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"  # part of it failed and is to be tried again


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a netdev from every other, and no pod can forge.

    Alias, name, index and hardware address are the pod's to change. These are not: the kind, the device that it
    belongs to, the hardware address it was made with, and the host's end of a veth (its index; 0 if there is none).
    """

    kind: str = ""
    parent: str = ""
    permanent_mac: str = ""
    peer: int = 0


@dataclass(frozen=True, slots=True)
class OriginalLink:
    """A netdev as it was on the host before it moved; what DEL restores. ``pod_index`` is its number in the pod."""

    name: str
    index: int
    mtu: int  # bytes
    mac: str
    alias: str
    qlen: int  # packets
    is_up: bool
    altnames: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    pod_name: str = ""
    pod_index: int = 0
    group: int = 0
    is_promisc: bool = False
    identity: Identity | None = None  # records of older versions have none
    is_allmulti: bool = False
    has_xdp: bool = False


@dataclass(frozen=True, slots=True)
class Delegate:
    """How to call the IPAM plugin again when the runtime's own request is not there any more."""

    type: str
    config: dict[str, Any]
    environ: dict[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """One attachment. A record that could not be read has its names only, and ``is_damaged``, until it is released."""

    device: str
    container: str
    ifname: str
    network: str = ""
    state: State = State.ATTACHING
    netns: str = ""
    netns_inode: int = 0
    netns_cookie: int = 0
    boot_id: str = ""
    nonce: str = ""  # of the request that made it
    since: float = 0.0  # Unix time
    pod: str = ""  # namespace/name
    pod_uid: str = ""
    members: tuple[str, ...] = ()
    eids: tuple[tuple[str, int, str], ...] = ()  # kernel device, slot, EID
    link: OriginalLink | None = None
    is_allocated: bool = False  # we asked the host's manager for the device, and are to free it
    limit_mbps: tuple[int, int] | None = None  # min, max of the device before we changed them
    is_zero_copy: bool = False  # ``ubhost.zerocopy`` has a record of its own
    shaper: str = ""  # the ifb in the pod, if what it receives is limited
    delegate: Delegate | None = None
    given: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # "ips" and "routes" as in a CNI result
    service_levels: tuple[tuple[str, int, int], ...] = ()  # kernel device, jetty priority, level before we changed it
    nodes: tuple[str, ...] = ()  # device nodes below /dev that its programs open; nri-qos puts them into containers
    is_shared: bool = False  # other pods may have the device too, each with EIDs of its own
    is_damaged: bool = field(default=False)

    @property
    def attachment(self) -> tuple[str, str]:
        return self.container, self.ifname
