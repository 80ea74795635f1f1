"""A node with something odd where an installer goes, and records that say nothing of use: one error says what to do."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ubnode.conftest import Bundle, install, listing, uninstall, upgrade
from ubhost.errors import Conflict, HostFault, InvalidRequest
from ubhost.kernel import mounts
from ubhost.statefile import Damaged
from ubnode.install import cli
from ubnode.install.layout import CURRENT, RECORD, Component

EVERY = [str(component) for component in Component]
FOLDERS = (
    "opt", "opt/ub-node", "opt/cni", "opt/cni/bin", "etc", "etc/systemd", "etc/systemd/system", "etc/ub-node",
    "etc/tmpfiles.d", "etc/containerd/conf.d", "var", "var/lib", "var/lib/ub-node", "var/lib/kubelet",
    "var/lib/kubelet/plugins", "var/lib/kubelet/plugins/csi-ub.unifiedbus.com", "run", "run/ub-node",
)  # fmt: skip
"""Every folder that an installation makes, or in which it makes something."""

INSTEAD: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("somebody's"),
    "a link to nothing": lambda path: path.symlink_to("/no/such/folder"),
    "a link to a file": lambda path: path.symlink_to("/the-file"),
}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The root of a node that has a configuration of containerd 1.7 at most."""
    root = tmp_path / "bare"
    root.mkdir()
    (root / "the-file").write_text("a file of the node")
    return root


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_where_a_folder_is_needed_is_named_before_anything_is_changed(
    folder: str, instead: str, bare: Path, bundle: Bundle
) -> None:
    if folder.startswith("etc/"):
        (bare / "etc/containerd").mkdir(parents=True)
        (bare / "etc/containerd/config.toml").write_text("version = 2\n")
    (bare / folder).parent.mkdir(parents=True, exist_ok=True)
    INSTEAD[instead](bare / folder)
    before = listing(bare)
    with pytest.raises(Conflict, match=rf"^/{folder} is .*, where a folder is needed: move it away"):
        install(bare, bundle("1.0.0"), *EVERY)
    assert listing(bare) == before


@pytest.mark.parametrize("folder", sorted({*FOLDERS} - {"etc", "run/ub-node"}))  # /etc is needed, the other is ours
def test_what_came_where_a_folder_was_does_not_keep_us_on_the_node(folder: str, root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), *EVERY)
    there = root / folder
    there.mkdir(parents=True, exist_ok=True)
    there.rename(root / "moved")
    there.write_text("somebody's")
    uninstall(root)
    assert there.read_text() == "somebody's"


@pytest.mark.kernel
@pytest.mark.parametrize("folder", ["opt", "opt/cni/bin", "etc", "var/lib", "var/lib/kubelet/plugins"])
def test_a_folder_that_cannot_be_written_is_named_and_the_node_is_as_it_was(
    folder: str, root: Path, bundle: Bundle
) -> None:
    mounts.bind(root / folder, root / folder)
    mounts.mount("none", root / folder, "", flags=0x1000 | 0x20 | 1)  # MS_BIND, MS_REMOUNT, MS_RDONLY
    before = listing(root)
    with pytest.raises(HostFault, match=rf"^cannot .* /{folder}/.*: Read-only file system: remount it writable"):
        install(root, bundle("1.0.0"), *EVERY)
    assert listing(root) == before


@pytest.mark.parametrize("components", [["nri"], ["agent", "csi"], EVERY])
def test_a_folder_that_a_daemon_would_have_made_for_its_state_goes_too(
    components: list[str], bare: Path, bundle: Bundle
) -> None:
    release = bundle("1.0.0")
    script = 'mkdir -p "$UB_ROOT/run/ub-node"; touch "$UB_ROOT/run/ub-node/nri-qos.lock"'
    (release / "nri-qos").write_text(f"#!/bin/sh\n{script}\n")
    before = listing(bare)
    install(bare, release, *components)
    uninstall(bare)
    assert listing(bare) == before


