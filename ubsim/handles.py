"""A running super-node in the hands of a test or of the command line.

with running(Path("two-nodes.yaml"), tmp_path / "sim") as supernode:
    node = supernode["node0"]
    node.fail("expose", errno="EPERM")
    subprocess.run(["ub-cni"], env={**os.environ, **node.environ})
    assert node.log()[-1]["outcome"] == "EPERM"
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ubhost.roots import Roots
from ubsim import control, record, supernode


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """One simulated node. ``netns`` is the path of its own namespace, ``None`` if it lives in that of ``up``."""

    name: str
    root: Path
    netns: str | None = None

    @property
    def roots(self) -> Roots:
        return Roots(self.root)

    @property
    def environ(self) -> Mapping[str, str]:
        """What a program needs to take the node for its host."""
        return {"UB_ROOT": str(self.root)}

    def order(self, do: str, **what: object) -> dict[str, Any]:
        """Give the node an order, see ``ubsim.control``.

        Raises:
            InvalidRequest: it cannot do that.
            Unsupported: its daemon is dead.
        """
        return control.order(self.root / "run" / "ubsim" / "control.sock", {"do": do, **what})

    def status(self) -> dict[str, Any]:
        return self.order("status")

    def log(self) -> list[dict[str, Any]]:
        """Return what happened, oldest first: ``{time, operation, device, detail, outcome}``."""
        events: list[dict[str, Any]] = self.order("log")["log"]
        return events

    def fail(self, operation: str, errno: str, **how: object) -> None:
        """Let the next call of ``operation`` fail; ``how``: device, skip, count, when (before|after)."""
        self.order("fail", operation=operation, errno=errno, **how)

    def lose_eid(self, device: str, index: int) -> None:
        """The fabric takes the EID in slot ``index`` of kernel device ``device`` back."""
        self.order("eid", device=device, index=index)

    def restore_eid(self, device: str, index: int) -> None:
        self.order("eid", device=device, index=index, lost=False)

    def stop_ubse(self) -> None:
        self.order("ubse", up=False)

    def start_ubse(self) -> None:
        self.order("ubse", up=True)

    def delay(self, operation: str, seconds: float, **how: object) -> None:
        self.order("fail", operation=operation, delay_s=seconds, **how)


@dataclass(frozen=True, slots=True)
class SuperNodeHandle:
    folder: Path
    nodes: Mapping[str, NodeHandle]

    def __getitem__(self, name: str) -> NodeHandle:
        return self.nodes[name]

    def happen(self, do: str, **what: object) -> None:
        """Let something happen that every node must know of: port, link, plug, unplug, health, borrow, return, share …

        Raises:
            InvalidRequest: it cannot happen, and has happened nowhere.
        """
        control.broadcast(self.folder, self.nodes, {"do": do, **what})


def handle(folder: Path) -> SuperNodeHandle:
    """Return the super-node that is up below ``folder``.

    Raises:
        UbError: none is.
    """
    running = supernode.required(folder)
    nodes = {}
    for name in running.nodes:
        nodes[name] = NodeHandle(name, record.root_of(folder.absolute(), name), running.namespaces.get(name))
    return SuperNodeHandle(folder, nodes)


@contextmanager
def running(scenario: Path, folder: Path) -> Iterator[SuperNodeHandle]:
    """Bring ``scenario`` up below ``folder`` for the body, and take it down whatever happens."""
    supernode.up(scenario, folder)
    try:
        yield handle(folder)
    finally:
        supernode.down(folder)
