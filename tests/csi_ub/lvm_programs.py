"""The programs of LVM that ``tests.csi_ub.lvm`` stands in for.

usage: lvm_programs.py HOME PROGRAM ARGUMENT...
"""

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

GROUP, POOL, EXTENT = "vg0", "thin", 4 << 20
STDIN = 9  # where its stdin is: that of Python must not be a directory
_FREEZE, _THAW = 0xC0045877, 0xC0045878
_WRONG_USAGE, _FAILED = 3, 5


def fail(text: str, code: int = _FAILED) -> NoReturn:
    sys.stderr.write(f"  {text}\n")
    sys.exit(code)


class Options:
    """What is given to a program; an option that it does not have ends it."""

    def __init__(self, words: list[str], *, values: str = "", flags: str = "") -> None:
        self.of: dict[str, str] = {}
        rest, left = [], list(words)
        while left:
            word = left.pop(0)
            if word in values.split() and left:
                self.of[word] = left.pop(0)
            elif word in flags.split():
                self.of[word] = ""
            elif word.startswith("-"):
                fail(f"unrecognized option '{word}'\n  Error during parsing of command line.", _WRONG_USAGE)
            else:
                rest.append(word)
        self.place = " ".join(rest)

    def size(self, option: str) -> int:
        match = re.fullmatch(r"([0-9]+)([bs])", self.of[option])
        size = int(match[1]) * (512 if match[2] == "s" else 1) if match else 1
        if size % 512:
            fail(f"Size is not a multiple of 512.\n  Invalid argument for {option}: {self.of[option]}", _WRONG_USAGE)
        return -(-size // EXTENT) * EXTENT


class Group:
    """The volume group: sparse files and, for those that are active, loop devices."""

    def __init__(self, home: Path, state: dict[str, Any]) -> None:
        self.home, self.state = home, state
        self.lvs: dict[str, int] = state["lvs"]

    def image(self, name: str) -> Path:
        return self.home / f"{name}.img"

    def link(self, name: str) -> Path:
        return self.home / f"dev/{GROUP}-{name.replace('-', '--')}"

    def used(self) -> float:
        return sum(self.image(name).stat().st_blocks * 512 for name in self.lvs) / int(self.state["size"])

    def known(self, place: str) -> str:
        group, _, name = place.partition("/")
        if group != GROUP or name not in self.lvs:
            fail(f'Failed to find logical volume "{place}"')
        return name

    def activate(self, name: str) -> None:
        if not self.link(name).is_symlink():
            command = ["losetup", "-f", "--show", str(self.image(name))]
            self.link(name).symlink_to(subprocess.run(command, check=True, stdout=-1, text=True).stdout.strip())

    def deactivate(self, name: str) -> None:
        if self.mounted(name):
            fail(f"Logical volume {GROUP}/{name} contains a filesystem in use.")
        if self.link(name).is_symlink():
            subprocess.run(["losetup", "-d", self.link(name).resolve()], check=True)
            self.link(name).unlink()

    def mounted(self, name: str) -> str | None:
        if not self.link(name).is_symlink():
            return None
        device = self.link(name).stat().st_rdev
        rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return next((row[4] for row in rows if row[2] == f"{os.major(device)}:{os.minor(device)}"), None)

    def add(self, name: str, size: int) -> None:
        if not re.fullmatch(r"[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]*", name):
            fail(f'Logical volume name "{name}" is invalid.', _WRONG_USAGE)
        if name in self.lvs:
            fail(f'Logical Volume "{name}" already exists in volume group "{GROUP}"')
        if self.used() >= 1:
            fail(f"Free space in pool {GROUP}/{POOL} is above threshold, new volumes are not allowed.")
        self.lvs[name] = size


def lvs(group: Group, words: list[str]) -> None:
    given = Options(words, values="--reportformat --units -o -S", flags="--nosuffix")
    if given.place != GROUP:
        fail(f'Volume group "{given.place}" not found\n  Cannot process volume group {given.place}')
    form = (given.of["--reportformat"], given.of["--units"], "--nosuffix" in given.of)
    assert form == ("json", "b", True), "else it is no JSON of bytes"
    match = re.fullmatch(r'lv_name="([^"]*)"', given.of["-S"])
    assert match, given.of["-S"]
    name, row, columns = match[1], {}, given.of["-o"].split(",")
    if name in group.lvs:
        row = {"lv_size": group.lvs[name], "lv_attr": "Vwi-aotz--", "data_percent": "", "metadata_percent": ""}
        row["lv_active"] = "active" if group.link(name).is_symlink() else ""
    elif name in (POOL, "plain"):
        row = {"lv_size": group.state["size"], "lv_attr": "twi-aotz--" if name == POOL else "-wi-a-----"}
        row |= {"data_percent": f"{group.used() * 100:.2f}", "metadata_percent": group.state["metadata"]}
        row["lv_active"] = "active"
    every = row | {"lv_name": name, "lv_dm_path": group.link(name), "vg_extent_size": EXTENT} if row else {}
    found = [{column: str(every[column]) for column in columns}] if every else []
    sys.stdout.write(json.dumps({"report": [{"lv": found}], "log": []}, indent=2))


def lvcreate(group: Group, words: list[str]) -> None:
    if "-s" in words:
        given = Options(words, values="-n --addtag", flags="-s -kn -ay")
        origin, name = group.known(given.place), given.of["-n"]
        group.add(name, group.lvs[origin])
        copy(group, origin, name)
        if {"-kn", "-ay"} <= set(given.of):
            group.activate(name)
        return
    given = Options(words, values="-n --addtag -V --thinpool", flags="-y")
    if (given.of["--thinpool"], given.place) != (POOL, GROUP):
        fail(f"Pool LV {given.of['--thinpool']} not found in {given.place}")
    name, size = given.of["-n"], given.size("-V")
    group.add(name, size)
    with group.image(name).open("wb") as out:
        out.truncate(size)
    group.activate(name)


def copy(group: Group, origin: str, name: str) -> None:
    command, point = ["cp", "--sparse=always", str(group.image(origin)), str(group.image(name))], group.mounted(origin)
    if point is None:
        subprocess.run(command, check=True)
        return
    folder = os.open(point, os.O_RDONLY)
    fcntl.ioctl(folder, _FREEZE, 0)
    try:
        subprocess.run(command, check=True)
    finally:
        fcntl.ioctl(folder, _THAW, 0)


def lvextend(group: Group, words: list[str]) -> None:
    given = Options(words, values="-L")
    name, size = group.known(given.place), given.size("-L")
    if size <= group.lvs[name]:
        fail("New size given not larger than existing size.")
    os.truncate(group.image(name), size)
    group.lvs[name] = size
    if group.link(name).is_symlink():
        subprocess.run(["losetup", "-c", group.link(name).resolve()], check=True)


def lvchange(group: Group, words: list[str]) -> None:
    given = Options(words, flags="-ay -an -K")
    name = group.known(given.place)
    group.activate(name) if "-ay" in given.of else group.deactivate(name)


def lvremove(group: Group, words: list[str]) -> None:
    name = group.known(Options(words, flags="-y").place)
    group.deactivate(name)
    group.image(name).unlink()
    del group.lvs[name]


def resize2fs(_: Group, words: list[str]) -> None:
    """Write what it would have written: the number of blocks."""
    device = Options(words).place
    descriptor = os.open(device, os.O_RDWR)
    if struct.unpack("<H", os.pread(descriptor, 2, 1024 + 0x38))[0] != 0xEF53:
        fail(f"resize2fs: Bad magic number in super-block while trying to open {device}", 1)
    os.pwrite(descriptor, struct.pack("<I", os.lseek(descriptor, 0, os.SEEK_END) // 4096), 1024 + 0x04)
    os.fsync(descriptor)
    os.close(descriptor)


PROGRAMS: dict[str, Callable[[Group, list[str]], None]] = {
    each.__name__: each for each in (lvs, lvcreate, lvextend, lvchange, lvremove)
}


def main(home: Path, program: str, words: list[str]) -> None:
    for first, last in ((3, STDIN), (STDIN + 1, 256)):
        os.closerange(first, last)  # as LVM does with all but the three that every program has
    sys.stderr.write("  WARNING: a warning that is not part of any report\n")
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads((home / "state.json").read_text())
        (PROGRAMS | {"resize2fs": resize2fs})[program](Group(home, state), words)
        (home / "new").write_text(json.dumps(state))
        shutil.move(home / "new", home / "state.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
