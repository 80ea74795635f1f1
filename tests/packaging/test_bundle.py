"""What is in the bundle: all that is needed, nothing of the machine it was built on, and not too much."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging.conftest import PROGRAMS, ROOT

pytestmark = pytest.mark.binary

COMPRESSED_LIMIT = 60 * 2**20  # bytes


def test_the_five_executables_lie_side_by_side_over_their_folders(bundle: Path) -> None:
    assert sorted(entry.name for entry in bundle.iterdir()) == sorted([*PROGRAMS, "_internal", "_shim"])


def test_the_bundle_is_small_enough_to_ship(bundle: Path, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        tar.add(bundle, "ub-node")
    assert archive.stat().st_size <= COMPRESSED_LIMIT


def test_nothing_in_the_bundle_names_the_source_tree_it_was_built_from(bundle: Path) -> None:
    files = [file for file in bundle.rglob("*") if file.is_file()]
    assert [file for file in files if str(ROOT).encode() in file.read_bytes()] == []


def test_no_library_is_searched_for_outside_the_bundle_and_the_system(bundle: Path) -> None:
    for library in [file for file in bundle.rglob("*") if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]:
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        paths = [line for line in dynamic.splitlines() if "RPATH" in line or "RUNPATH" in line]
        assert all("[$ORIGIN" in line for line in paths), library


def test_a_second_build_of_the_same_sources_does_nothing() -> None:
    built = (ROOT / "dist" / "ub-node" / "_internal" / "STAMP").stat().st_mtime_ns
    done = subprocess.run([sys.executable, ROOT / "packaging" / "build.py"], capture_output=True, text=True, check=True)
    assert "up to date" in done.stdout
    assert (ROOT / "dist" / "ub-node" / "_internal" / "STAMP").stat().st_mtime_ns == built
