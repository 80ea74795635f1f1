"""What is handed out: an archive that two builds make alike, and a bill of materials that names what is inside."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import PROGRAMS, ROOT, git

pytestmark = pytest.mark.binary

GLIBC = (2, 41)  # of Debian 13, the newest system that we build on


@pytest.fixture(scope="module")
def bill(release: dict[str, Path]) -> Any:
    [file] = [file for file in release.values() if file.name.endswith(".cdx.json")]
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def archive(release: dict[str, Path]) -> Path:
    [file] = [file for file in release.values() if file.name.endswith(".tar.gz")]
    return file


def test_the_checksums_are_those_of_the_files(release: dict[str, Path]) -> None:
    for line in (ROOT / "dist" / "SHA256SUMS").read_text().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256((ROOT / "dist" / name).read_bytes()).hexdigest() == checksum


def test_the_archive_knows_neither_user_nor_hour(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries} == {(0, 0, "root")}
    assert len({entry.mtime for entry in entries}) == 1
    assert [entry.name for entry in entries] == sorted(
        (entry.name for entry in entries), key=lambda name: Path(name).parts
    )
    assert {entry.mode for entry in entries} <= {0o755, 0o644}


def test_the_archive_unpacks_to_a_working_bundle(archive: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    [folder] = tmp_path.iterdir()
    for program in PROGRAMS:
        done = subprocess.run([folder / program, "--version"], env={}, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{program} ")


def test_the_bill_names_what_the_executables_import(bill: Any) -> None:
    parts = {part["name"]: part for part in bill["components"]}
    assert {"python", "pyinstaller bootloader", "grpcio", "protobuf", "msgspec", "PyYAML"} <= parts.keys()
    assert parts["grpcio"]["purl"].startswith("pkg:pypi/grpcio@")
    assert not {"pytest", "mypy", "ruff"} & parts.keys()


def test_the_bill_names_every_shared_library_beside_the_executables(bill: Any, bundle: Path) -> None:
    named = {part["name"] for part in bill["components"]}
    beside = {file.name for file in (bundle / "_internal").glob("*.so*") if not file.name.startswith("libpython")}
    assert beside <= named


def test_no_newer_glibc_is_asked_for_than_the_documentation_says(bill: Any) -> None:
    [asked] = [item["value"] for item in bill["metadata"]["properties"] if item["name"] == "ub-node:glibc"]
    assert tuple(int(part) for part in asked.split(".")) <= GLIBC


def test_two_releases_of_one_commit_are_equal_byte_by_byte(tmp_path: Path) -> None:
    """The bundle, its archive, its bill, the packages: from two folders with names of different length."""
    if "CI" not in os.environ:
        pytest.skip("takes two builds: set CI=true to run it")
    made, source = [], ROOT
    for name in ("one", "another-folder"):
        copy = tmp_path / name
        git("clone", "--quiet", str(source), str(copy))
        source = copy  # the same commit, whatever is committed meanwhile
        subprocess.run([sys.executable, copy / "packaging" / "release.py"], check=True, capture_output=True)
        files = sorted(file for file in (copy / "dist").rglob("*") if file.is_file())
        made.append({file.relative_to(copy): hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
    assert made[0] == made[1]
