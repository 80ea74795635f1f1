"""What goes to the guest: the tests there find all that they import of ours."""

import shutil
import subprocess
import sys
from pathlib import Path

from e2e.__main__ import REPO, bundle, parts


def test_what_the_guests_tests_import_of_ours_goes_with_them(tmp_path: Path) -> None:
    for source, name in parts():
        if source == bundle():
            continue
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, tmp_path / name)
    alone = {"e2e.inside.kubelet", "e2e.inside.test_kubernetes"}  # e2e/outside/test_kubernetes.py gives them the rest
    modules = {f"e2e.inside.{file.stem}" for file in (REPO / "e2e/inside").glob("*.py")} - alone
    script = f"import importlib\nfor module in {sorted(modules)}: importlib.import_module(module)"
    environ = {"PYTHONPATH": f"{tmp_path}:{tmp_path}/proto"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
