"""Columns for a terminal. Pure."""

import unicodedata
from collections.abc import Iterable


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return left-aligned columns under ``header``; ``None`` is shown as ``-``, a wide character takes two cells.

    Names come from pods and their files: what could steer a terminal is shown as ``?``.
    """
    lines = [tuple(header), *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return ``text`` with ``?`` for what could steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def size(count: int | None) -> str:
    """Return bytes as people say them: ``64.0 GiB``."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def rate(mbps: int | None) -> str:
    """Return megabits a second as people say them: ``400 Gb/s``."""
    if mbps is None:
        return "-"
    if mbps >= 1_000_000:
        return f"{mbps / 1_000_000:g} Tb/s"
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"


def ranges(values: Iterable[int]) -> str:
    """Return ``0-3,8``; ``-`` for none."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "-"


def _cell(value: object) -> str:
    return printable("-" if value is None or value == "" else str(value))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
