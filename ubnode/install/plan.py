"""From what is wanted on a node and what is there to the steps between. Pure: the same answer every time.

An install records first what it is going to own, and changes afterwards, so that whatever a kill interrupts can be
installed again or uninstalled. An uninstall forgets last.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from ubhost.errors import Conflict
from ubnode.install.layout import CURRENT, DATA_DAEMONS, RECORD, RELEASES, STATE, UNITS, Component, File, Wanted
from ubnode.install.record import Record, digest
from ubnode.install.runtimes import CONTAINERD, IMPORTS
from ubnode.install.steps import Folder, PutAside, Release, Run, SetFile, SetLink, Step, Withdraw


@dataclass(frozen=True, slots=True)
class Observed:
    """What is on the node, at the paths that we are concerned with; a path that is not there is not in the mappings.

    ``files`` holds the text of regular files, ``modes`` their mode bits, ``links`` the targets of symbolic links, and
    ``others`` whatever else is in the way. ``no_folders`` says what is where a folder is wanted. ``releases`` are the
    versions in /opt/ub-node, oldest first. ``state`` is
    what of our state may be removed with us, which the volumes of a pool are not. ``serves`` says whether there are
    any, for pods here or on other nodes, and ``systemd`` whether we may start units.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    no_folders: Mapping[str, str] = field(default_factory=dict)
    releases: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    serves: bool = False
    systemd: bool = False
    record: Record = field(default_factory=Record)


def plan_install(version: str, components: Iterable[Component], want: Wanted, seen: Observed) -> tuple[Step, ...]:
    """Return the steps that bring ``components`` of release ``version`` onto the node; none if they are there.

    Raises:
        Conflict: something that is not ours is in the way of a file or a link.
    """
    refuse_foreign(version, want, seen)
    record = _recorded(components, want, seen)
    files = [_file_step(file, seen) for file in want.files]
    changed = tuple(step for step in files if step)
    missing = _missing_folders(want, seen)
    first = [path for path in missing if RECORD.startswith(f"{path}/")]
    swapped = seen.links.get(CURRENT) != version
    steps: list[Step] = [Folder(path) for path in missing if path not in first]
    if version not in seen.releases:
        steps.append(Release(version))
    steps += changed
    steps += _imports(want, seen)
    if swapped:
        steps.append(SetLink(CURRENT, version, seen.links.get(CURRENT)))
    steps += [SetLink(path, to, seen.links.get(path)) for path, to in want.links if seen.links.get(path) != to]
    if changed or swapped or not seen.record.whole:
        steps = [*_started_again_if_all_fails(want, seen), *steps, *_start(want, seen)]
    if not steps and record == seen.record:
        return ()
    under_way = replace(record, whole=False).text()
    return (
        *(Folder(path, mode=0o700 if path in STATE else 0o755) for path in first),
        SetFile(RECORD, under_way, seen.files.get(RECORD), 0o600),
        *steps,
        SetFile(RECORD, record.text(), under_way, 0o600),
    )


def plan_prune(version: str, seen: Observed) -> tuple[Step, ...]:
    """Return the steps that remove releases which nobody runs after ``version`` was put in the place of what is seen.

    One more stays: the one before, from which programs may still run.
    """
    others = [release for release in seen.releases if release != version]
    before = seen.links.get(CURRENT)
    stays = {before} if before in others else {*others[-1:]}
    return tuple(Release(release, there=False) for release in others if release not in stays)


