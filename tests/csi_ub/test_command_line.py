"""Wrong arguments and configurations end in one line on stderr and a code: 2 for usage, 1 for failure."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("config", "naming"),
    [
        ("pools: [{name: a}]", "$.pools[0].path"),
        ("pools: [{name: a, path: relative}]", "relative"),
        ("pools: [{name: a, path: /x, type: zfs}]", "zfs"),
        ("pools: [{name: a, path: /x}, {name: a, path: /y}]", "given twice"),
        ("pools: [{name: '../a', path: /x}]", "../a"),
        ("pol: []\npeers: 3", "$.pol"),
        ("log_level: loud", "loud"),
        ("{", "not YAML"),
    ],
)
def test_a_wrong_configuration_is_named(csi_command: Run, tmp_path: Path, config: str, naming: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    result = csi_command("--endpoint", f"unix://{tmp_path}/s", "--node-id", "n", "--config", str(file))
    assert result.returncode == 2
    assert naming in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [("tcp://localhost:1", 2), ("unix://relative", 2), ("", 2), ("unix:///" + "x" * 200, 2), ("unix:///proc/x/s", 1)],
)
def test_a_wrong_endpoint_is_named(csi_command: Run, tmp_path: Path, endpoint: str, code: int) -> None:
    result = csi_command("--endpoint", endpoint, "--node-id", "n", env={"UB_ROOT": str(tmp_path)})
    assert result.returncode == code
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_in_the_place_of_the_socket_stays(csi_command: Run, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")
    result = csi_command("--endpoint", f"unix://{file}", "--node-id", "n", env={"UB_ROOT": str(tmp_path)})
    assert result.returncode == 1
    assert "not a socket" in result.stderr
    assert file.read_text() == "data"


def test_a_missing_pool_is_a_failure_with_its_name(csi_command: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"pools: [{{name: gold, path: {tmp_path}/missing}}]")
    result = csi_command("--endpoint", f"unix://{tmp_path}/s", "--node-id", "n", "--config", str(file))
    assert result.returncode == 1
    assert "gold" in result.stderr


def test_usage_and_version(csi_command: Run) -> None:
    assert csi_command("--help").returncode == 0
    assert csi_command("--version").stdout.startswith("ub-csi ")
    missing = csi_command("--endpoint", "unix:///tmp/x")
    assert missing.returncode == 2
    assert "--node-id" in missing.stderr
