"""An RDMA server that a test plays: a recorded tree of sysfs, and the kernel's answers to RDMA netlink."""

import errno
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ubhost.kernel.netns import inode, own_inode
from ubhost.netlink import NLM_F_DUMP, NLMSG_DONE, Frame, acknowledgement, attribute, attributes, frames
from ubhost.rdma.netlink import Channel
from ubhost.roots import Roots

GID = "fe80:0000:0000:0000:5054:00ff:fe12:3456"

RECORDED = {
    "devices/virtual/infiniband/rxe0/node_guid": "5054:00ff:fe12:3456",
    "devices/virtual/infiniband/rxe0/parent": "eth1",
    "devices/virtual/infiniband/rxe0/ports/1/state": "4: ACTIVE",
    "devices/virtual/infiniband/rxe0/ports/1/link_layer": "Ethernet",
    "devices/virtual/infiniband/rxe0/ports/1/rate": "2.5 Gb/sec (1X SDR)",
    "devices/virtual/infiniband/rxe0/ports/1/gids/0": GID,
    "devices/virtual/infiniband/rxe0/ports/1/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
    "devices/virtual/infiniband/rxe0/ports/1/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001",
    "devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "eth1",
    "devices/virtual/infiniband_verbs/uverbs1/ibdev": "rxe0",
    "devices/pci0000:3a/0000:3b:00.0/numa_node": "1",
    "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/fw_ver": "16.35.3006",
    "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/state": "1: DOWN",
    "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)",
    "devices/pci0000:3a/0000:3b:00.0/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
    "bus/pci/drivers/mlx5_core/bind": "",
}


def write_server(root: Path) -> Roots:
    """A card whose port is down, and soft-RoCE over eth1."""
    sys_ = root / "sys"
    for name, content in RECORDED.items():
        path = sys_ / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    pci = sys_ / "devices/pci0000:3a/0000:3b:00.0"
    (sys_ / "class/infiniband").mkdir(parents=True)
    (sys_ / "class/infiniband_verbs").mkdir()
    (sys_ / "class/infiniband/rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    (sys_ / "class/infiniband/mlx5_0").symlink_to("../../devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0")
    (pci / "infiniband/mlx5_0/device").symlink_to("../../../0000:3b:00.0")
    (pci / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    for node, at in (("uverbs0", "pci0000:3a/0000:3b:00.0"), ("uverbs1", "virtual")):
        (sys_ / "class/infiniband_verbs" / node).symlink_to(f"../../devices/{at}/infiniband_verbs/{node}")
    return Roots(root)


@dataclass
class Kernel:
    """RDMA devices of one machine: where each is, by inode of the namespace. rxe cannot move, as Linux has it."""

    home: int = field(default_factory=own_inode)
    is_shared: bool = False
    at: dict[str, int] = field(default_factory=dict)
    lies: bool = False
    heard: list[bytes] = field(default_factory=list)

    @contextmanager
    def open(self, netns: int | None) -> Iterator[Channel]:
        yield _Socket(self, self.home if netns is None else inode(netns))


class _Socket:
    port = 9

    def __init__(self, kernel: Kernel, here: int) -> None:
        self._kernel, self._here = kernel, here

    def ask(self, request: bytes) -> list[Frame]:
        kernel = self._kernel
        kernel.heard.append(request)
        (frame,) = frames(request)
        values = dict(attributes(frame.body))
        match frame.kind & 0x3FF:
            case 6:
                return [Frame(frame.kind, attribute(66, bytes([kernel.is_shared])))]
            case 1:
                assert frame.flags & NLM_F_DUMP == NLM_F_DUMP
                seen = [n for n, at in sorted(kernel.at.items()) if kernel.is_shared or at == self._here]
                return [self._described(frame, name) for name in seen] + [Frame(NLMSG_DONE, bytes(4))]
            case _:
                return list(frames(acknowledgement(request, self._move(values))))

    def _described(self, frame: Frame, name: str) -> Frame:
        index = sorted(self._kernel.at).index(name)
        return Frame(frame.kind, attribute(1, struct.pack("=I", index)) + attribute(2, name.encode() + b"\0"), 2)

    def _move(self, values: dict[int, bytes]) -> int:
        name = sorted(self._kernel.at)[struct.unpack("=I", values[1])[0]]
        if name.startswith("rxe"):
            return errno.EOPNOTSUPP
        if not self._kernel.lies:
            self._kernel.at[name] = inode(struct.unpack("=I", values[68])[0])
        return 0
