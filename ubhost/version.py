"""The one version of everything here: the one in pyproject.toml.

A bundle carries it in a file that the build wrote; a source tree reads pyproject.toml.
"""

import sys


def version() -> str:
    """Return the version, as in ``0.1.0+g1a2b3c4`` (with the commit the bundle was built from) or ``0.1.0+source``."""
    bundle: str | None = getattr(sys, "_MEIPASS", None)  # PyInstaller's folder of the bundle
    if bundle:
        with open(f"{bundle}/VERSION", encoding="ascii") as file:  # noqa: PTH123 - ub-cni carries no pathlib
            return file.read().strip()
    return f"{_declared()}+source"


def _declared() -> str:
    import tomllib  # only a source tree pays for these
    from pathlib import Path

    with Path(__file__).resolve().parent.with_name("pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])
