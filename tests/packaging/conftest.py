"""What the tests of the built executables share."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ub-cni", "ub-agent", "ub-csi", "nri-qos", "ubnode")

Run = Callable[..., subprocess.CompletedProcess[str]]


def git(*arguments: str) -> str:
    """The output of git in the repository, whoever owns it."""
    safe = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": str(ROOT)}
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, env={**os.environ, **safe}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="session")
def bundle() -> Path:
    built = ROOT / "dist" / "ub-node"
    if not (built / "_internal" / "VERSION").exists():
        pytest.fail(f"{built} is missing: run make build")
    return built


@pytest.fixture(scope="session")
def release(bundle: Path) -> dict[str, Path]:
    subprocess.run([sys.executable, ROOT / "packaging" / "release.py"], check=True, capture_output=True)
    sums = (ROOT / "dist" / "SHA256SUMS").read_text().split()
    return {name: ROOT / "dist" / name for name in sums[1::2]}


@pytest.fixture
def run(bundle: Path, tmp_path: Path) -> Run:
    """Run an executable of the bundle to its end, on an empty host, with only the given environment."""

    def run(
        program: str, *arguments: str | Path, environ: Mapping[str, str] | None = None, stdin: str | bytes = ""
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [bundle / program, *arguments],
            input=data,
            env={"UB_ROOT": str(tmp_path), **(environ or {})},
            capture_output=True,
            timeout=20,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
