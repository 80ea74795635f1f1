"""Make what is handed out, from dist/ub-node/: a reproducible archive, its SBOM, and their checksums.

dist/ub-node-<version>-linux-<arch>.tar.gz    the bundle; two builds of one commit are equal byte by byte
dist/ub-node-<version>-linux-<arch>.cdx.json  software bill of materials, CycloneDX 1.6
dist/SHA256SUMS
"""

import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PyInstaller.archive.readers import CArchiveReader

from build import BUNDLE, PROGRAMS, ROOT, SOURCES, git, version

DIST = ROOT / "dist"
NOT_SHIPPED = {"ub-node-plugins", "pyinstaller", "pyinstaller-hooks-contrib", "setuptools", "pip"}


def main() -> int:
    subprocess.run([sys.executable, ROOT / "packaging" / "build.py"], check=True)
    release = version().partition("+")[0]
    name = f"ub-node-{release}-linux-{platform.machine()}"
    archive, bill = DIST / f"{name}.tar.gz", DIST / f"{name}.cdx.json"
    archive.write_bytes(packed(BUNDLE, f"ub-node-{release}"))
    bill.write_text(json.dumps(bill_of_materials(release), indent=1) + "\n", encoding="utf-8")
    made = (archive, bill, *linux_packages(release))
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in made)
    (DIST / "SHA256SUMS").write_text(sums, encoding="ascii")
    print(
        f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 2**20:.1f} MiB, glibc >= {glibc_floor()}\n{sums}",
        end="",
    )
    return 0


def commit_time() -> int:
    """The time of the last commit that went into the bundle, Unix seconds."""
    return int(git("log", "-1", "--format=%ct", "--", *SOURCES) or 0)


def linux_packages(release: str) -> list[Path]:
    """The .deb and the .rpm, made by nfpm; none where there is no Go."""
    found = subprocess.run([ROOT / "e2e" / "install-go-tools", "nfpm"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        print("no .deb and no .rpm: they are made by nfpm, which Go installs")
        return []
    machine = platform.machine()
    environment = {
        **os.environ,
        "VERSION": release,
        "ARCH": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "GLIBC": glibc_floor(),
        "SOURCE_DATE_EPOCH": str(commit_time()),
    }
    made = []
    for kind in ("deb", "rpm"):
        for older in DIST.glob(f"*.{kind}"):
            older.unlink()
        command = [found.stdout.strip(), "package", "--config", ROOT / "packaging/linux/nfpm.yaml", "--packager", kind]
        subprocess.run([*command, "--target", DIST], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        made += DIST.glob(f"*.{kind}")
    return made


def packed(folder: Path, name: str) -> bytes:
    """A tar.gz with nothing of this machine or hour: sorted names, root's, the time of the last commit."""
    moment = commit_time()

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = moment, 0, 0, "root", "root"
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    out = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=9, mtime=moment) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            tar.add(path, Path(name, path.relative_to(folder)), recursive=False, filter=plain)
    return out.getvalue()


def glibc_floor() -> str:
    """The newest version of glibc's symbols that any part of the bundle asks for: no older glibc will do."""
    asked = set()
    for file in elf_files():
        table = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
        asked |= set(re.findall(r"\(?GLIBC_(\d+)\.(\d+)", table))
    major, minor = max((int(major), int(minor)) for major, minor in asked)
    return f"{major}.{minor}"


def elf_files() -> Iterator[Path]:
    for file in sorted(BUNDLE.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.open("rb").read(4) == b"\x7fELF":
            yield file


def bill_of_materials(release: str) -> dict[str, Any]:
    """What the bundle is made of, by looking into it: packages by the modules inside, libraries by their files."""
    component = {"type": "application", "name": "ub-node", "version": release, "bom-ref": f"ub-node@{release}"}
    python = {"type": "application", "name": "python", "version": platform.python_version()}
    python["purl"] = f"pkg:generic/python@{platform.python_version()}"
    bootloader = described("pyinstaller") | {"name": "pyinstaller bootloader"}  # the head of each executable
    parts = [python, bootloader, *python_packages(), *libraries()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": component,
            "properties": [
                {"name": "ub-node:commit", "value": version().partition("+")[2]},
                {"name": "ub-node:glibc", "value": glibc_floor()},
            ],
        },
        "components": parts,
    }


def python_packages() -> list[dict[str, Any]]:
    """The distributions whose modules are in any executable's archive, or beside them."""
    modules = {entry.name.split(".")[0] for entry in (BUNDLE / "_internal").iterdir()}
    for program in PROGRAMS:
        archive = CArchiveReader(str(BUNDLE / program))
        for name, entry in archive.toc.items():
            if entry[4] == "z":  # the archive of pure modules inside
                modules |= {module.split(".")[0] for module in archive.open_embedded_archive(name).toc}
    owners = importlib.metadata.packages_distributions()
    found = {owner for module in modules for owner in owners.get(module, ())}
    return [described(name) for name in sorted(found, key=str.lower) if name.lower() not in NOT_SHIPPED]


def described(name: str) -> dict[str, Any]:
    about = importlib.metadata.metadata(name)
    declared = [about[key] for key in ("License-Expression", "License") if key in about]
    expression = declared[0] if declared else ""
    part: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": about["Version"],
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{about['Version']}",
    }
    if expression and "\n" not in expression:
        part["licenses"] = [{"license": {"name": expression}}]
    return part


def libraries() -> list[dict[str, Any]]:
    """Shared libraries of the build machine's system, with the package they come from where dpkg knows it."""
    parts = []
    for file in sorted((BUNDLE / "_internal").glob("*.so*")):
        if file.name.startswith("libpython"):
            continue  # Python itself, listed as such
        found = subprocess.run(["dpkg-query", "-S", f"*/{file.name}"], capture_output=True, text=True, check=False)
        package = found.stdout.partition(":")[0]
        part: dict[str, Any] = {
            "type": "library",
            "name": file.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}],
        }
        if found.returncode == 0 and package:
            wanted = ["dpkg-query", "-W", "-f", "${source:Package} ${Version}\n", package]
            source, _, package_version = (
                subprocess.run(wanted, capture_output=True, text=True, check=True).stdout.splitlines()[0].partition(" ")
            )
            part |= {
                "version": package_version,
                "purl": f"pkg:deb/debian/{package}@{package_version}?upstream={source}",
            }
        parts.append(part)
    return parts


if __name__ == "__main__":
    sys.exit(main())
