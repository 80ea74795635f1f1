"""A drill: pods come and go on an installed node while something is done to it; what they lost by it is counted.

    python3 -m e2e.inside.drill kills 20 180        20 pods at a time, 180 seconds; prints one JSON report

Every pod has a UB device from the kubelet, a volume of its own, and an offline container. The first pod has a CPU of
its own instead, and like every fourth it stays to the end; the others live for seconds. Each is looked at about once
a second, and once more before it is removed. What a kubelet repeats is repeated, and counted: a call that found the
runtime or the driver away, a pod that found no device plugin. Nothing else is forgiven.
"""

import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc
from ubproto.csi.v1 import csi_pb2 as csi_pb
from ubproto.runtime.v1 import runtime_pb2 as pb

from e2e.inside import csi
from e2e.inside.cri import CALL_S, Container, Pod, Runtime, import_images
from e2e.inside.disturb import DISTURBANCES, older_release
from e2e.inside.host import RESOURCE, ROOT, Belongings, admit, eids_in
from e2e.inside.installed import CSI_SOCKET, UNITS, installed, journal, systemctl
from e2e.inside.living import Living, Tally
from e2e.inside.network import BRIDGE, write_conflist
from e2e.inside.programs import RESULTS, mount_points, wait_until
from e2e.inside.test_qos import CLASS, HALF, NUMA, ONE_OWN
from ubsim.kubelet import Kubelet, Rejected

STARTING_AT_ONCE = 4
PATIENCE_S = 240.0  # for what the kubelet would repeat for ever
LIVES_S = (5.0, 20.0)
KUBELET = Path("/var/lib/kubelet")
T = TypeVar("T")
REPEATED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED)


class Drill:
    def __init__(self, kubelet: Kubelet, node: csi.Node, volumes: list[csi_pb.Volume]) -> None:
        self.tally = Tally()
        self.runtime = Runtime()
        self._kubelet = kubelet
        self._node = node
        self._volumes = volumes
        self._admitting = threading.Lock()  # a kubelet admits one pod after another
        self._starting = threading.Semaphore(STARTING_AT_ONCE)
        self._stopping = threading.Event()
        self._own: set[int] = set()

    @contextlib.contextmanager
    def pods_come_and_go(self) -> Iterator[None]:
        """Keep a pod in each slot while the block runs; all are gone after it."""
        slots = [threading.Thread(target=self._fill, args=(slot,)) for slot in range(len(self._volumes))]
        for slot in slots:
            slot.start()
        try:
            everyone = "every slot has a pod"
            wait_until(lambda: self.tally.started >= len(slots) or bool(self.tally.failed), everyone, 60 * len(slots))
            yield
        finally:
            self._stopping.set()
            for slot in slots:
                slot.join()

    def _fill(self, slot: int) -> None:
        number = 0
        while not self._stopping.is_set() or not number:
            number += 1
            name = f"pod{slot}-{number}"
            try:
                self._live(name, slot)
            except Exception as error:
                say(f"{name} failed: {error}")
                self.tally.failed.append(f"{name}: {error}")
                return

    def _live(self, name: str, slot: int) -> None:
        volume = self._volumes[slot]
        with self._starting:
            self._repeat("no device plugin", lambda: self._admit(name))
            target = self._repeat("CSI", lambda: self._node.publish(volume, name))
            (target / "name").write_text(name)
            pod, container = self._repeat("CRI", lambda: self._start(name, target, has_own_cpu=slot == 0), name)
        living = Living(name, pod, container, target, slot == 0, eids_in(pod))
        self.tally.add(started=1)
        say(f"{name} runs")
        stays = slot % 4 == 0
        leaves = time.monotonic() + random.uniform(*LIVES_S)
        while not self._stopping.wait(1) and (stays or time.monotonic() < leaves):
            self._look(living)
        self._look_last(living)
        self._repeat("CRI", lambda: self.runtime.remove_pod(pod))
        self._repeat("CSI", lambda: self._node.unpublish(volume, name))
        self._kubelet.remove(f"default/{name}")
        self.tally.add(removed=1)

    def _admit(self, name: str) -> None:
        with self._admitting:
            admit(self._kubelet, name)

    def _start(self, name: str, target: Path, *, has_own_cpu: bool) -> tuple[Pod, Container]:
        resources = ONE_OWN if has_own_cpu else HALF
        notes = {CLASS: "HLS", NUMA: "single-numa-node"} if has_own_cpu else {CLASS: "BE"}
        pod = self.runtime.run_pod(name, annotations=notes, resources=resources)
        beat = "while :; do date >/data/beat || exit 1; sleep 5; done"
        return pod, self.runtime.run_container(pod, "sh", "-c", beat, mounts={target: "/data"}, resources=resources)

    def _look(self, living: Living) -> None:
        self.tally.add(looks=1)
        with self._counts_as_lost("attachment", living):
            assert living.keeps_attachment()
        with self._counts_as_lost("volume", living):
            assert living.keeps_volume()
        is_right = False
        with self._counts_as_lost("qos", living):
            is_right = living.keeps_qos(self._own)
            assert is_right or not living.is_settled
        living.is_settled = living.is_settled or is_right
        if living.has_own_cpu:
            self._own = living.own

    @contextlib.contextmanager
    def _counts_as_lost(self, what: str, living: Living) -> Iterator[None]:
        try:
            yield
        except (AssertionError, OSError) as error:
            self.tally.lose(what, f"{living.name}: {str(error) or 'not as it was'}")

    def _look_last(self, living: Living) -> None:
        """Before it goes a container must have what its class promises, even if nri-qos was away at its start."""

        def has_settled() -> bool:
            self._look(living)
            return living.is_settled

        try:
            wait_until(has_settled, f"{living.name} has what its class promises", PATIENCE_S)
        except AssertionError as error:
            self.tally.lose("qos", str(error))

    def _repeat(self, what: str, call: Callable[[], T], name: str = "") -> T:
        """Call until it works, as long as the other side is away. A pod that was started half is removed before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except (Rejected, grpc.RpcError) as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                is_away = isinstance(error, Rejected) or code in REPEATED
                if not is_away or time.monotonic() > deadline:
                    raise
                why = f"{what}: {code.name}" if code else what
                self.tally.repeat(why)
                say(f"{why} {name}")
            time.sleep(1)
            if name:
                self._repeat(what, lambda: self._sweep(name))

    def _sweep(self, name: str) -> None:
        """Remove sandboxes of a pod whose start was cut off: the runtime may have made one and not told."""
        request = pb.ListPodSandboxRequest()
        found = self.runtime.stub.ListPodSandbox(request, timeout=CALL_S, wait_for_ready=True)
        for sandbox in (each for each in found.items if each.metadata.name == name):
            self.runtime.forget_pod(sandbox.id)
            self.runtime.pods.pop(sandbox.id, None)


@contextlib.contextmanager
def volumes_for(count: int) -> Iterator[list[csi_pb.Volume]]:
    """Create a volume for each slot, as the cluster's provisioner does, and delete them at the end."""
    with csi.provisioner("node0") as provisioner:
        volumes = [provisioner.create(f"claim{number}") for number in range(count)]
        yield volumes
        for volume in volumes:
            provisioner.delete(volume)


