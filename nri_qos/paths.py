"""Where the cgroups of pods and containers lie, relative to the root of the hierarchy. Pure.

The form of each path says which cgroup driver made it, so no setting has to be right and both can be on one node.

Source: systemd.slice(5) on the expansion of dashes; reference/nri.md section 3.2.
"""

from functools import lru_cache


@lru_cache(maxsize=1 << 14)
def of_pod(cgroup_parent: str) -> str | None:
    """Return the folder of a pod, given ``PodSandbox.linux.cgroup_parent``; ``None`` if it has none of its own.

    With systemd that is a slice, alone or with its path: ``kubepods-burstable-pod1.slice``. With cgroupfs a path:
    ``/kubepods/burstable/pod1``. Whoever makes pods without kubelet may put them into ``system.slice`` or ``k8s.io``,
    beside others: what is done to a pod must not be done to those.
    """
    last = cgroup_parent.rstrip("/").rpartition("/")[2]
    if "pod" not in last.replace("kubepods", ""):
        return None
    return _slice(last) if last.endswith(".slice") else _plain(cgroup_parent)


@lru_cache(maxsize=1 << 14)
def of_container(cgroups_path: str) -> str | None:
    """Return the folder of a container, given ``Container.linux.cgroups_path``; ``None`` if it names none.

    With systemd ``SLICE:PREFIX:ID``, with cgroupfs a path.
    """
    slice_, _, unit = cgroups_path.partition(":")
    prefix, colon, id_ = unit.partition(":")
    if not colon:
        return _plain(cgroups_path)
    parent = _slice(slice_.rpartition("/")[2] or "system.slice")
    name = f"{prefix}-{id_}.scope" if prefix else f"{id_}.scope"
    return None if parent is None or not _is_name(name) else f"{parent}/{name}"


def _slice(name: str) -> str | None:
    """Return where systemd puts a slice: below those whose name it goes on, ``a.slice/a-b.slice``."""
    stem = name.removesuffix(".slice")
    if not _is_name(stem) or name == "-.slice":
        return None
    parts = stem.split("-")
    if not all(parts):
        return None
    return "/".join("-".join(parts[: n + 1]) + ".slice" for n in range(len(parts)))


def _plain(path: str) -> str | None:
    parts = [part for part in path.split("/") if part]
    return "/".join(parts) if parts and all(_is_name(part) for part in parts) else None


def _is_name(part: str) -> bool:
    """Whether ``part`` is one folder: what the runtime says becomes a path that root writes to."""
    return bool(part) and "/" not in part and "\0" not in part and part not in (".", "..")
