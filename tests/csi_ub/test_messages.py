"""What people read when a call fails: words about their volume, never a piece of the program.

Requests are made at random: what would do, with a few fields set to other values that a driver can meet.
"""

import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from ubproto.csi.v1 import csi_pb2 as csi
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub.model import new_id
from tests.csi_ub.driver import Driver, capability
from ubhost.kernel import loop

_OF_THE_PROGRAM = re.compile(
    r"<[a-zA-Z_.]+|\b[A-Z]\w*\(| object at |\b(None|True|False)\b|[\[({]'|set\(|PosixPath|Traceback|Errno"
)
_MAPS: dict[str, dict[str, Sequence[str]]] = {
    "parameters": {
        "type": ("filesystem", "model", "memory", "block", "x"),
        "consistency": ("strong", "eventual", "close-to-open", "x"),
        "maxStaleness": ("5s", "7s", "x"),
        "replicas": ("1", "3", "x"),
        "pool": ("default", "x"),
        "engine": ("bind", "glusterfs", "nfs", "syncthing", "ub-shm", "dax", "x"),
        "writers": ("multi", "single"),
        "switchPolicy": ("all-ready", "per-node"),
    },
    "mutable_parameters": {"maxStaleness": ("5s", "x"), "consistency": ("strong", "eventual", "x"), "y": ("x",)},
    "volume_context": {
        "owner": ("node0", "node1"),
        "engine": ("bind", "glusterfs", "nfs", "syncthing", "ub-shm", "dax", "x"),
        "type": ("filesystem", "model", "block", "x"),
        "consistency": ("strong", "eventual", "x"),
        "path": ("/", "x", "/nowhere"),
        "port": ("24100", "x"),
        "served": ("/nowhere", "x"),
        "maxStaleness": ("5s", "x"),
        "switchPolicy": ("per-node", "x"),
        "csi.storage.k8s.io/ephemeral": ("true",),
        "size": ("1Mi", "x"),
        "model": ("x",),
    },
    "publish_context": {"node": ("node0", "x")},
    "segments": {"topology.unifiedbus.com/node": ("node0", "x")},
    "secrets": {"key": ("a secret",)},
}


class Requests:
    """Makes requests that would do, from ``good`` values by the name of a field, and spoils them with ``others``."""

    def __init__(self, seed: int, good: dict[str, Any], others: dict[str, list[str]]) -> None:
        self.random = random.Random(seed)
        self.good, self.others = good, others

    def make(self, kind: type[Message]) -> Message:
        """Return a request of which up to three fields are not as they should be."""
        names = kind.DESCRIPTOR.fields_by_name
        request = kind(**{name: value for name, value in self.good.items() if name in names})
        for _ in range(self.random.choice([0, 1, 1, 2, 3])):
            self._spoil(request)
        return request

    def _spoil(self, message: Any) -> None:
        if not message.DESCRIPTOR.fields:
            return
        field = self.random.choice(message.DESCRIPTOR.fields)
        value = getattr(message, field.name)
        if field.name in _MAPS:
            key = self.random.choice(list(_MAPS[field.name]))
            value[key] = self.random.choice(_MAPS[field.name][key])
        elif self.random.random() < 0.2:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = (value[0] if len(value) else value.add()) if field.is_repeated else value
            inner.SetInParent()
            self._spoil(inner)
        elif field.is_repeated:
            value.append(self._scalar(field))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.random.choice(self.others.get(field.name, ["", "x"]))
        if field.enum_type is not None:
            return self.random.choice([each.number for each in field.enum_type.values] + [99])
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.random.random() < 0.5
        return self.random.choice([0, 1, -1, 1 << 20, 2 << 20, 1 << 62] if "bytes" in field.name else [0, 1, -1])


@pytest.mark.kernel
@pytest.mark.parametrize(("seed", "kind"), [(0, "filesystem"), (1, "filesystem"), (2, "filesystem"), (3, "block")])
def test_no_refusal_shows_a_piece_of_the_program_and_none_is_a_bug(
    driver: Driver, tmp_path: Path, seed: int, kind: str
) -> None:
    if kind == "block" and not os.access("/dev/loop-control", os.W_OK):
        pytest.skip("loop devices need the machine's own root")
    folder = tmp_path / "kubelet"
    (folder / "full").mkdir(parents=True)
    (folder / "full/file").touch()
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("empty")
    use, parameters = capability(block=kind == "block"), {"type": kind}
    made = [
        csi.CreateVolumeRequest(
            name=name,
            volume_capabilities=[use],
            parameters=parameters,
            capacity_range=csi.CapacityRange(required_bytes=1 << 20),
        )
        for name in ("a", "b")
    ]
    volumes = [driver.controller.CreateVolume(request).volume for request in made]
    snapshot = csi.CreateSnapshotRequest(name="s", source_volume_id=volumes[0].volume_id)
    snapshot_id = driver.controller.CreateSnapshot(snapshot).snapshot.snapshot_id
    paths = ["", "/", "x", *(str(folder / name) for name in ("empty", "link", "full", "full/file", "new"))]
    ids = [*(each.volume_id for each in volumes), snapshot_id, new_id("ub", "node1"), new_id("us", "node0"), "x", ""]
    good = {
        "name": "a",
        "node_id": "node0",
        "volume_id": volumes[0].volume_id,
        "volume_context": volumes[0].volume_context,
        "volume_capability": use,
        "volume_capabilities": [use],
        "parameters": parameters,
        "capacity_range": csi.CapacityRange(required_bytes=1 << 20),
        "source_volume_id": volumes[0].volume_id,
        "source_volume_ids": [each.volume_id for each in volumes],
        "snapshot_id": snapshot_id,
        **{name: str(folder / name) for name in ("staging_target_path", "target_path")},
        "volume_path": str(folder / "target_path"),
    }
    others = {
        "name": ["a", "b", "c", "s"],
        "node_id": ["node1", ""],
        "mount_flags": ["ro", "noexec", "x"],
        "volume_mount_group": ["", "1000", "x"],
        **dict.fromkeys(
            ("volume_id", "source_volume_id", "source_volume_ids", "snapshot_id", "group_snapshot_id"), ids
        ),
        **dict.fromkeys(("staging_target_path", "target_path", "volume_path"), paths),
    }
    (folder / "staging_target_path").mkdir()
    requests, refusals = Requests(seed, good, others), set()
    calls = [each for name in ("Controller", "GroupController", "Node") for each in _methods(name, driver.channel)]
    for _ in range(600):
        message, call = requests.random.choice(calls)
        request = requests.make(message)
        try:
            call(request)
        except grpc.RpcError as caught:
            error: Any = caught
            refusals.add((error.code(), error.details()))
            assert error.code() not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (request, error.details())
            assert not _OF_THE_PROGRAM.search(error.details()), (request, error.details())
    assert len(refusals) > 50  # or the requests were all alike
    for device in loop.all_attached():
        if device.name[:48] in ids:
            loop.detach(device.number)


def _methods(service: str, channel: grpc.Channel) -> list[tuple[type[Message], Callable[[Any], Any]]]:
    stub = getattr(csi_pb2_grpc, f"{service}Stub")(channel)
    methods = csi.DESCRIPTOR.services_by_name[service].methods
    return [(getattr(csi, method.input_type.name), getattr(stub, method.name)) for method in methods]
