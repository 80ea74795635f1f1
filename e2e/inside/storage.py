"""The driver of this node, and programs that use its volumes, from the command line of a guest.

    python3 -m e2e.inside.storage driver NODE PEERS [KEYS]        run ub-csi; PEERS: NODE=ADDRESS,…; KEYS: more, in JSON
    python3 -m e2e.inside.storage create NAME KEY=VALUE…          prints ID CONTEXT, the volume for the verbs below
    python3 -m e2e.inside.storage publish|unpublish|delete|condition ID CONTEXT
    python3 -m e2e.inside.storage count FILE TIMES       add 1 to the number in FILE, TIMES, each time under flock
    python3 -m e2e.inside.storage append FILE TAG        append lines until killed; prints those that are on the disk

``publish`` prints the folder that a pod gets.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2 as pb
from ubproto.csi.v1 import csi_pb2_grpc as rpc

from e2e.inside.csi import CALL_S, Node
from e2e.inside.programs import BUNDLE

SOCKET = "/run/ub-csi.sock"
CONFIG = Path("/etc/ub-csi.yaml")
KEY = Path("/etc/ub-csi.key")
POD = "0a1b"
STEP_S = 0.05


def driver(name: str, peers: str, more: str = "{}") -> None:
    KEY.unlink(missing_ok=True)
    KEY.write_text("the same on both nodes, as it must be" + "\n")
    KEY.chmod(0o400)
    known = [dict(zip(("node", "address"), peer.split("="), strict=True)) for peer in peers.split(",")]
    CONFIG.write_text(json.dumps({"peers": known, "peer_key_file": str(KEY), **json.loads(more)}))
    command = ("ub-csi", "--mode", "all", "--endpoint", f"unix://{SOCKET}", "--node-id", name, "--config", str(CONFIG))
    os.execve(BUNDLE / "ub-csi", command, {**os.environ, "PYTHONPATH": "", "UB_ROOT": "/"})


def node() -> Node:
    channel = grpc.insecure_channel(f"unix://{SOCKET}")
    rpc.IdentityStub(channel).Probe(pb.ProbeRequest(), timeout=CALL_S, wait_for_ready=True)
    return Node("", Path("/var/lib/kubelet"), channel)


def create(name: str, *parameters: str) -> None:
    made = node().create(name, **dict(word.split("=", 1) for word in parameters))
    print(made.volume_id, json.dumps(dict(made.volume_context)))


def volume(ident: str, context: str) -> pb.Volume:
    return pb.Volume(volume_id=ident, volume_context=json.loads(context))


def publish(*given: str) -> None:
    print(node().publish(volume(*given), POD))


def unpublish(*given: str) -> None:
    node().unpublish(volume(*given), POD)


def delete(*given: str) -> None:
    node().delete(volume(*given))


def condition(*given: str) -> None:
    here, of = node(), volume(*given)
    request = pb.NodeGetVolumeStatsRequest(volume_id=of.volume_id, volume_path=str(here.target(of, POD)))
    said = rpc.NodeStub(here.channel).NodeGetVolumeStats(request, timeout=CALL_S).volume_condition
    print(json.dumps({"abnormal": said.abnormal, "message": said.message}))


def count(file: str, times: str) -> None:
    for _ in range(int(times)):
        with Path(file).open("r+", buffering=1) as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            number = int(counter.read())
            time.sleep(STEP_S)  # whoever is not kept out reads the same number now
            counter.seek(0)
            counter.write(str(number + 1))


def append(file: str, tag: str) -> None:
    with Path(file).open("ab", buffering=0) as log:
        for number in range(1_000_000):
            line = f"{tag}{number}"
            try:
                log.write(f"{line}\n".encode())
                os.fsync(log.fileno())
                print(line, flush=True)
            except OSError as error:
                print(f"error {error.errno}", flush=True)
            time.sleep(STEP_S)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {
        each.__name__: each for each in (driver, create, publish, unpublish, delete, condition, count, append)
    }
    verbs[verb](*arguments)
