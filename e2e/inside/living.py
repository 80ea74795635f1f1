"""What a drill watches: pods that live, what each must keep, and the tally of what all of them lost."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from e2e.inside.cri import Container, Pod
from e2e.inside.host import eids_in
from e2e.inside.programs import mount_points
from e2e.inside.test_qos import cpus


@dataclass
class Tally:
    """What happened to all pods together."""

    started: int = 0
    removed: int = 0
    looks: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=lambda: {"attachment": [], "volume": [], "qos": []})
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def repeat(self, why: str) -> None:
        with self._lock:
            self.repeated[why] += 1

    def lose(self, what: str, of: str) -> None:
        """Count each loss of a pod once, however often it is seen."""
        with self._lock:
            if of not in self.lost[what]:
                self.lost[what].append(of)


@dataclass
class Living:
    """A pod that runs, and what it must keep."""

    name: str
    pod: Pod
    container: Container
    target: Path
    has_own_cpu: bool
    eids: dict[str, set[str]]
    own: set[int] = field(default_factory=set)
    is_settled: bool = False  # nri-qos may be away when a container starts; once it has been right it must stay so

    @property
    def marker(self) -> Path:
        return self.target / "name"

    def keeps_attachment(self) -> bool:
        links = Path(f"/proc/{self.pod.pid}/net/dev").read_text()
        return bool(self.eids) and eids_in(self.pod) == self.eids and " ub0:" in links

    def keeps_volume(self) -> bool:
        """Both ends of the mount: kubelet's, and the container's, whose process still writes to it."""
        inner = Path(f"/proc/{self.container.pid}/root/data/name")
        return str(self.target) in mount_points() and inner.read_text() == self.name == self.marker.read_text()

    def keeps_qos(self, own: set[int]) -> bool:
        """``own`` are the CPUs of the pod that has its own."""
        if self.has_own_cpu:
            has = cpus(self.container.knob("cpuset.cpus"))
            self.own = self.own or has
            return len(has) == 1 and has == self.own
        is_offline = self.container.knob("cpu.weight") == "1" and bool(self.container.knob("cpuset.cpus"))
        return is_offline and not own & cpus(self.container.knob("cpuset.cpus.effective"))