def plan_uninstall(leave: Iterable[Component], still: Wanted, seen: Observed, *, purge: bool) -> tuple[Step, ...]:
    """Return the steps that take ``leave`` off the node; ``still`` is what the components that stay want.

    A configuration that the administrator has edited stays, unless ``purge``. With the last component go the releases,
    our state and the record.
    """
    gone = frozenset(leave)
    stay = seen.record.components - gone
    kept = {file.path for file in still.files} | {path for path, _ in still.links}
    files = [path for path in seen.record.files if path not in kept and path in seen.files]
    removed = [path for path in files if purge or digest(seen.files[path]) == seen.record.files[path]]
    steps: list[Step] = [
        *_stop(removed, seen),
        *_end_data_daemons(gone, seen),
        *(Withdraw(daemon) for daemon in _published(gone, stay, seen)),
    ]
    steps += [SetLink(path, None, seen.links[path]) for path in sorted(seen.record.links - kept) if path in seen.links]
    steps += [SetFile(path, None, seen.files[path], seen.modes[path]) for path in removed]
    steps += _imports_out(still, seen)
    if seen.systemd and any(path.endswith(".service") for path in removed):
        steps.append(Run(("systemctl", "daemon-reload")))
    if stay:
        record = Record(
            components=stay,
            files={path: hash_ for path, hash_ in seen.record.files.items() if path in kept},
            links=seen.record.links & kept,
            folders=seen.record.folders,
            imports=still.imports and seen.record.imports,
        )
        return (*steps, SetFile(RECORD, record.text(), seen.files.get(RECORD), 0o600))
    return (*steps, *_last(seen))


def _end_data_daemons(gone: frozenset[Component], seen: Observed) -> list[Step]:
    is_the_last = Component.CSI in gone and not seen.serves
    return [Run(("systemctl", "stop", DATA_DAEMONS))] if seen.systemd and is_the_last else []


def _published(gone: frozenset[Component], stay: frozenset[Component], seen: Observed) -> list[str]:
    """The daemons whose traces have nobody left to tend them. Where only the CNI plugin is ours, the agent is a pod."""
    networking = {Component.CNI, Component.AGENT}
    daemons = ["ub-agent"] if gone & networking and not stay & networking else []
    return [*daemons, *(["nri-qos"] if Component.NRI in gone and CURRENT in seen.links else [])]


def _last(seen: Observed) -> list[Step]:
    """With the last component everything of ours goes: folders from the innermost, the state with the record last."""
    steps: list[Step] = []
    if RELEASES in seen.record.folders & seen.folders:
        steps.append(PutAside(RELEASES))
    else:
        if CURRENT in seen.links:
            steps.append(SetLink(CURRENT, None, seen.links[CURRENT]))
        steps += [Release(version, there=False) for version in seen.releases]
    folders = sorted(seen.record.folders - {RELEASES}, key=lambda path: (-path.count("/"), path))
    around = [path for path in folders if any(state.startswith(f"{path}/") for state in STATE)]
    steps += [Folder(path, there=False) for path in folders if path not in around]
    steps += [PutAside(path) for path in seen.state]
    return [*steps, *(Folder(path, there=False) for path in around)]


def refuse_foreign(version: str, want: Wanted, seen: Observed) -> None:
    """Refuse, naming all, if something that we did not put there is in the way.

    Raises:
        Conflict: see above.
    """
    ways = [
        f"{path} is {what}, where a folder is needed: move it away, or make it one, and try again"
        for path in dict.fromkeys((*_missing_folders(want, seen), *STATE))
        if (what := seen.no_folders.get(path))
    ]
    if want.imports and CONTAINERD in seen.links:
        ways.append(f"{CONTAINERD} is a link: put at its head {IMPORTS.strip()}")
    for file in want.files:
        there = seen.files.get(file.path)
        if file.path in seen.others or file.path in seen.links:
            ways.append(f"{file.path} is not a regular file")
        elif there is not None and not file.edited and there != file.content:
            known = seen.record.files.get(file.path)
            if known is None:
                ways.append(f"{file.path} is there and not ours")
            elif known != digest(there):
                ways.append(f"{file.path} was edited (use a drop-in beside it instead)")
    ways += _foreign_links(want, seen)
    of_another_kind = {
        CURRENT: seen.files.keys() | seen.others,
        RECORD: seen.links.keys() | seen.others,
        f"{RELEASES}/{version}": seen.files.keys() | seen.links.keys(),
    }
    ways += [
        f"{path} is there and not ours: move it away, and try again"
        for path, others in of_another_kind.items()
        if path in others
    ]
    if ways:
        raise Conflict("; ".join(ways))


