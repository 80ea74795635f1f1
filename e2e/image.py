"""The guest's image: from a recipe in this folder to a cached disk, kernel and initramfs.

The recipe is the lists ``packages.txt``, ``modules.txt`` and ``python.txt``, the files under ``rootfs/``, the agent,
and the two modules that carry it out. Its hash names the cached image: change the recipe, get a new image. Nothing
of the software under test is in it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.errors import HarnessError
from e2e.oci import write_archive

HERE = Path(__file__).parent
SUITE = "trixie"
ROOT_SIZE = "3G"
GUEST_PYTHON = "3.13"
LIBRARY = Path("usr/lib/ub-e2e")  # ours inside the guest
UNUSED = ("man", "locale", "doc", "info", "i18n", "bug", "lintian")  # below /usr/share


@dataclass(frozen=True)
class Image:
    """A built guest. The disk is never written: every machine boots from it with ``snapshot=on``."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "root.img"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs"


def cache_folder() -> Path:
    """Return where images are kept: outside the repository, the same for every clone."""
    if chosen := os.environ.get("UB_E2E_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "ub-node-e2e"
    return Path("/var/cache/ub-node-e2e")


def read_list(name: str) -> dict[str, str]:
    """Return a list of the recipe as first word -> the rest of the line."""
    lines = (line.split("#", 1)[0].split(None, 1) for line in (HERE / name).read_text().splitlines())
    return {words[0]: (words[1:] or [""])[0].strip() for words in lines if words}


def recipe_hash() -> str:
    """Return 12 hex digits that change with anything the image is made from."""
    digest = hashlib.sha256(GUEST_PYTHON.encode())
    inputs = [HERE / name for name in ("packages.txt", "modules.txt", "python.txt", "agent.py", "image.py", "oci.py")]
    for path in sorted([*inputs, *(p for p in (HERE / "rootfs").rglob("*") if p.is_file())]):
        digest.update(f"{path.relative_to(HERE)} {path.stat().st_mode & 0o111:o}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def mirror() -> tuple[str, ...]:
    """Return the Debian mirror that this machine is set up to use; nothing if there is none: a default is used."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in (p for p in files if p.is_file()):
        for line in path.read_text().splitlines():
            found = re.match(r"(?:URIs:|deb\s(?:\[[^]]*\])?)\s*(\S+/debian)/?(?:\s|$)", line)
            if found:
                return (found.group(1),)
    return ()


def ensure(say: Callable[[str], None]) -> Image:
    """Return the image of today's recipe, building it when the cache has none. One build at a time."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    image = Image(cache / recipe_hash())
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.disk.exists():
            if os.geteuid() != 0:
                raise HarnessError("building the guest needs root; run make e2e as root once")
            started = time.monotonic()
            say(f"building the guest {image.folder.name} (once, 2 min)")
            with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as work:
                _build(Path(work), say)
                image.folder.mkdir(exist_ok=True)
                for name in ("vmlinuz", "initramfs", "root.img"):  # the disk comes last: it says "complete"
                    (Path(work) / name).replace(image.folder / name)
            _forget_others(cache, image)
            say(f"built in {time.monotonic() - started:.0f} s")
    return image


def _forget_others(cache: Path, keep: Image) -> None:
    """Remove images of older recipes that no machine uses; a running QEMU keeps its open disk anyway."""
    for folder in cache.iterdir():
        if folder.is_dir() and re.fullmatch(r"[0-9a-f]{12}", folder.name) and folder != keep.folder:
            shutil.rmtree(folder, ignore_errors=True)


def _build(work: Path, say: Callable[[str], None]) -> None:
    root = work / "root"
    steps: list[tuple[str, Callable[[], None]]] = [
        ("Debian packages", lambda: _install_debian(root)),
        ("our files", lambda: _lay_files(root)),
        ("Python packages", lambda: _install_python(root / LIBRARY / "python")),
        ("kernel and initramfs", lambda: _make_initramfs(root, work)),
        ("container images", lambda: _make_container_images(root)),
        ("disk", lambda: _make_disk(root, work)),
    ]
    for name, step in steps:
        started = time.monotonic()
        step()
        say(f"  {name}: {time.monotonic() - started:.0f} s")


def _install_debian(root: Path) -> None:
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNUSED]
    run(
        *("mmdebstrap", "--mode=root", "--variant=apt", "--quiet", "--format=directory", "--skip=output/dev"),
        *("--aptopt=Acquire::Languages \"none\"", *excluded, f"--include={','.join(read_list('packages.txt'))}"),
        *(SUITE, str(root), *mirror()),
        env={"INITRD": "No"},  # Debian's initramfs takes 30 s to make and 10 s to boot; ours takes 1
    )  # fmt: skip


def _lay_files(root: Path) -> None:
    shutil.copytree(HERE / "rootfs", root, dirs_exist_ok=True)
    for name in ("agent.py", "modules.txt"):
        shutil.copy(HERE / name, root / LIBRARY / name)
    (root / "etc/fstab").write_text("")
    (root / "etc/machine-id").write_text("ab" * 16 + "\n")
    (root / "etc/hostname").write_text("node0\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)  # mmdebstrap copies this machine's
    (root / "etc/resolv.conf").write_text("")
    shutil.rmtree(root / "usr/lib/systemd/system-generators")  # each is a process, and none has work here
    plugins = root / "opt/cni/bin"
    plugins.mkdir(parents=True)
    for plugin in (root / "usr/lib/cni").iterdir():
        (plugins / plugin.name).symlink_to(f"/usr/lib/cni/{plugin.name}")


def _install_python(target: Path) -> None:
    """Fetch wheels for the guest's Python in the versions of our own lock."""
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (HERE.parent / "requirements.lock").read_text(), re.MULTILINE))
    wanted = [f"{name}=={locked[name]}" for name in read_list("python.txt")]
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--no-compile"),
        *("--python-version", GUEST_PYTHON, "--platform", "manylinux2014_x86_64", "--target", str(target), *wanted),
    )  # fmt: skip
    run("chroot", str(target.parents[3]), "python3", "-m", "compileall", "-q", f"/{LIBRARY}/python")


