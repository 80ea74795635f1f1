"""A small bundle and a small node, both folders."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ubnode.install import cli

Bundle = Callable[[str], Path]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """Make a bundle of a version: five programs that say which they are."""

    def make(version: str) -> Path:
        folder = tmp_path / "bundles" / version
        (folder / "_internal").mkdir(parents=True)
        (folder / "_internal" / "VERSION").write_text(f"{version}\n")
        for program in ("ub-cni", "ub-agent", "ub-csi", "nri-qos", "ubnode"):
            (folder / program).write_text(f"#!/bin/sh\necho {program} {version}\n")
            (folder / program).chmod(0o755)
        return folder

    return make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a node with containerd 1.7, another CNI plugin, and a kubelet."""
    root = tmp_path / "node"
    for folder in (
        "opt/cni/bin",
        "etc/systemd/system",
        "etc/tmpfiles.d",
        "etc/containerd",
        "var/lib/kubelet/plugins",
        "run",
    ):
        (root / folder).mkdir(parents=True)
    (root / "opt/cni/bin/bridge").write_text("a peer")
    (root / "etc/containerd/config.toml").write_text('version = 2\n\n[plugins."io.containerd.grpc.v1.cri"]\n')
    (root / "etc/containerd/config.toml").chmod(0o640)
    return root


def install(root: Path, bundle: Path, *components: str) -> None:
    assert cli.install([*components, "--node-root", str(root), "--from", str(bundle)]) == 0


def upgrade(root: Path, bundle: Path) -> None:
    assert cli.upgrade(["--node-root", str(root), "--from", str(bundle)]) == 0


def uninstall(root: Path, *arguments: str) -> None:
    assert cli.uninstall([*arguments, "--node-root", str(root)]) == 0


def listing(root: Path) -> dict[str, tuple[int, str]]:
    """Everything below a root: path -> mode, and content, target or kind."""

    def tell(path: Path) -> str:
        if path.is_symlink():
            return f"-> {path.readlink()}"
        return path.read_text(errors="replace") if path.is_file() else "folder"

    return {str(path.relative_to(root)): (path.lstat().st_mode, tell(path)) for path in sorted(root.rglob("*"))}
