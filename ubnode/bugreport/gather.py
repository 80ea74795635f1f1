"""Read what a report wants from a node. Changes nothing, follows no link out of its tree, waits for nobody long."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ubnode.bugreport.redact import names_a_secret, redact
from ubnode.bugreport.wanted import ITEMS, Command, Files, Item, Tree

LARGEST = 512 << 10
"""Bytes of one file or answer; of longer ones the end is taken, where logs have their news."""

ATTRIBUTE = 4096
"""Bytes of one kernel attribute."""

PATIENCE = 20
"""Seconds for one command."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A piece of the report. ``note`` says what is not as it was on the node."""

    path: str
    content: bytes
    note: str = ""
    secrets: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """What is not in the report, and why."""

    path: str
    why: str


def gather(root: Path, most: int, items: Iterable[Item] = ITEMS) -> Iterator[Taken | Left]:
    """Yield what there is below ``root``, at most ``most`` bytes in all, in the order of ``items``."""
    left = most
    for item in items:
        for piece in _pieces(root, item):
            if isinstance(piece, Taken) and len(piece.content) > left:
                yield Left(piece.path, "the report is full")
                continue
            if isinstance(piece, Taken):
                left -= len(piece.content)
            yield piece


def _pieces(root: Path, item: Item) -> Iterator[Taken | Left]:
    match item:
        case Command():
            yield _command(item)
        case Files():
            yield from _files(root, item)
        case Tree():
            yield from _tree(root, item)


def _command(item: Command) -> Taken | Left:
    argv = [*_ubnode(), *item.argv] if item.own else item.argv
    path = f"commands/{item.name}.txt"
    try:
        done = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False, errors="replace"
        )
    except FileNotFoundError:
        return Left(path, f"there is no {argv[0]}")
    except subprocess.TimeoutExpired:
        return Left(path, f"no answer in {PATIENCE} s")
    except OSError as error:
        return Left(path, str(error.strerror))
    end = f"\n[exit code {done.returncode}]\n" if done.returncode else ""
    said = f"\n[on stderr]\n{done.stderr}" if done.stderr else ""
    if not (end or said):
        return _taken(path, done.stdout)
    text, secrets = redact(done.stdout)
    more, further = redact(said + end)
    return _cut(path, text + more, secrets + further)


def _ubnode() -> list[str]:
    if getattr(sys, "frozen", False):  # the executable is ubnode itself
        return [sys.executable]
    return [sys.executable, "-m", "ubnode"]


def _files(root: Path, item: Files) -> Iterator[Taken | Left]:
    for path in sorted(root.glob(item.glob)):
        where = str(path.relative_to(root))
        if path.is_dir() and not path.is_symlink():
            continue
        if names_a_secret(path.name) or path.suffix in (".key", ".pem"):
            yield Left(where, "its name speaks of a secret")
            continue
        try:
            raw = _read(path, LARGEST)
        except OSError as error:
            yield Left(where, _reason(error))
            continue
        if b"\0" in raw:
            yield Left(where, "not a text")
        else:
            yield _taken(where, raw.decode(errors="replace"))


def _reason(error: OSError) -> str:
    return "a link" if isinstance(error, LinkMet) else str(error.strerror)


class LinkMet(OSError):
    """Something other than a plain file lies where a file should."""


def _read(path: Path, most: int) -> bytes:
    """Return the last ``most`` + 1 bytes of a plain file at most, so that the reader sees that there were more."""
    if path.is_symlink():
        raise LinkMet
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a plain file")
        if status.st_size > most:
            file.seek(-most - 1, os.SEEK_END)
        content = b""
        while len(content) <= most and (piece := file.read(most + 1 - len(content))):
            content += piece
        return content


def _tree(root: Path, item: Tree) -> Iterator[Taken | Left]:
    inside = (root / item.within).resolve()
    lines: list[str] = []
    size = 0
    for top in _folders(root, inside, item.globs):
        for path in _attributes(top):
            line = _attribute(path, inside)
            size += len(line)
            if size > LARGEST * 4:
                yield Left(f"{item.within}/{path.relative_to(inside)} and what follows", "too much of its kind")
                break
            if line:
                lines.append(line)
        else:
            continue
        break
    if lines:
        text, secrets = redact("".join(lines))
        yield Taken(f"trees/{item.name}.txt", text.encode(), _removed(secrets), secrets)


def _folders(root: Path, inside: Path, globs: Iterable[str]) -> list[Path]:
    """Where the folders really lie: those of a class are links into sys/devices. None that lies elsewhere."""
    found: dict[Path, None] = {}
    for glob in globs:
        for path in sorted(root.glob(glob)):
            real = path.resolve()
            if real.is_dir() and real.is_relative_to(inside):
                found[real] = None
    return list(found)


def _attributes(top: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(top):
        names.sort()
        names[:] = [name for name in names if name != "power"]
        for name in sorted(files):
            path = Path(folder, name)
            if not path.is_symlink():
                yield path


def _attribute(path: Path, inside: Path) -> str:
    name = f"{inside.name}/{path.relative_to(inside)}"
    with suppress(OSError):
        if not path.stat().st_mode & 0o444:
            return ""
    try:
        raw = _read(path, ATTRIBUTE)
    except OSError as error:
        return f"{name} ({_reason(error)})\n"
    if b"\0" in raw:
        return f"{name} ({len(raw)} bytes, not a text)\n"
    value = raw.decode(errors="replace").rstrip("\n")
    return f"{name} {value}\n" if "\n" not in value else f"{name}\n  " + value.replace("\n", "\n  ") + "\n"


def _taken(path: str, text: str) -> Taken:
    return _cut(path, *redact(text))


def _cut(path: str, text: str, secrets: int) -> Taken:
    content = text.encode(errors="replace")
    if len(content) <= LARGEST:
        return Taken(path, content, _removed(secrets), secrets)
    note = ", ".join(filter(None, ("the end of it", _removed(secrets))))
    return Taken(path, content[-LARGEST:], note, secrets)


def _removed(secrets: int) -> str:
    return f"{secrets} secrets removed" if secrets else ""
