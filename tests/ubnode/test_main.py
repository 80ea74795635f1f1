"""``ubnode`` itself: what every command has in common, whatever is asked of it, on whatever is left of a node."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ubhost.show.table import table
from ubnode.__main__ import COMMANDS, main

TOP = Path(__file__).parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": f"{TOP}:{TOP}/proto"}

LOOKS = (
    ("show",), ("show", "topology"), ("show", "paths"), ("watch",), ("doctor",), ("attachments",), ("volumes",),
    ("volumes", "conflicts"), ("qos",), ("qos", "node", "0"), ("qos", "explain", "web"), ("conf",), ("sim", "status"),
)  # fmt: skip
"""Commands that only look, and have ``--json``."""


def ubnode(*argv: str, stdout: int = subprocess.PIPE, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "ubnode", *argv), env=ENVIRON | environ, stdin=subprocess.DEVNULL, stdout=stdout,
        stderr=subprocess.PIPE, text=True, errors="replace", timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine without anything of ours."""
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_with_json_a_program_reads_one_document_whatever_happens(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--root", str(tmp_path)) if command[0] == "sim" else ()
    code = main([*command, "--json", *where])
    out, err = capsys.readouterr()
    told = json.loads(out)
    if "error" in told:
        assert code == 1
        assert err == f"ubnode {command[0]}: {told['error']}\n"
    else:
        assert err == ""


WRONG = (
    *((command, "--no-such-flag", "--json") for command in COMMANDS),
    *((command, "no", "such", "word", "--json") for command in COMMANDS if command != "bug-report"),
    ("show", "--json", "--svg", "topology"), ("show", "--json", "devices", "--netns", "/proc/1/ns/net"),
    ("show", "--js", "nothing"), ("show", "--json", "--provider", "magic"),
    ("volumes", "--json", "all"), ("conf", "--json", "--apply", "--remove"), ("conf", "--mode", "best", "--json"),
    ("qos", "--json", "node"), ("qos", "--json", "node", "one"), ("qos", "--json", "--watch", "nan"),
    ("qos", "--json", "plan"), ("qos", "plan", "-f", "/dev/null", "--config", "/none", "--json"),
    ("qos", "explain", "--json"), ("show", "numa", "--json=1"),
    ("sim", "--json"), ("sim", "status", "--json", "--node", "a"), ("model", "--json"), ("install", "--json"),
    ("install", "everything", "--json"), ("no-such-command", "--json"), ("--json", "show"), ("--json",), ("", "--json"),
)  # fmt: skip


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_with_json_a_program_reads_what_is_wrong_with_its_own_words(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == f"ubnode {argv[0]}: {json.loads(out)['error']}"


def test_without_json_wrong_words_are_told_to_people_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0][:19]) == ("", "usage: ubnode show ")


def test_it_does_not_matter_where_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["qos", "--json", "plan", "--file", "/dev/null"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.usefixtures("bare")
def test_what_is_watched_as_json_is_one_document_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rests = iter([None])
    monkeypatch.setattr(time, "sleep", lambda _: next(rests))
    with pytest.raises(StopIteration):
        main(["qos", "--json", "--watch"])
    for line in capsys.readouterr().out.splitlines():
        assert "nri-qos does not run" in json.loads(line)["error"]


def test_json_that_another_program_is_asked_for_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "exec", "--root", str(tmp_path), "--", "lsub", "--json"]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", [command for command in LOOKS if command[0] != "sim"], ids=" ".join)
@pytest.mark.parametrize("root", ["missing", "a file"])
def test_a_root_that_is_none_is_not_taken_for_a_bare_node(
    command: tuple[str, ...],
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("UB_ROOT", str(tmp_path / root))
    assert main(command) == 2
    assert capsys.readouterr() == ("", f"ubnode {command[0]}: UB_ROOT {tmp_path / root} is not a folder\n")


def test_without_a_command_the_usage_goes_where_errors_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "usage: ubnode COMMAND …")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ubnode {command} ")


@pytest.mark.parametrize("argv", [("--help",), ("doctor",), ("doctor", "--json"), ("show", "paths")], ids=" ".join)
def test_a_full_disk_is_one_line_and_no_trace(argv: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = ubnode(*argv, stdout=full.fileno(), UB_ROOT=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f"ubnode {argv[0]}: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("argv", [("--help",), ("doctor",), ("doctor", "--json")], ids=" ".join)
def test_who_reads_a_part_only_is_left_in_peace(argv: tuple[str, ...], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = ubnode(*argv, stdout=write, UB_ROOT=str(tmp_path))
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_a_terminal_that_lacks_letters_is_shown_the_others(encoding: str) -> None:
    done = ubnode("--help", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bug-report" in done.stdout


def test_a_name_from_a_pod_cannot_steer_the_terminal() -> None:
    assert table(("FILE",), [["a\x1b[2Jb\nc"]]) == "FILE\na?[2Jb?c"
