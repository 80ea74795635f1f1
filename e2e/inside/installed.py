"""An installed release on this node: hardened units that systemd runs, as a platform engineer has them.

The agent's UB host is simulated, all else is the node's own: a drop-in of the unit says so.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.inside.host import ROOT, simulated_host
from e2e.inside.programs import BUNDLE, wait_until

UNITS = ("ub-agent.service", "ub-csi.service", "nri-qos.service")
CSI_SOCKET = "unix:///var/lib/kubelet/plugins/csi-ub.unifiedbus.com/csi.sock"
DROP_IN = Path("/run/systemd/system/ub-agent.service.d/simulated.conf")


def ubnode(*arguments: str, bundle: Path = BUNDLE) -> str:
    """Return what the command line of a bundle says about this node itself."""
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run([bundle / "ubnode", *arguments], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def journal(unit: str) -> str:
    return subprocess.run(["journalctl", "-u", unit, "-o", "cat"], capture_output=True, text=True, check=True).stdout


def main_pid(unit: str) -> int:
    return int(systemctl("show", "-P", "MainPID", unit))


def restarts(unit: str) -> int:
    """Return how often systemd had to start a unit again by itself."""
    return int(systemctl("show", "-P", "NRestarts", unit))


def newer_bundle(folder: Path) -> Path:
    """Make ``folder`` a copy of the bundle that calls itself version 99.0.0; return it."""
    if not folder.exists():
        shutil.copytree(BUNDLE, folder, symlinks=True)
        (folder / "_internal" / "VERSION").write_text("99.0.0\n")
    return folder


@contextmanager
def installed(devices: int, bundle: Path = BUNDLE) -> Iterator[None]:
    """Install all components of a bundle, with so many URMA devices to hand out; at the end, take all off again."""
    with simulated_host(devices), release(bundle):
        yield


@contextmanager
def release(bundle: Path = BUNDLE) -> Iterator[None]:
    """Install all components on the host that is there; at the end, take all off again."""
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(f"[Service]\nEnvironment=UB_ROOT={ROOT}\n")
    ubnode("install", "cni", "agent", "csi", "nri", bundle=bundle)
    try:
        wait_until((ROOT / "run/ub-node/agent.sock").exists, "the agent listens")
        yield
    finally:  # the next drill on this node begins without it
        subprocess.run([BUNDLE / "ubnode", "uninstall", "--force", "--purge"], capture_output=True, check=False)
    shutil.rmtree(DROP_IN.parent)
