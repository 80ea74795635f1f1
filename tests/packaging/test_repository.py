"""What is in the repository: scripts that a shell can read, and no file that belongs to one machine only."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, git

# Written in two parts, or this file would find itself.
MACHINE_PATHS = re.compile("/wo" "rk/(main|shared)|/ro" r"ot/\.|/ho" r"me/[a-z]|\.py" "env/")
PICTURES = {".png", ".svg", ".ico"}


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return [path for name in git("ls-files", "-z").split("\0") if name and (path := ROOT / name).is_file()]


def interpreter(script: Path) -> str | None:
    """The shell of a script, by its first line."""
    with script.open("rb") as file:
        first = file.readline(80).decode(errors="replace")
    match = re.match(r"#!\s*(?:/usr)?/bin/(?:env )?(sh|bash|dash)\b", first)
    return match[1] if match else None


def test_every_shell_script_can_be_read_by_its_shell(tracked: list[Path]) -> None:
    scripts = [path for path in tracked if interpreter(path)]
    assert scripts
    for script in scripts:
        done = subprocess.run([interpreter(script) or "sh", "-n", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_shellcheck_finds_nothing_in_any_shell_script(tracked: list[Path]) -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is missing: apt-get install shellcheck")
    scripts = [path for path in tracked if interpreter(path)]
    done = subprocess.run(["shellcheck", "--severity=warning", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_tracked_file_is_a_binary(tracked: list[Path]) -> None:
    assert [str(path) for path in tracked if path.suffix not in PICTURES and b"\0" in path.read_bytes()] == []


def test_no_tracked_file_names_a_folder_of_one_machine(tracked: list[Path]) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in tracked if path.suffix not in PICTURES}
    assert {str(path): found[0] for path, text in texts.items() if (found := MACHINE_PATHS.search(text))} == {}


def test_every_phony_target_of_the_makefile_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    assert phony == explained
