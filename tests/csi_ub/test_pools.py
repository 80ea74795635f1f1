"""A pool that cannot do what its kind promises is refused at the start, with the reason and what to do.

What a pool of type xfs does where the kernel has project quotas is tested in the guest (e2e/inside/test_pools.py).
"""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.csi_ub.driver import command, environment
from tests.csi_ub.pools import make_btrfs, make_xfs, unmount_below
from ubhost.kernel import xfs


def start(folder: Path, kind: str, pool: Path) -> subprocess.CompletedProcess[str]:
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"pools": [{"name": "p", "type": kind, "path": str(pool)}]}))
    arguments = ["--endpoint", f"unix://{folder}/csi.sock", "--node-id", "node0", "--config", str(config)]
    return subprocess.run(
        [*command(), *arguments], capture_output=True, text=True, timeout=60, env=environment(UB_ROOT=str(folder))
    )


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_a_pool_on_another_file_system_is_refused_at_the_start(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pool").mkdir()
    done = start(tmp_path, kind, tmp_path / "pool")
    assert done.returncode == 1
    assert f"is not on {kind}: make it there, or use a pool of type dir" in done.stderr


def test_a_pool_of_a_kind_that_is_not_offered_is_refused_at_the_start(tmp_path: Path) -> None:
    done = start(tmp_path, "lvm", tmp_path)
    assert done.returncode == 2
    assert "lvm" in done.stderr


@pytest.mark.kernel
def test_an_xfs_without_project_quotas_is_no_pool_of_type_xfs(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    make_xfs(tmp_path / "image", pool, options="loop,noquota")
    try:
        assert xfs.is_xfs(pool)
        assert not xfs.enforces_projects(pool)
        done = start(tmp_path, "xfs", pool)
    finally:
        unmount_below(tmp_path)
    assert done.returncode == 1
    assert "-o prjquota" in done.stderr
    assert "type dir" in done.stderr


@pytest.mark.kernel
def test_what_lies_on_btrfs_or_ext4_is_not_taken_for_xfs(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    assert not xfs.enforces_projects(tmp_path)
    make_btrfs(tmp_path / "image", tmp_path / "pool")
    try:
        assert not xfs.is_xfs(tmp_path / "pool")
    finally:
        unmount_below(tmp_path)
