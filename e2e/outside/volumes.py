"""Volumes of a pair of guests, led from here: each has its driver, and programs that use what is published there."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from e2e.__main__ import INSIDE_ENV
from e2e.channel import Running
from e2e.machine import Machine
from e2e.outside.conftest import ADDRESSES, join

PROGRAM = ("python3", "-m", "e2e.inside.storage")
PEERS = ",".join(f"node{number}={address}" for number, address in enumerate(ADDRESSES))
PATIENCE_S = 300
Pair = tuple[Machine, Machine]


@dataclass(frozen=True)
class Volume:
    """A volume, and what each node's pod has of it."""

    ident: str
    context: str

    def on(self, node: Machine, verb: str) -> str:
        return storage(node, verb, self.ident, self.context)

    def publish(self, node: Machine) -> Path:
        return Path(self.on(node, "publish"))

    def condition(self, node: Machine) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.on(node, "condition"))
        return found


def refusal(node: Machine, *arguments: str) -> str:
    """Return why a call of the driver was refused, as it must be."""
    done = node.run(*PROGRAM, *arguments, env=INSIDE_ENV, timeout_s=PATIENCE_S)
    assert done.exit != 0, f"{node.spec.name}: {arguments} was not refused"
    return done.stderr.decode(errors="replace")


def storage(node: Machine, *arguments: str) -> str:
    done = node.run(*PROGRAM, *arguments, env=INSIDE_ENV, timeout_s=PATIENCE_S)
    assert done.exit == 0, f"{node.spec.name}: {arguments}: {done.stderr.decode(errors='replace')[-3000:]}"
    return done.text.strip()


def start_driver(node: Machine, **config: object) -> Running:
    """Start the driver of a node, with more keys for its configuration; calls wait until it listens."""
    node.shell("mkdir -p /tmp/results")
    driver = shlex.join((*PROGRAM, "driver", node.spec.name, PEERS, json.dumps(config)))
    return node.start_command("sh", "-c", f"exec {driver} >>/tmp/results/csi.log 2>&1", env=INSIDE_ENV)


def create(node: Machine, name: str, *parameters: str) -> Volume:
    return Volume(*storage(node, "create", name, *parameters).split(" ", 1))


def cut(node: Machine) -> None:
    """Pull the plug of a node and switch it on again; its driver is not started yet."""
    node.reset()
    join(node, ADDRESSES[int(node.spec.name[-1])])
