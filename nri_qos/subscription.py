"""What we ask of a runtime, by its version. Pure.

Source: reference/nri.md sections 1.4 to 1.6 and 5 (A4, A22).
"""

import re

from ubproto.nri.v1alpha1 import nri_pb2

SAFE_CONTAINERD = (1, 7, 16)  # containerd issue 10085


def events(nri_version: str) -> int:
    """Return the mask of events we want of a runtime that speaks ``nri_version`` ("" before 0.12).

    A runtime drops a plugin that asks for a bit it does not know, so what came after 0.9 is asked for only where the
    runtime tells its version. Each event costs every pod on the node a call: nothing is asked for that is not used.
    """
    wanted = [
        nri_pb2.RUN_POD_SANDBOX,
        nri_pb2.STOP_POD_SANDBOX,
        nri_pb2.REMOVE_POD_SANDBOX,
        nri_pb2.CREATE_CONTAINER,
        nri_pb2.POST_START_CONTAINER,
        nri_pb2.UPDATE_CONTAINER,
        nri_pb2.POST_UPDATE_CONTAINER,
        nri_pb2.STOP_CONTAINER,
        nri_pb2.REMOVE_CONTAINER,
    ]
    if _is_at_least(nri_version, 0, 10):
        wanted.append(nri_pb2.UPDATE_POD_SANDBOX)
    return sum(1 << event - 1 for event in wanted)


def can_hang(runtime: str, version: str) -> bool:
    """Whether it is a containerd that can hang when a plugin registers while a container starts."""
    return runtime == "containerd" and not _is_at_least(version, *SAFE_CONTAINERD)


def _is_at_least(version: str, *wanted: int) -> bool:
    """Whether ``v1.7.24~ds1`` or the like is ``wanted`` or later; what is no version is not."""
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", version, re.ASCII)
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= wanted
