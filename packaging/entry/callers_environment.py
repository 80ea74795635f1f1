"""Undo what PyInstaller's bootloader did to the environment.

It points LD_LIBRARY_PATH into the bundle, for itself. Programs that we start (IPAM plugins, mount helpers, file
servers) must not load the bundle's libraries, and must see what our caller set.

Source: PyInstaller, "Runtime information", LD_LIBRARY_PATH considerations.
"""

import os


def restore() -> None:
    original = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is None:
        os.environ.pop("LD_LIBRARY_PATH", None)
    else:
        os.environ["LD_LIBRARY_PATH"] = original
    for name in [name for name in os.environ if name.startswith("_PYI_")]:
        del os.environ[name]
