"""Ids of devices as kubelet knows them.

An exclusive device goes by its own name, ``urma_1``. A shared one is offered several times, since kubelet gives one
id to one container: ``urma_1::0``, ``urma_1::1`` …
"""

MAX = 63  # characters, kubelet's limit
_SEPARATOR = "::"


def replica(device: str, number: int) -> str:
    return f"{device}{_SEPARATOR}{number}"


def device_of(allocated: str) -> str:
    """Return the name of the device that kubelet's id means."""
    return allocated.partition(_SEPARATOR)[0]
