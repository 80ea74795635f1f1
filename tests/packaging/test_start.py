"""How the built executables start: fast, from anywhere, on a hardened host, and without a trace."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.packaging.conftest import PROGRAMS, ROOT, Run

VERSION = {"CNI_COMMAND": "VERSION"}
BUDGET = 2.5  # times bare Python: 20 ms where that takes 8 ms (design, section 11)
SLOW = (
    "json",
    "re",
    "enum",
    "socket",
    "dataclasses",
    "typing",
    "ctypes",
    "argparse",
    "logging",
    "asyncio",
    "grpc",
    "pyroute2",
)


def milliseconds(*command: str | Path) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=VERSION, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1000


@pytest.mark.binary
def test_the_cni_executable_starts_within_its_budget(bundle: Path) -> None:
    bare = (Path(sys.executable).resolve(), "-I", "-S", "-c", "pass")
    pairs = [
        (milliseconds(*bare), milliseconds(bundle / "ub-cni")) for _ in range(31)
    ]  # by turns: same weather for both
    ratio = statistics.median(ours / python for python, ours in pairs)
    assert ratio <= BUDGET


def test_the_cni_executable_imports_nothing_slow_to_answer_version() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        "from cni_ub.shim import main; main(print, []); print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, ROOT],
        env=VERSION,
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {name.split(".")[0] for name in done.stderr.split()}
    assert not imported & set(SLOW)
    assert len(imported) <= 24


@pytest.mark.binary
def test_the_executables_start_through_a_symlink(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "ub-cni").symlink_to(bundle / "ub-cni")
    (tmp_path / "bin").symlink_to(tmp_path)
    done = subprocess.run(
        [tmp_path / "bin" / "ub-cni"], env=VERSION, capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    assert b"supportedVersions" in done.stdout


@pytest.mark.binary
def test_the_bundle_can_be_moved(bundle: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(bundle, tmp_path / "elsewhere", symlinks=True)
    for program in ("ub-cni", "nri-qos"):
        subprocess.run([moved / program, "--version"], env={}, check=True, capture_output=True)


@pytest.mark.binary
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_read_only_root_and_a_tmp_without_exec_are_enough(bundle: Path, program: str) -> None:
    script = """
        set -e
        mount --bind "$0" /mnt  # the bundle itself may lie in /tmp
        mount -t tmpfs -o noexec,nosuid,nodev none /tmp
        mount -o remount,bind,ro /
        ! touch /touched 2>/dev/null
        exec "/mnt/$1" --version
    """
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(bundle), program]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.binary
def test_a_killed_executable_leaves_nothing_behind(bundle: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = {"TMPDIR": str(temporary), "CNI_COMMAND": "ADD", "UB_ROOT": str(tmp_path / "host")}
    environ |= {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/proc/self/ns/net", "CNI_IFNAME": "ub0", "CNI_PATH": "/nowhere"}
    with subprocess.Popen(
        [bundle / "ub-cni"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        time.sleep(0.2)  # it waits for its configuration
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "host").exists()


@pytest.mark.binary
def test_another_frozen_program_may_start_ours(run: Run) -> None:
    foreign = {
        "_PYI_ARCHIVE_FILE": "/opt/other/other",
        "_PYI_APPLICATION_HOME_DIR": "/tmp/_MEIabc",
        "LD_LIBRARY_PATH": "/tmp/_MEIabc",
    }
    done = run("ub-cni", environ={**VERSION, **foreign, "_PYI_PARENT_PROCESS_LEVEL": "1"})
    assert "supportedVersions" in done.stdout
