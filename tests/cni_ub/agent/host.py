"""A UB host on disk for tests of the agent's parts: the simulator's tree, and a provider in memory that reads it."""

from pathlib import Path

from ubhost.errors import Busy
from ubhost.provider import Device
from ubhost.providers.grouping import Found, managed
from ubhost.roots import Roots
from ubhost.sysfs.attributes import Folder
from ubhost.sysfs.entities import read_entity_numa
from ubhost.sysfs.urma import read_brief
from ubhost.ubse.bodies import UrmaInfo, UrmaPaths
from ubsim import expansion, hosts, sysfs, tree
from ubsim.fakes import FakeProvider

ZERO = ":".join(["0000"] * 8)


class TreeProvider(FakeProvider):
    """Lists what the tree shows, grouped as the real provider groups it; commands go to the state machine."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self._root = root
        self.sick: set[str] = set()
        self.listed = names
        self.is_down = False
        self.made_of: dict[str, UrmaPaths] = {}  # what UBSE would tell when a device is allocated
        self.taken: set[str] = set()  # allocated by another program of the host
        self._told: dict[str, UrmaPaths] = {}
        super().__init__(self._look())

    def devices(self) -> tuple[Device, ...]:
        super().devices()  # orders to fail or to take long are met there
        if self.is_down:
            raise Busy("UBSE does not answer")
        return self._look()

    def _look(self) -> tuple[Device, ...]:
        kernel = read_brief(Folder(self._root / "sys/class/ubcore"))
        bus = Folder(self._root / "sys/bus/ub/devices")
        numa = {device.entity: read_entity_numa(bus / device.entity) for device in kernel if device.entity}
        infos = [UrmaInfo(name, name not in self.sick) for name in self.listed]
        return managed(Found.of(kernel, numa), infos, self._told)

    def allocate(self, device_id: str) -> None:
        if device_id in self._told or device_id in self.taken:
            raise Busy(f"{device_id} is allocated already")
        if device_id in self.made_of:
            self._told[device_id] = self.made_of[device_id]
        else:
            super().allocate(device_id)

    def free(self, device_id: str) -> None:
        if self._told.pop(device_id, None) is None:
            super().free(device_id)


class Host:
    """``node0`` of two nodes with ``count`` devices each, below ``root``."""

    def __init__(self, root: Path, count: int = 4, chips: int = 2) -> None:
        file = root.parent / f"{root.name}.yaml"
        file.write_text(f"name: test\nnodes: [{{name: node, count: 2, devices: {count}, chips: {chips}}}]\n")
        self.root = root
        self.roots = Roots(root)
        self.model = hosts.hosts_of(expansion.load(file))["node0"]
        root.mkdir(exist_ok=True)
        tree.write(root, sysfs.entries(self.model))
        self.provider = TreeProvider(root, [f"urma_{number}" for number in range(1, count + 1)])

    @property
    def kubelet(self) -> Path:
        return self.root / "var/lib/kubelet"

    def attribute(self, member: str, name: str) -> Path:
        return self.root / "sys/class/ubcore" / member / name

    def set_port(self, member: str, state: int) -> None:
        tree.poke(self.attribute(member, "port0/state"), f"{state}\n")

    def lose_eid(self, member: str) -> str:
        """Zero the first EID; return what it was."""
        path = self.attribute(member, "eids/eid0")
        text = path.read_text()
        tree.poke(path, f"{ZERO}\n")
        return text
