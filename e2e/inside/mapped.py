"""What a pod does with the folder of a memory volume: maps the device that its manifest names, as the manifest says.

    python3 -m e2e.inside.mapped store FOLDER PLACE TEXT
    python3 -m e2e.inside.mapped load FOLDER PLACE LENGTH         prints the text
    python3 -m e2e.inside.mapped dirty FOLDER                     prints how many bytes are not zero
    python3 -m e2e.inside.mapped rally FOLDER FIRST|SECOND TIMES  answer one another, each number once
    python3 -m e2e.inside.mapped hold DEVICE SIZE                 map it, close it, print "mapped", wait to be killed

The first four print nothing else.
"""

import ctypes
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

RALLY_S = 120.0
PART = 1 << 20
BALL = struct.Struct("Q")


def mapped(folder: str) -> mmap.mmap:
    told = json.loads((Path(folder) / "manifest.json").read_text())
    (device,) = told["devices"]
    assert told["mmap_flags"] == ["MAP_SHARED"]
    assert device["size"] % device["align"] == 0
    descriptor = os.open(Path(folder) / device["path"], sum(getattr(os, flag) for flag in told["open_flags"]))
    return mmap.mmap(descriptor, device["size"], mmap.MAP_SHARED)


def store(folder: str, place: str, text: str) -> None:
    mapped(folder)[int(place) : int(place) + len(text)] = text.encode()


def load(folder: str, place: str, length: str) -> None:
    print(mapped(folder)[int(place) : int(place) + int(length)].decode(errors="replace"))


def dirty(folder: str) -> None:
    memory = mapped(folder)
    parts = (memory[at : at + PART] for at in range(0, len(memory), PART))
    print(sum(len(part) - part.count(0) for part in parts))


def rally(folder: str, who: str, times: str) -> None:
    """Wait for the other's number, and store the same in a place of our own, on another cache line."""
    memory = mapped(folder)
    mine, theirs, is_first = (4096, 8192, True) if who == "FIRST" else (8192, 4096, False)
    until = time.monotonic() + RALLY_S
    for number in range(1, int(times) + 1):
        if is_first:
            BALL.pack_into(memory, mine, number)
        while BALL.unpack_from(memory, theirs)[0] != number:
            assert time.monotonic() < until, f"number {number} never came"
        if not is_first:
            BALL.pack_into(memory, mine, number)


def hold(device: str, size: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    descriptor = os.open(device, os.O_RDWR)
    place = libc.mmap(None, int(size), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    assert place != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    os.close(descriptor)  # from here on only the mapping is left
    print("mapped", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {each.__name__: each for each in (store, load, dirty, rally, hold)}
    verbs[verb](*arguments)
