"""What an RDMA device looks like: plain values."""

from dataclasses import dataclass

from ubhost.model import Eid


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """``gids`` by index, those that are not zero; ``rate_mbps`` in megabits a second."""

    index: int
    state: str | None = None  # ACTIVE, DOWN, INIT, ARMED …
    link_layer: str | None = None  # Ethernet or InfiniBand
    rate_mbps: int | None = None
    netdev: str | None = None
    gids: tuple[tuple[int, Eid], ...] = ()


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """``nodes`` are its device nodes below /dev; ``address`` that of its bus, such as PCI."""

    name: str
    node_guid: str | None = None
    firmware: str | None = None
    address: str | None = None
    numa: int | None = None
    driver: str | None = None
    is_soft: bool = False
    ports: tuple[RdmaPort, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether a port is active, or none tells its state."""
        states = [port.state for port in self.ports if port.state is not None]
        return not states or "ACTIVE" in states
