"""The systemd units: read without complaint, and hardened as far as their work allows."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from ubnode.install.layout import FILES, UNIT_OF

ROOT = Path(__file__).parents[2]
UNITS = sorted(UNIT_OF.values())
# Options that give a unit a mount namespace of its own, from which no mount reaches the host. Source: systemd.exec(5).
OWN_MOUNTS = (
    "ProtectSystem", "ProtectHome", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
    "ProtectControlGroups", "ProtectProc", "ProtectHostname", "PrivateTmp", "PrivateDevices", "PrivateMounts",
    "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "BindPaths", "TemporaryFileSystem", "RootDirectory",
)  # fmt: skip


def service(unit: str) -> dict[str, str]:
    return section(unit, "Service")


def section(unit: str, name: str) -> dict[str, str]:
    parser = RawConfigParser(strict=False, delimiters="=", comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FILES / unit)
    return dict(parser[name])


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    text = (FILES / unit).read_text().replace("/opt/ub-node/current/", "/bin/true ")  # a program that is there
    (tmp_path / unit).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if unit in line]
    assert complaints == []


@pytest.mark.parametrize("unit", ["ub-agent.service", "ub-csi.service"])
def test_mounts_of_the_agent_and_the_driver_reach_the_host(unit: str) -> None:
    assert [option for option in OWN_MOUNTS if option in service(unit)] == []


@pytest.mark.parametrize("unit", UNITS)
def test_no_unit_can_load_modules_or_set_the_clock_or_gain_privileges(unit: str) -> None:
    capabilities = set(service(unit)["CapabilityBoundingSet"].split())
    assert not capabilities & {
        "CAP_SYS_MODULE",
        "CAP_SYS_TIME",
        "CAP_SYS_BOOT",
        "CAP_SYS_RAWIO",
        "CAP_BPF",
        "CAP_SYSLOG",
    }
    assert service(unit)["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize("unit", UNITS)
def test_no_unit_can_make_calls_that_none_of_them_needs(unit: str) -> None:
    """The capability is one bound, the filter another: it holds for programs that a daemon starts, too."""
    allowed = service(unit)["SystemCallFilter"]
    assert allowed == "@system-service" or {"@module", "@clock", "@reboot", "@raw-io", "@debug", "@swap"} <= set(
        allowed.removeprefix("~").split()
    )
    assert "RestrictAddressFamilies" in service(unit)
    assert "RestrictNamespaces" in service(unit)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_that_cannot_start_is_tried_again_for_ever_and_comes_before_the_pods_at_boot(unit: str) -> None:
    """By default systemd gives up after five starts in ten seconds, and the node stays without its plugin."""
    assert section(unit, "Unit")["StartLimitIntervalSec"] == "0"
    assert section(unit, "Unit")["Before"] == "kubelet.service"


def test_nri_qos_has_no_capability() -> None:
    assert service("nri-qos.service")["CapabilityBoundingSet"] == ""


def test_data_daemons_outlive_the_driver() -> None:
    assert service("ub-csi.service")["KillMode"] == "process"


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_daemon_knows_of_running_pods_outlives_it(unit: str) -> None:
    assert service(unit)["RuntimeDirectoryPreserve"] == "yes"
    assert service(unit)["Restart"] == "always"


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_waits_until_a_daemon_is_ready_and_restarts_one_that_hangs(unit: str) -> None:
    assert service(unit)["Type"] == "notify"
    assert int(service(unit)["WatchdogSec"]) >= 10
    assert "NotifyAccess" not in service(unit)  # main, by default: no child speaks for the daemon


DAEMONS = {
    "ub-agent.service": ("ub-agent", "cni_ub.agent", "--config", "CONFIG"),
    "ub-csi.service": ("ub-csi", "csi_ub", "--endpoint", "unix://FOLDER/s", "--node-id", "a", "--config", "CONFIG"),
    "nri-qos.service": ("nri-qos", "nri_qos", "--socket", "FOLDER/nri.sock", "--config", "CONFIG"),
}


@pytest.mark.parametrize("unit", UNITS)
def test_each_daemon_says_when_it_is_ready_that_it_is_well_and_that_it_stops(unit: str, tmp_path: Path) -> None:
    """On an empty host: no device, no runtime. A daemon that waits for its peer is ready, or no node would come up."""
    program, module, *arguments = DAEMONS[unit]
    root, config, address = tmp_path / "root", tmp_path / "config.yaml", f"@ub-notify-{os.getpid()}-{program}"
    root.mkdir()
    config.write_text("log_level: debug\n")
    places = {"FOLDER": str(tmp_path), "CONFIG": str(config)}
    told = [re.sub("FOLDER|CONFIG", lambda found: places[found[0]], argument) for argument in arguments]
    folder = os.environ.get("UB_BIN_DIR")
    command = [str(Path(folder, program))] if folder else [sys.executable, "-m", module]
    environ = {**os.environ, "UB_ROOT": str(root), "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
    environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'proto'}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "log").open("w") as log:
        manager.bind("\0" + address[1:])
        with subprocess.Popen([*command, *told], env=environ, stderr=log, stdout=log) as daemon:
            try:
                wait_for("READY=1", manager, daemon)
                wait_for("WATCHDOG=1", manager, daemon)
                daemon.terminate()
                wait_for("STOPPING=1", manager, daemon)
                assert daemon.wait(60) == 0
            finally:
                daemon.kill()


def wait_for(state: str, manager: socket.socket, daemon: subprocess.Popen[bytes]) -> None:
    manager.settimeout(1)
    for _ in range(120):
        with contextlib.suppress(TimeoutError):
            while True:
                if state in manager.recv(4096).decode().splitlines():
                    return
        assert daemon.poll() is None, f"{daemon.args!r} ended without {state}"
    pytest.fail(f"{daemon.args!r} did not say {state} in two minutes")
