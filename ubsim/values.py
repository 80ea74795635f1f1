"""How sysfs writes values: one file for each value that there is, numbers as the kernel prints them. Pure."""

from collections.abc import Iterator, Mapping

from ubsim.tree import File


def present(folder: str, values: Mapping[str, object], *, mode: int = 0o444, is_fixed: bool = False) -> Iterator[File]:
    """One file for each value that there is."""
    for name, value in values.items():
        if value is not None:
            yield File(f"{folder}/{name}", f"{value}\n", mode, is_fixed)


def number(value: int | None) -> int | None:
    """Take the number of an enumeration, whose text is its name."""
    return None if value is None else int(value)


def hexadecimal(value: int | None, digits: int) -> str | None:
    """``%#0<digits + 2>x`` as the kernel prints it: the prefix also before zero."""
    return None if value is None else f"0x{value:0{digits}x}"
