"""What tests of a simulated node share."""

from collections.abc import Callable

from ubhost.errors import UbError

NewPod = Callable[[str], int]
SHARED = {"name": "shared", "sharing": "shared", "nodes": [{"name": "node0"}]}


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except UbError:
        return False
    return True
