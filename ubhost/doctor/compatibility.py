"""Which versions of the others are known to work with ours: data with sources, and a check against it. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ubhost.doctor.facts import Facts
from ubhost.doctor.findings import Finding, note, ok, problem, warning
from ubhost.ubse.generation import Generation

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """``least`` is needed, ``because`` says what older ones lack. Ours ran with versions below ``tried``; ``None``
    means that no real one was at hand, and only its documentation was followed."""

    part: str
    least: Version
    tried: Version | None
    because: str
    source: str


TABLE: tuple[Known, ...] = (
    Known(
        "containerd", (1, 7), (2, 5), "NRI and CDI came with 1.7",
        "containerd docs/NRI.md, docs/cri/config.md; e2e runs 1.7 of Debian trixie and 2.4 in a guest",
    ),
    Known("crio", (1, 26), None, "NRI came with 1.26", "CRI-O docs/crio.conf.5.md"),
    Known(
        "kubelet", (1, 28), (1, 38), "PodResources v1 is on from 1.28, CDI names in the device plugin API from 1.29",
        "kubernetes.io feature gates KubeletPodResourcesGet, DevicePluginCDIDevices; e2e runs 1.37 in a guest",
    ),
    Known(
        "kernel", (5, 15), (6, 19), "it has mount_setattr(2) (5.12) and cpu.idle (5.15)",
        "man-pages mount_setattr(2), Linux cgroup-v2.rst; 6.12 in the e2e guest, 6.18 on the developers' machine",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UbGeneration:
    """What of UB belongs together: driver, its tools and libraries, UBSE. Parts of two generations do not mix."""

    name: str
    kernel: Version  # the first numbers of the kernel that has this driver
    system: str
    urma: str  # umdk, and how liburma speaks with the driver
    ubse: str
    is_known: bool  # whether our messages are those of this generation
    source: str


UB_GENERATIONS: tuple[UbGeneration, ...] = (
    UbGeneration(
        "OLK-5.10", (5, 10), "openEuler 22.03", "umdk before 26: ioctls with plain structs, /sys/class/uburma",
        "none, or an early one", False, "reference/ub.md, version warning; openurma-gem5-lab README",
    ),
    UbGeneration(
        "OLK-6.6", (6, 6), "openEuler 24.03 LTS SP3 and later, arm64", "umdk 26.06: ioctls with TLV, /sys/class/ubcore",
        "UBSE of 2026-05", True, "openeuler-mirror kernel, umdk 00cc16f1, ubs-engine 973f4300",
    ),
)  # fmt: skip
KNOWN_UB = next(generation for generation in UB_GENERATIONS if generation.is_known)

_NUMBERS = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def check(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each part whose version is known."""
    said = {"kernel": facts.kernel, **facts.versions}
    for known in TABLE:
        if known.part in said:
            yield _judge(known, said[known.part])
    yield from _ub(facts)


def parse(text: str) -> Version | None:
    """Return the first version in what a program says of itself."""
    match = _NUMBERS.search(text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else None


def _judge(known: Known, said: str) -> Finding:
    version = parse(said)
    name = f"version-{known.part}"
    if version is None:
        return note(name, f"the version of {known.part} is unknown", f"it says {said!r}")
    if version < known.least:
        return problem(
            name,
            f"{known.part} {_text(version)} is too old",
            f"{_text(known.least)} is needed: {known.because}",
            f"update {known.part} ({known.source})",
        )
    if known.tried is None:
        return note(name, f"{known.part} {_text(version)}", f"never run with a real one: {known.source}")
    if version >= known.tried:
        return note(
            name, f"{known.part} {_text(version)} is newer than what was tried", f"tried below {_text(known.tried)}"
        )
    return ok(name, f"{known.part} {_text(version)}")


def _ub(facts: Facts) -> Iterator[Finding]:
    """The UB parts go together: driver, user space and UBSE of one generation."""
    if facts.ubse_generation is not None and facts.ubse_generation is not Generation.KNOWN:
        yield problem(
            "ubse-generation",
            f"UBSE speaks a protocol of another generation: {facts.ubse_generation.value}",
            f"we know the {KNOWN_UB.ubse}; numbers of modules and operations differ between UBSE releases",
            "install a UBSE of that generation, or a release of these plugins that knows yours",
        )
    if "ubcore" not in facts.modules:
        return
    version = parse(facts.kernel)
    found = next((one for one in UB_GENERATIONS if version is not None and version[:2] == one.kernel), None)
    if found is None or not found.is_known:
        which = f"of {found.name}" if found else "of a generation unknown to us"
        yield warning(
            "ub-generation",
            f"the UB driver of kernel {facts.kernel} is {which}",
            f"known is {KNOWN_UB.name}: {KNOWN_UB.urma}; netlink numbers and ioctls differ between generations",
            f"use {KNOWN_UB.system}; or compare with {KNOWN_UB.source}, and see `ubnode show` before you trust it",
        )
    else:
        yield ok("ub-generation", f"the UB driver is of the generation we know: {found.name}, {found.system}")
    if not any(name.startswith("liburma.so") for name in facts.libraries):
        yield note(
            "liburma",
            "no liburma on the host",
            "containers bring their own; it must be of the kernel's generation (OLK-5.10 and 6.6 do not mix)",
        )


def _text(version: Version) -> str:
    return ".".join(map(str, version))