def _foreign_links(want: Wanted, seen: Observed) -> Iterator[str]:
    for path, to in want.links:
        if path in seen.files or path in seen.others:
            yield f"{path} is there and not ours"
        elif seen.links.get(path, to) != to and path not in seen.record.links:
            yield f"{path} links to {seen.links[path]}, not to us"


def _recorded(components: Iterable[Component], want: Wanted, seen: Observed) -> Record:
    """What we shall own when all is done, which is all that we ever owned and all that is wanted now."""
    ours = {
        file.path: digest(file.content)
        for file in want.files
        if not (file.edited and file.path in seen.files and file.path not in seen.record.files)
    }
    return Record(
        components=seen.record.components | frozenset(components),
        files={**ours, **{path: hash_ for path, hash_ in seen.record.files.items() if path not in ours}},
        links=seen.record.links | {path for path, _ in want.links},
        folders=seen.record.folders | frozenset(_missing_folders(want, seen)) - {*STATE},  # our state goes as a whole
        imports=seen.record.imports or want.imports,
    )


def _missing_folders(want: Wanted, seen: Observed) -> tuple[str, ...]:
    """Parents of all that is wanted which are not there, outermost first; daemons make their state by themselves."""
    paths = [file.path for file in want.files] + [path for path, _ in want.links] + [CURRENT, RECORD]
    paths += STATE if want.units else []
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    parents |= {
        str(path) for folder in want.folders for path in (PurePosixPath(folder), *PurePosixPath(folder).parents)
    }
    return tuple(sorted(parents - seen.folders - {"/"}))


def _file_step(file: File, seen: Observed) -> SetFile | None:
    there = seen.files.get(file.path)
    if there == file.content or (file.edited and there is not None):
        return None
    return SetFile(file.path, file.content, there, file.mode)


def _imports(want: Wanted, seen: Observed) -> list[Step]:
    text = seen.files.get(CONTAINERD)
    if not want.imports or text is None or text.startswith(IMPORTS):
        return []
    return [SetFile(CONTAINERD, IMPORTS + text, text)]


def _imports_out(still: Wanted, seen: Observed) -> list[Step]:
    text = seen.files.get(CONTAINERD)
    if still.imports or not seen.record.imports or text is None or IMPORTS not in text:
        return []
    return [SetFile(CONTAINERD, text.replace(IMPORTS, "", 1), text)]


def _start(want: Wanted, seen: Observed) -> list[Step]:
    if not seen.systemd or not want.units:
        return []
    steps: list[Step] = [Run(("systemctl", "daemon-reload"))]
    for unit in want.units:
        off = () if unit in _there(want, seen) else ("systemctl", "disable", "--quiet", "--now", unit)
        steps.append(Run(("systemctl", "enable", "--quiet", unit), off))
        steps.append(Run(("systemctl", "restart", unit)))
    return steps


def _started_again_if_all_fails(want: Wanted, seen: Observed) -> list[Step]:
    """Steps that do nothing. Taken back, after all the others were, they start what ran before, as it was before."""
    units = _there(want, seen) if seen.systemd else []
    reload = [Run((), ("systemctl", "daemon-reload"))] if units else []
    return [*(Run((), ("systemctl", "restart", unit)) for unit in reversed(units)), *reload]


def _there(want: Wanted, seen: Observed) -> list[str]:
    return [unit for unit in want.units if f"{UNITS}/{unit}" in seen.files]


def _stop(removed: Iterable[str], seen: Observed) -> list[Step]:
    units = [PurePosixPath(path).name for path in removed if path.endswith(".service")]
    if not seen.systemd:
        return []
    return [
        Run(("systemctl", "disable", "--quiet", "--now", unit), ("systemctl", "enable", "--quiet", "--now", unit))
        for unit in units
    ]
