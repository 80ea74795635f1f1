"""A kubelet's calls to the driver of this node, one a run, for tests that lead several guests from outside.

usage: csicall.py create NAME [KEY=VALUE ...]    prints the volume as JSON: its id and context
       csicall.py publish JSON POD               prints the folder that the pod mounts
       csicall.py unpublish JSON POD
       csicall.py delete JSON

The driver listens at ``SOCKET``; whoever leads starts it.
"""

import json
import sys
from pathlib import Path

import grpc
from ubproto.csi.v1 import csi_pb2 as pb

from e2e.inside.csi import Node

SOCKET = "/run/ub-e2e-csi.sock"
KUBELET = Path("/var/lib/ub-e2e/kubelet")


def main(verb: str, *arguments: str) -> str:
    """Make one call; return what is to be printed."""
    with grpc.insecure_channel(f"unix://{SOCKET}") as channel:
        node = Node("", KUBELET, channel)
        if verb == "create":
            name, *pairs = arguments
            made = node.create(name, **dict(pair.split("=", 1) for pair in pairs))
            return json.dumps({"volume_id": made.volume_id, "volume_context": dict(made.volume_context)})
        volume = pb.Volume(**json.loads(arguments[0]))
        if verb == "publish":
            return str(node.publish(volume, arguments[1]))
        if verb == "unpublish":
            node.unpublish(volume, arguments[1])
        else:
            node.delete(volume)
        return ""


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
