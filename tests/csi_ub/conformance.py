"""csi-sanity, the conformance suite of the field, against every kind of pool that this machine can make.

usage: python -m tests.csi_ub.conformance

The tool comes by ``e2e/install-go-tools``; without Go it says so and stops. Runs as root. At the end it tells how many
checks passed with one kind of pool at least, and names those that none reached: they need what we do not offer.
"""

import json
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


def run(binary: Path, folder: Path, config: dict[str, object], access: str) -> dict[str, str]:
    """Run the suite against one driver, on volumes that are a ``mount`` or a ``block`` device.

    Returns:
        The outcome of each check (passed, failed, skipped, pending).
    """
    parameters = folder / "parameters.yaml"
    parameters.write_text("type: block\n" if access == "block" else "{}\n")
    driver, report = Driver.start(folder, "node0", config=config), folder / "report.json"
    try:
        subprocess.run(
            [
                binary,
                *("--csi.endpoint", f"unix://{driver.socket}"),
                *("--csi.mountdir", folder / "mount"),
                *("--csi.stagingdir", folder / "staging"),
                *("--csi.testvolumeaccesstype", access, "--csi.testvolumeparameters", parameters),
                *("--csi.testvolumesize", str(SIZE), "--csi.testvolumeexpandsize", str(LARGER)),
                *("--ginkgo.no-color", "--ginkgo.succinct", "--ginkgo.json-report", report),
            ],
            check=False,
        )
    finally:
        driver.stop()
    (suite,) = json.loads(report.read_text())
    return {
        " ".join([*each["ContainerHierarchyTexts"], each["LeafNodeText"]]): each["State"]
        for each in suite["SpecReports"]
        if each["LeafNodeType"] == "It"
    }


def main() -> int:
    binary = tool()
    outcomes: dict[str, set[str]] = {}
    rounds: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("dir", "mount", {}),
        ("btrfs", "mount", {}),
        ("dir", "mount", {"fencing": True}),
        ("dir", "block", {}),
        ("btrfs", "block", {}),
    )
    for kind, access, more in rounds:
        with tempfile.TemporaryDirectory(prefix="ub-csi-") as name:
            folder = Path(name)
            path = folder / "pool"
            path.mkdir()
            try:
                if kind == "btrfs":
                    make_btrfs(folder / "image", path)
                sys.stdout.write(f"--- pool of type {kind}, access by {access} {more or ''}\n")
                sys.stdout.flush()
                config = {"pools": [{"name": "p", "type": kind, "path": str(path)}], **more}
                for check, outcome in run(binary, folder, config, access).items():
                    outcomes.setdefault(check, set()).add(outcome)
            finally:
                unmount_below(folder)
    failed = [check for check, seen in outcomes.items() if seen - {"passed", "skipped", "pending"}]
    unreached = [check for check, seen in outcomes.items() if "passed" not in seen]
    passed = len(outcomes) - len({*failed, *unreached})
    counts = f"{len(outcomes)} checks: {passed} passed, {len(failed)} failed, {len(unreached)} not reached"
    sys.stdout.write("\n  ".join([f"\n{counts}", *unreached]) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