@contextlib.contextmanager
def kubelet_with(devices: int) -> Iterator[Kubelet]:
    kubelet = Kubelet(ROOT / "var/lib/kubelet")
    kubelet.start()
    try:
        kubelet.wait_for(RESOURCE, healthy=devices, timeout_s=120)
        yield kubelet
    finally:
        kubelet.stop()


def run(kind: str, count: int, seconds: float) -> dict[str, object]:
    import_images()
    write_conflist(BRIDGE, {"type": "ub-cni"})
    with (
        installed(count, older_release()),
        kubelet_with(count) as kubelet,
        grpc.insecure_channel(CSI_SOCKET) as channel,
        volumes_for(count) as volumes,
    ):
        wait_until(lambda: "synchronized with the runtime" in journal("nri-qos.service"), "nri-qos is registered")
        drill = Drill(kubelet, csi.Node("node0", KUBELET, channel), volumes)
        drill.runtime.wait_until_ready()
        before = Belongings.now()
        started = time.monotonic()
        say("the node is ready")
        with drill.pods_come_and_go():
            say("every slot has a pod")
            done = DISTURBANCES[kind](seconds, drill)
            say(f"disturbed: {dict(done)}")
        leaked = Belongings.now().differs_from(before)
        tally = drill.tally
        return {
            "drill": kind,
            "seconds": round(time.monotonic() - started),
            "pods": count,
            "disturbances": done,
            "started": tally.started,
            "removed": tally.removed,
            "looks": tally.looks,
            "repeated": dict(tally.repeated),
            "failed": tally.failed,
            "lost": tally.lost,
            "leaked": [*leaked, *(f"mount {point}" for point in mount_points() if point.startswith(f"{KUBELET}/"))],
            "not running": [unit for unit in UNITS if systemctl("is-active", unit) != "active"],
        }


def say(what: str) -> None:
    print(f"{time.strftime('%T')} {what}", flush=True)


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))), flush=True)
