"""csi-sanity, the conformance suite of the field, against every kind of pool that this machine can make.

usage: python -m tests.csi_ub.conformance

The tool comes by ``e2e/install-go-tools``; without Go it says so and stops. Runs as root.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.csi_ub.driver import REPO, Driver
from tests.csi_ub.pools import make_btrfs, unmount_below

SIZE, LARGER = 10 << 20, 20 << 20  # bytes


def tool() -> Path:
    """Return the suite's executable, installed if it is not there; exits when there is no Go."""
    done = subprocess.run([REPO / "e2e/install-go-tools", "csi-sanity"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return Path(done.stdout.strip())


def run(binary: Path, folder: Path, config: dict[str, object]) -> int:
    """Run the suite against one driver; return its exit code."""
    driver = Driver.start(folder, "node0", config=config)
    try:
        return subprocess.run(
            [
                binary,
                *("--csi.endpoint", f"unix://{driver.socket}"),
                *("--csi.mountdir", folder / "mount"),
                *("--csi.stagingdir", folder / "staging"),
                *("--csi.testvolumesize", str(SIZE), "--csi.testvolumeexpandsize", str(LARGER)),
                *("--ginkgo.no-color", "--ginkgo.succinct"),
            ],
            check=False,
        ).returncode
    finally:
        driver.stop()


def main() -> int:
    binary = tool()
    failed = 0
    for kind, more in (("dir", {}), ("btrfs", {}), ("dir", {"fencing": True})):
        with tempfile.TemporaryDirectory(prefix="ub-csi-") as name:
            folder = Path(name)
            path = folder / "pool"
            path.mkdir()
            try:
                if kind == "btrfs":
                    make_btrfs(folder / "image", path)
                sys.stdout.write(f"--- pool of type {kind} {more or ''}\n")
                sys.stdout.flush()
                failed |= run(binary, folder, {"pools": [{"name": "p", "type": kind, "path": str(path)}], **more})
            finally:
                unmount_below(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
