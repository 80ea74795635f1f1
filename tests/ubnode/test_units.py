"""The systemd units: read without complaint, and hardened as far as their work allows."""

import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from ubnode.install.layout import FILES, UNIT_OF

UNITS = sorted(UNIT_OF.values())
# Options that give a unit a mount namespace of its own, from which no mount reaches the host. Source: systemd.exec(5).
OWN_MOUNTS = (
    "ProtectSystem", "ProtectHome", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
    "ProtectControlGroups", "ProtectProc", "ProtectHostname", "PrivateTmp", "PrivateDevices", "PrivateMounts",
    "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "BindPaths", "TemporaryFileSystem", "RootDirectory",
)  # fmt: skip


def service(unit: str) -> dict[str, str]:
    parser = RawConfigParser(strict=False, delimiters="=", comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FILES / unit)
    return dict(parser["Service"])


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


def test_nri_qos_has_no_capability() -> None:
    assert service("nri-qos.service")["CapabilityBoundingSet"] == ""


def test_data_daemons_outlive_the_driver() -> None:
    assert service("ub-csi.service")["KillMode"] == "process"


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_daemon_knows_of_running_pods_outlives_it(unit: str) -> None:
    assert service(unit)["RuntimeDirectoryPreserve"] == "yes"
    assert service(unit)["Restart"] == "always"