def _make_initramfs(root: Path, work: Path) -> None:
    """Make an initramfs of busybox and the modules of the root file system, in the order they must be loaded."""
    (version,) = (folder.name for folder in (root / "lib/modules").iterdir())
    shutil.copy(root / f"boot/vmlinuz-{version}", work / "vmlinuz")
    needed = {True: list[str](), False: list[str]()}
    for module, when in read_list("modules.txt").items():
        listed = run("chroot", str(root), "modprobe", "-S", version, "--show-depends", module)
        paths = re.findall(r"^insmod (\S+)", listed, re.MULTILINE)
        needed[when == "initramfs"] += paths
    for path in dict.fromkeys(needed[True] + needed[False]):
        if (packed := root / path.removeprefix("/")).exists():
            run("xz", "-d", str(packed))  # unpacking costs more than reading in an emulated machine
    run("chroot", str(root), "depmod", version)
    tree = work / "initramfs.d"
    for folder in ("bin", "dev", "root", "modules"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(root / "usr/bin/busybox", tree / "bin/busybox")
    shutil.copy(root / LIBRARY / "initramfs-init", tree / "init")
    for number, path in enumerate(dict.fromkeys(needed[True])):
        source = root / path.removeprefix("/").removesuffix(".xz")
        shutil.copy(source, tree / "modules" / f"{number:02}-{source.name}")
    (tree / "init").chmod(0o755)
    with (work / "initramfs").open("wb") as archive:
        listing = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc"], cwd=tree, input=listing.encode(), stdout=archive, check=True
        )


def _make_container_images(root: Path) -> None:
    folder = root / LIBRARY / "images"
    folder.mkdir()
    busybox = root / "usr/bin/busybox"
    write_archive(folder / "pause.tar", name="localhost/pause:1", busybox=busybox, command=["sleep", "infinity"])
    write_archive(folder / "busybox.tar", name="localhost/busybox:1", busybox=busybox, command=["sh"])


def _make_disk(root: Path, work: Path) -> None:
    run("mke2fs", "-q", "-t", "ext4", "-L", "rootfs", "-d", str(root), str(work / "root.img"), ROOT_SIZE)


def run(*argv: str, env: dict[str, str] | None = None) -> str:
    """Run a step of the build and return its output; on failure show all it said."""
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode:
        raise HarnessError(f"{' '.join(argv[:3])} … failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
