"""The guest's second disk: what is under test, and the tests. Made anew for every run."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.image import run


@contextmanager
def payload(*parts: tuple[Path, str]) -> Iterator[Path]:
    """Yield a read-only ext4 disk with copies of folders or files, each at its name. Removed at the end."""
    with tempfile.TemporaryDirectory(prefix="ub-e2e-") as work:
        tree = Path(work) / "tree"
        for source, name in parts:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, tree / name)
        used = sum(path.lstat().st_size + 4096 for path in tree.rglob("*"))
        disk = Path(work) / "payload.img"
        run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-L", "payload", "-d", str(tree), str(disk),
            f"{used // 1024 * 5 // 4 + 16384}k")  # fmt: skip
        yield disk
