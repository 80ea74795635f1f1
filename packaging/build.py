"""Build dist/ub-node/: the five executables over _internal and, for ub-cni, _shim, by PyInstaller.

Does nothing when nothing changed: a stamp in the bundle holds the hash of everything that goes into it. The new
bundle is made aside and renamed into place, so whoever looks sees a whole one.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ubhost", "ubsim", "ubnode", "cni_ub", "csi_ub", "nri_qos")
SOURCES = (*PACKAGES, "proto", "packaging/entry", "packaging/ub-node.spec", "packaging/build.py", "requirements.lock")
PROGRAMS = ("ub-cni", "ub-agent", "ub-csi", "nri-qos", "ubnode")
WORK = ROOT / "build"
BUNDLE = ROOT / "dist" / "ub-node"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build dist/ub-node/ if anything changed.")
    parser.add_argument("--force", action="store_true", help="build even if nothing changed")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would mix their work files
        stamp = sources_hash()
        if not options.force and built_stamp() == stamp:
            print(f"{BUNDLE.relative_to(ROOT)} is up to date: {version()}")
            return 0
        made = run_pyinstaller()
        drop_library_paths(made)
        for contents in ("_internal", "_shim"):
            (made / contents / "VERSION").write_text(f"{version()}\n", encoding="ascii")
        (made / "_internal" / "STAMP").write_text(f"{stamp}\n", encoding="ascii")
        refuse_broken(made)
        put_in_place(made)
    size = sum(file.stat().st_size for file in BUNDLE.rglob("*") if file.is_file())
    print(f"{BUNDLE.relative_to(ROOT)}: {', '.join(PROGRAMS)}; {version()}; {size / 2**20:.0f} MiB")
    return 0


def source_files() -> Iterator[Path]:
    for source in SOURCES:
        path = ROOT / source
        yield from sorted(path.rglob("*")) if path.is_dir() else [path]


def sources_hash() -> str:
    """Hash of the names and contents of all that goes into the bundle, and of the interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    for file in source_files():
        if file.is_file() and "__pycache__" not in file.parts:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(ROOT)}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def built_stamp() -> str | None:
    try:
        return (BUNDLE / "_internal" / "STAMP").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None


def version() -> str:
    """The version in pyproject.toml, with the last commit of the sources and whether they differ from it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = str(tomllib.load(file)["project"]["version"])
    commit = git("log", "-1", "--format=%h", "--abbrev=10", "--", *SOURCES)
    if not commit:
        return declared
    return f"{declared}+g{commit}{'.dirty' if git('status', '--porcelain', '--', *SOURCES) else ''}"


def git(*arguments: str) -> str | None:
    """The output of git, or None where there is no git or no repository (a source archive)."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def run_pyinstaller() -> Path:
    """Return the folder of the new bundle. Two builds of the same sources give the same bytes."""
    commit_time = git("log", "-1", "--format=%ct", "--", *SOURCES) or "0"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": commit_time,
    }
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    folders = [f"--distpath={WORK / 'dist'}", f"--workpath={WORK / 'work'}"]
    shutil.rmtree(WORK / "work", ignore_errors=True)
    subprocess.run([*command, *folders, ROOT / "packaging" / "ub-node.spec"], env=environment, check=True, cwd=WORK)
    made, shim = WORK / "dist" / "ub-node", WORK / "dist" / "ub-cni"
    for part in shim.iterdir():
        part.rename(made / part.name)
    shim.rmdir()
    return made


def drop_library_paths(bundle: Path) -> None:
    """Take the build machine's folders out of the libraries' search paths; the bootloader sets the right one."""
    for library in bundle.rglob("*.so*"):
        found = subprocess.run(["patchelf", "--print-rpath", library], capture_output=True, text=True, check=True)
        if found.stdout.strip().startswith("/"):
            subprocess.run(["patchelf", "--remove-rpath", library], check=True)


def refuse_broken(bundle: Path) -> None:
    """Start each executable once: a module that PyInstaller missed shows here, not on a node."""
    for program in PROGRAMS:
        done = subprocess.run([bundle / program, "--version"], capture_output=True, text=True, check=False, env={})
        if done.returncode or not done.stdout.startswith(f"{program} "):
            raise SystemExit(f"{program} --version: exit {done.returncode}, {done.stdout!r}\n{done.stderr}")


def put_in_place(made: Path) -> None:
    BUNDLE.parent.mkdir(exist_ok=True)
    old = WORK / "old"
    shutil.rmtree(old, ignore_errors=True)
    if BUNDLE.exists():
        BUNDLE.rename(old)
    made.rename(BUNDLE)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