def record_of(root: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    record = json.loads((root / RECORD[1:]).read_text())
    change(record)
    return json.dumps(record).encode()


def changed(key: str, value: object) -> Callable[[Path], bytes]:
    return lambda root: record_of(root, lambda record: record.update({key: value}))


def without(key: str) -> Callable[[Path], bytes]:
    return lambda root: record_of(root, lambda record: record.pop(key))


DAMAGES: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda root: b"",
    "torn": lambda root: (root / RECORD[1:]).read_bytes()[:100],
    "zeros": lambda root: bytes(4096),
    "not UTF-8": lambda root: b'{"version": "\xff"}',
    "too deep": lambda root: b"[" * 100_000,
    "a list": lambda root: b"[]",
    "of no version": lambda root: b"{}",
    "of another version": changed("version", 2),
    **{f"without {key}": without(key) for key in ("components", "files", "links", "folders", "imports", "whole")},
    **{
        f"{key} is {value!r}": changed(key, value)
        for key, value in (
            ("components", ["cni", "gpu"]), ("components", "cni"), ("files", ["/etc/passwd"]), ("files", {"/a": 1}),
            ("files", {"etc/passwd": "0"}), ("links", "/opt/cni/bin/ub-cni"), ("links", [None]), ("links", ["/\0"]),
            ("folders", {"/opt": 1}), ("folders", ["/opt/../.."]), ("imports", "no"), ("whole", None),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_cannot_be_used_is_named_with_what_to_do_and_that_helps(
    damage: str, root: Path, bundle: Bundle
) -> None:
    release = bundle("1.0.0")
    install(root, release, *EVERY)
    whole, record = listing(root), root / RECORD[1:]
    record.write_bytes(DAMAGES[damage](root))
    before = listing(root)
    works: tuple[Callable[[], None], ...] = (
        lambda: install(root, release, "cni"), lambda: upgrade(root, release), lambda: uninstall(root),
        lambda: uninstall(root, "--dry-run"), lambda: uninstall(root, "--force", "--purge"),
    )  # fmt: skip
    for work in works:
        with pytest.raises(Damaged, match=rf"{record}.*move it away and say {CURRENT}/ubnode install COMPONENT"):
            work()
    assert listing(root) == before
    record.rename(root / "moved-away")
    install(root, release, *EVERY)
    assert listing(root).keys() - {"moved-away"} == whole.keys()
    uninstall(root)
    assert not [path for path in listing(root) if path.startswith(("opt/ub-node/", "opt/cni/bin/ub-cni"))]


def test_a_record_that_is_no_file_is_named_with_what_to_do(root: Path, bundle: Bundle) -> None:
    (root / RECORD[1:]).mkdir(parents=True)
    with pytest.raises(Damaged, match=r"install\.json.*; .*move it away"):
        install(root, bundle("1.0.0"), "cni")


@pytest.mark.parametrize(
    ("path", "instead"),
    [(CURRENT, "a file"), *itertools.product((RECORD, "/opt/ub-node/1.0.0"), INSTEAD)],  # a link there is CURRENT
)
def test_what_is_where_our_own_things_go_is_never_overwritten(
    path: str, instead: str, root: Path, bundle: Bundle
) -> None:
    (root / path[1:]).parent.mkdir(parents=True)
    INSTEAD[instead](root / path[1:])
    before = listing(root)
    with pytest.raises((Conflict, Damaged), match=rf"{path}.*move it away"):
        install(root, bundle("1.0.0"), "cni")
    assert listing(root) == before


ODD = (
    b'version = "2"\n', b"imports = 3\n", b"version = [\n", b'root = "\xff"\n', b"\0", b"a = " + b"[" * 9999,
    b'imports = ["/etc/containerd/mine.toml"]\n',
)  # fmt: skip


@pytest.mark.parametrize("config", ODD)
def test_an_odd_configuration_of_containerd_matters_to_the_one_who_needs_it_changed(
    config: bytes, root: Path, bundle: Bundle
) -> None:
    (root / "etc/containerd/config.toml").write_bytes(config)
    before = listing(root)
    install(root, bundle("1.0.0"), "cni", "csi")
    uninstall(root, "csi")
    uninstall(root)
    assert listing(root) == before
    with pytest.raises(Conflict, match=r"^/etc/containerd/config\.toml "):
        install(root, bundle("1.1.0"), "nri")
    assert listing(root) == before


@pytest.mark.parametrize("version", [b"", b"\n", b"\xff", b"../1.0.0", b"current", b"1.0.0\n2.0.0", b"1.0/0", b".1"])
def test_a_bundle_whose_version_is_none_is_refused(version: bytes, root: Path, bundle: Bundle) -> None:
    release = bundle("1.0.0")
    (release / "_internal/VERSION").write_bytes(version)
    before = listing(root)
    with pytest.raises(InvalidRequest, match="VERSION holds is no version"):
        install(root, release, "cni")
    with pytest.raises(InvalidRequest, match="is not a bundle"):
        cli.install(["cni", "--node-root", str(root), "--from", str(release / "ub-cni")])
    assert listing(root) == before


def test_beside_another_installation_whose_release_is_gone_ours_is_brought(root: Path, bundle: Bundle) -> None:
    install(root, bundle("1.0.0"), "csi")
    (root / "opt/ub-node/1.0.0").rename(root / "moved")
    assert cli.install(["cni", "--beside", "--node-root", str(root), "--from", str(bundle("1.1.0"))]) == 0
    assert (root / "opt/ub-node" / (root / "opt/ub-node/current").readlink() / "ub-cni").exists()
