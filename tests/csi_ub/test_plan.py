"""Plans of mounts, as plain values: what is wanted and what is there, in; steps, out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_ub.plan import Entry, Seen, attributes_of, plan_mount, plan_unmount
from csi_ub.reasons import InUse
from csi_ub.steps import Bind, File, Folder, MountStep
from ubhost.apply import apply
from ubhost.errors import Conflict, HostFault
from ubhost.mounttable import Attribute, Mount, Origin

OURS, DEAD, FOREIGN = Origin("0:1", "/v/data"), Origin("0:2", "/v/data"), Origin("0:3", "/")
TARGET = "/pods/1/mount"
BIND = Bind(TARGET, OURS, Attribute.RDONLY | Attribute.NODEV)
OPTIONS = {Attribute.RDONLY: "ro", Attribute.NOSUID: "nosuid", Attribute.NODEV: "nodev", Attribute.NOEXEC: "noexec"}


def mount(origin: Origin, attributes: Attribute = BIND.attributes, id_: int = 1) -> Mount:
    options = frozenset(name for attribute, name in OPTIONS.items() if attribute in attributes)
    return Mount(id_, id_ - 1, origin, TARGET, options or frozenset({"rw"}), (), "ext4", "d", frozenset({"rw"}))


class Table:
    """A mount point that can do what the kernel can: the same steps, no kernel. Fails before step ``fails_at``."""

    def __init__(self, seen: Seen, fails_at: int = -1) -> None:
        self.entry, self.mounts, self.left = seen.entry, list(seen.mounts), fails_at

    @property
    def seen(self) -> Seen:
        return Seen(self.entry, tuple(self.mounts))

    def do(self, step: MountStep) -> None:
        if self.left == 0:
            self.left = -1
            raise HostFault("the kernel refused")
        self.left -= 1
        match step:
            case Folder(_, exists) | File(_, exists):
                assert not self.mounts
                there = Entry.FOLDER if isinstance(step, Folder) else Entry.FILE
                self.entry = there if exists else Entry.MISSING
            case Bind(_, origin, attributes, attached, _, is_device):
                if attached:
                    assert self.entry is (Entry.FILE if is_device else Entry.FOLDER)
                    self.mounts.append(mount(origin, attributes, len(self.mounts) + 1))
                else:
                    assert self.mounts.pop().origin == origin


def test_what_is_mounted_as_wanted_needs_nothing() -> None:
    assert plan_mount(BIND, Seen(Entry.FOLDER, (mount(OURS),))) == ()


def test_a_missing_mount_point_is_made_first() -> None:
    assert plan_mount(BIND, Seen(Entry.MISSING)) == (Folder(TARGET), BIND)
    assert plan_mount(BIND, Seen(Entry.FOLDER)) == (BIND,)


def test_a_device_is_shown_at_a_file_and_a_folder_at_a_folder() -> None:
    device = replace(BIND, is_device=True)
    assert plan_mount(device, Seen(Entry.MISSING)) == (File(TARGET), device)
    assert plan_mount(device, Seen(Entry.FILE)) == (device,)
    for want, entry in ((device, Entry.FOLDER), (BIND, Entry.FILE), (device, Entry.OTHER), (BIND, Entry.OTHER)):
        with pytest.raises(Conflict, match="exists and is not a"):
            plan_mount(want, Seen(entry))
    shown = Seen(Entry.FOLDER, (mount(OURS),))
    ours = frozenset({OURS})
    assert plan_unmount(TARGET, shown, ours, remove=True, is_device=True)[-1] == File(TARGET, exists=False)
    assert plan_unmount(TARGET, Seen(Entry.FILE), ours, remove=True, is_device=True) == (File(TARGET, exists=False),)
    with pytest.raises(InUse, match="is no folder of ours"):
        plan_unmount(TARGET, Seen(Entry.FILE), ours, remove=True)


@pytest.mark.parametrize(
    "seen",
    [
        Seen(Entry.OTHER),
        Seen(Entry.FOLDER, (mount(FOREIGN),)),
        Seen(Entry.FOLDER, (mount(OURS, Attribute.NODEV),)),
        Seen(Entry.FOLDER, (mount(OURS), mount(FOREIGN, id_=2))),
    ],
)
def test_something_else_at_the_target_is_a_conflict(seen: Seen) -> None:
    with pytest.raises(Conflict, match=TARGET):
        plan_mount(BIND, seen)


def test_the_mount_of_a_dead_daemon_is_taken_away_lazily_and_replaced() -> None:
    first, second = plan_mount(BIND, Seen(Entry.FOLDER, (mount(DEAD),)), frozenset({DEAD}))
    assert isinstance(first, Bind)
    assert (first.origin, first.attached, first.lazy) == (DEAD, False, True)
    assert second == BIND


def test_a_mount_that_is_not_ours_is_never_unmounted() -> None:
    with pytest.raises(InUse, match=TARGET):
        plan_unmount(TARGET, Seen(Entry.FOLDER, (mount(FOREIGN),)), frozenset({OURS}), remove=True)


def test_a_living_mount_is_never_unmounted_lazily() -> None:
    (step, _) = plan_unmount(TARGET, Seen(Entry.FOLDER, (mount(OURS),)), frozenset({OURS}), remove=True)
    assert isinstance(step, Bind)
    assert not step.lazy


def test_nothing_there_needs_nothing() -> None:
    assert plan_unmount(TARGET, Seen(Entry.MISSING), frozenset({OURS}), remove=True) == ()
    assert plan_unmount(TARGET, Seen(Entry.FOLDER), frozenset({OURS}), remove=False) == ()


stacks = st.lists(st.sampled_from([OURS, DEAD]), max_size=4)


@given(stacks, st.sampled_from([Entry.MISSING, Entry.FOLDER]))
def test_after_one_apply_the_volume_is_seen_and_nothing_is_left_to_do(stack: list[Origin], entry: Entry) -> None:
    dead = frozenset({DEAD})
    table = Table(Seen(Entry.FOLDER if stack else entry, tuple(mount(o, id_=i + 1) for i, o in enumerate(stack))))
    apply(plan_mount(BIND, table.seen, dead), table.do)
    assert table.seen.mounts[-1].origin == OURS
    assert attributes_of(table.seen.mounts[-1]) == BIND.attributes
    assert plan_mount(BIND, table.seen, dead) == ()
    assert DEAD in stack or len(table.seen.mounts) == 1
    for step in plan_unmount(TARGET, table.seen, frozenset({OURS}), remove=True, dead=dead):
        table.do(step)
    assert table.seen == Seen(Entry.MISSING)


def test_a_writable_mount_below_a_read_only_one_is_not_laid_bare() -> None:
    writable, read_only = mount(OURS, Attribute.NODEV), mount(OURS, id_=2)
    assert plan_mount(BIND, Seen(Entry.FOLDER, (writable, read_only))) == ()


@given(st.sampled_from([Entry.MISSING, Entry.FOLDER]), st.integers(0, 3))
def test_a_plan_that_fails_anywhere_changes_nothing(entry: Entry, fails_at: int) -> None:
    before = Seen(entry)
    table = Table(before, fails_at)
    steps = plan_mount(BIND, before)
    if fails_at < len(steps):
        with pytest.raises(HostFault):
            apply(steps, table.do)
        assert table.seen == before
    else:
        apply(steps, table.do)
        assert len(table.seen.mounts) == 1
