"""Stand-ins of LVM: thin volumes are sparse files on loop devices, so mkfs, mount and resize2fs are the real ones.

They are as strict as the programs of lvm2 2.03 (options, exit codes, messages), and warn on stderr at every call as
those do where a descriptor is inherited. A snapshot holds the file system of its origin still while it is copied.
"""

import json
import subprocess
from pathlib import Path

from tests.csi_ub.lvm_programs import GROUP, PROGRAMS, STDIN

_SYS_RESOURCE = 24  # capability, linux/capability.h
_SCRIPT = Path(__file__).with_name("lvm_programs.py")


def stand_in(folder: Path, size: int = 2 << 30) -> Path:
    """Make the programs, and a volume group with a thin pool of ``size`` bytes; return the folder for PATH."""
    home, programs = folder / "lvm", folder / "lvm-bin"
    (home / "dev").mkdir(parents=True)
    programs.mkdir()
    (home / "state.json").write_text(json.dumps({"size": size, "metadata": "3.21", "lvs": {}}))
    for name in (*PROGRAMS, *(() if can_grow() else ("resize2fs",))):
        call = f'exec python3 -IS {_SCRIPT} {home} {name} "$@" {STDIN}<&0 </dev/null'
        (programs / name).write_text(f"#!/bin/sh\n{call}\n")
        (programs / name).chmod(0o755)
    return programs


def can_grow() -> bool:
    """Whether we may enlarge a mounted ext4: else a stand-in writes the new size on the disk, and there is no more."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (mask,) = (line.split()[1] for line in status if line.startswith("CapEff:"))
    return bool(int(mask, 16) >> _SYS_RESOURCE & 1)


def thin_volumes(folder: Path) -> dict[str, int]:
    """Return the names and sizes of all thin volumes."""
    found: dict[str, int] = json.loads((folder / "lvm/state.json").read_text())["lvs"]
    return found


def set_metadata(folder: Path, percent: str) -> None:
    file = folder / "lvm/state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"metadata": percent}))


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / "lvm-bin" / program, *arguments], capture_output=True, text=True, check=False)


def reboot(folder: Path) -> None:
    """Leave the thin volumes as a boot that activates none: whoever has them mounted must have let go."""
    for name in thin_volumes(folder):
        done = run(folder, "lvchange", "-an", f"{GROUP}/{name}")
        assert done.returncode == 0, done.stderr


def take_away(folder: Path) -> None:
    """Free the loop devices, whatever became of the test."""
    for link in (folder / "lvm/dev").glob("*"):
        subprocess.run(["losetup", "-d", link.resolve()], check=False)
