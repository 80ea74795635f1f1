"""Bring components onto a node, or take them off: observe, plan, apply, and say what was done."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from ubhost.apply import apply
from ubhost.errors import Busy, InvalidRequest
from ubnode.install.layout import CURRENT, RECORD, RELEASES, Component, Places, Wanted, wanted
from ubnode.install.node import POOLS, Node
from ubnode.install.plan import Observed, plan_install, plan_prune, plan_uninstall
from ubnode.install.proof import prove
from ubnode.install.record import Record
from ubnode.install.runtimes import CONTAINERD_DROP_IN, CRIO_DROP_IN, NriSwitch, Runtime, nri_switch
from ubnode.install.steps import SetFile, Step

Say = Callable[[str], None]


def bring(
    node: Node,
    version: str,
    new: Iterable[Component],
    places: Places,
    say: Say,
    *,
    beside: bool = False,
    dry_run: bool = False,
) -> None:
    """Bring ``new`` and all that is installed already to release ``version``: there is one current release for all.

    ``beside`` leaves others that are installed already alone, and takes the release that they have.

    Raises:
        InvalidRequest: there is nothing to bring.
        Busy: another installation is at work.
        Conflict: something on the node is in the way; nothing was changed.
        HostFault: the node refused a step; the others were taken back.
    """
    with _begun(node, dry_run=dry_run) as record:
        new = frozenset(new)
        components = record.components | new
        if not components:
            raise InvalidRequest("nothing is installed here: say ubnode install COMPONENT")
        runtime = node.runtime()
        if {CONTAINERD_DROP_IN, CRIO_DROP_IN} & record.files.keys():  # it listens because of us
            runtime = replace(runtime, listens=False)
        yields = beside and not record.components <= new
        want = _wanted(new if yields else components, places, runtime)
        seen = node.observe([*_paths(want), f"{RELEASES}/{version}"])
        if yields and (current := seen.links.get(CURRENT)) in seen.releases:
            version = current
        steps = plan_install(version, components, want, seen)
        older = () if yields else plan_prune(version, seen)
        if dry_run:
            _announce([*steps, *older], say)
        else:
            try:
                _carry_out(node, steps, say)
                _carry_out(node, older, say)
            finally:  # what it put aside is its own, also if all was taken back
                node.sweep([*record.paths, *_paths(want)])
        if not steps:
            say(f"nothing to do: {version} is installed")
        for hint in _hints(want, seen, steps):
            say(hint)


def take_off(
    node: Node,
    leave: Iterable[Component],
    places: Places,
    say: Say,
    *,
    purge: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Take ``leave`` (all that are installed, if empty) off the node.

    Raises:
        Busy: pods hold devices or volumes, or another installation is at work; nothing was changed. ``force`` takes
            from pods.
        HostFault: the node refused a step; the others were taken back.
    """
    with _begun(node, dry_run=dry_run) as record:
        gone = frozenset(leave) or record.components
        for absent in sorted(gone - record.components):
            say(f"not installed: {absent}")
        if not gone:
            say("nothing is installed here")
        gone &= record.components
        if not gone:
            if not dry_run:
                node.forget()  # after one that was killed before it had written anything
            return
        if not force:
            _refuse_while_in_use(node, gone)
        runtime = replace(node.runtime(), listens=False)
        still = _wanted(record.components - gone, places, runtime)
        seen = node.observe(record.folders)
        steps = plan_uninstall(gone, still, seen, purge=purge)
        if dry_run:
            _announce(steps, say)
            return
        _carry_out(node, steps, say)
        node.sweep(record.paths)
        say(prove(node, steps))
        _tell_what_stays(node, seen, steps, say)


@contextmanager
def _begun(node: Node, *, dry_run: bool) -> Iterator[Record]:
    """Be alone on the node, and finish what one who was killed has left; a dry run only looks."""
    with nullcontext() if dry_run else node.alone():
        record = node.observe([]).record
        if not dry_run:
            node.sweep(record.paths)
        yield record


def _wanted(components: Iterable[Component], places: Places, runtime: Runtime) -> Wanted:
    """Return what ``components`` want; the runtime's configuration matters to one of them only."""
    components = frozenset(components)
    return wanted(components, places, nri_switch(runtime) if Component.NRI in components else NriSwitch())


def _paths(want: Wanted) -> list[str]:
    return [*(file.path for file in want.files), *(path for path, _ in want.links), *want.folders, RECORD, CURRENT]


def _refuse_while_in_use(node: Node, gone: Iterable[Component]) -> None:
    use = node.use()
    if Component.CNI in gone and use.attachments:
        raise Busy(f"pods hold {len(use.attachments)} devices ({', '.join(use.attachments[:8])}): drain the node first")
    if Component.CSI in gone and use.published:
        raise Busy(f"pods use {len(use.published)} volumes ({', '.join(use.published[:8])}): drain the node first")


def _announce(steps: Iterable[Step], say: Say) -> None:
    for step in steps:
        if described := str(step):
            say(f"would {described}")


def _carry_out(node: Node, steps: Iterable[Step], say: Say) -> None:
    def do(step: Step) -> None:
        node.do(step)
        if described := str(step):
            say(described)

    apply(steps, do)


def _hints(want: Wanted, seen: Observed, steps: Iterable[Step]) -> Iterable[str]:
    """What is left to do by hand."""
    written = {step.path for step in steps if isinstance(step, SetFile)}
    if CONTAINERD_DROP_IN in written:
        yield "containerd listens for NRI plugins after: systemctl restart containerd"
    if CRIO_DROP_IN in written:
        yield "CRI-O listens for NRI plugins after: systemctl restart crio"
    if want.units and not seen.systemd and written:
        yield f"on the node: systemctl daemon-reload && systemctl enable --now {' '.join(want.units)}"


def _tell_what_stays(node: Node, seen: Observed, steps: Iterable[Step], say: Say) -> None:
    removed = {step.path for step in steps if isinstance(step, SetFile)}
    if not node.observe([]).record.components:
        for path in sorted(seen.record.files.keys() & seen.files.keys() - removed):
            say(f"stays, because it was edited (--purge removes it): {path}")
    if volumes := node.use().volumes:
        say(f"stays, because it holds {len(volumes)} volumes: {POOLS}, and what serves them to pods of other nodes")
