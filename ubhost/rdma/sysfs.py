"""RDMA devices: ``/sys/class/infiniband`` and ``/sys/class/infiniband_verbs``.

Source: Linux Documentation/ABI/stable/sysfs-class-infiniband, Documentation/infiniband/sysfs.rst.
"""

import re

from ubhost.rdma.model import RdmaDevice, RdmaPort
from ubhost.sysfs.attributes import Folder, Unreadable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MAX_PORTS, MAX_GIDS, MAX_VERBS = 256, 1024, 4096
SOFT_DRIVERS = frozenset({"rdma_rxe", "siw"})
_VIRTUAL = "/devices/virtual/"


def read_rdma(sys: Folder) -> tuple[RdmaDevice, ...]:
    """Return every RDMA device that the folder's network namespace sees, by name.

    Raises:
        Unreadable: a name or an attribute makes no sense.
    """
    folder = sys / "class/infiniband"
    verbs = _verbs(sys / "class/infiniband_verbs")
    return tuple(_device(name, folder, verbs.get(name, ())) for name in folder.names())


def _verbs(folder: Folder) -> dict[str, tuple[str, ...]]:
    """Return the uverbs nodes of each device."""
    found: dict[str, tuple[str, ...]] = {}
    for number, node in folder.numbered("uverbs", MAX_VERBS):
        device = node.text("ibdev")
        if device is not None:
            found[device] = (*found.get(device, ()), f"infiniband/uverbs{number}")
    return found


def _device(name: str, parent: Folder, nodes: tuple[str, ...]) -> RdmaDevice:
    if not NAME.fullmatch(name):
        raise Unreadable(f"{parent.path}/{name}: not a device name")
    folder = parent / name
    bus = folder / "device"
    driver = (bus.link("driver") or "").rpartition("/")[2] or _soft_driver(name, folder)
    numa = bus.number("numa_node")
    return RdmaDevice(
        name=name,
        node_guid=folder.text("node_guid"),
        firmware=folder.text("fw_ver"),
        address=(folder.link("device") or "").rpartition("/")[2] or None,
        numa=None if numa is None or numa < 0 else numa,
        driver=driver,
        is_soft=driver in SOFT_DRIVERS or _VIRTUAL in f"/{parent.link(name) or ''}",
        ports=tuple(_port(index, port) for index, port in (folder / "ports").numbered("", MAX_PORTS)),
        nodes=(*nodes, "infiniband/rdma_cm") if nodes else (),
    )


def _soft_driver(name: str, folder: Folder) -> str | None:
    """rxe and siw have no bus; they name the netdev they sit on in ``parent``."""
    if folder.text("parent") is None:
        return None
    return "siw" if name.startswith("siw") else "rdma_rxe"


def _port(index: int, folder: Folder) -> RdmaPort:
    state = folder.text("state")
    gids = tuple(
        (number, gid)
        for number, _ in (folder / "gids").numbered("", MAX_GIDS)
        if (gid := (folder / "gids").eid(str(number))) is not None and not gid.is_zero
    )
    return RdmaPort(
        index=index,
        state=None if state is None else state.rpartition(":")[2].strip(),  # "4: ACTIVE"
        link_layer=folder.text("link_layer"),
        rate_mbps=_rate(folder),
        netdev=_netdev(folder / "gid_attrs/ndevs"),
        gids=gids,
    )


def _rate(folder: Folder) -> int | None:
    """``2.5 Gb/sec (1X SDR)``."""
    text = folder.text("rate")
    if text is None:
        return None
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text)
    if match is None:
        raise Unreadable(f"{folder.path}/rate: {text[:80]!r} makes no sense: expected Gb/sec")
    return round(float(match[1]) * 1000)


def _netdev(folder: Folder) -> str | None:
    """Take the first that tells: an index without a GID answers EINVAL."""
    for number, _ in folder.numbered("", MAX_GIDS):
        name = folder.text(str(number))
        if name is not None:
            return name
    return None
