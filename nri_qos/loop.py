"""The loop: every period observe, decide, and make the cgroup files say it. Off the handlers' thread.

It never asks the runtime for updates; it writes the files itself, and only those of pods it knows. Files that should
not have changed are looked at in turn, a part in each period, so that somebody else's change is found within thirty
periods without reading everything each time; what an event points at is looked at in the next.

Source: design section 8; reference/nri.md sections 0 (3), 2.3 and 5 (D, F).
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nri_qos import census, cpulist, desired, load, lookout, squeeze
from nri_qos.census import Census
from nri_qos.counters import Rates
from nri_qos.desired import Squeezed
from nri_qos.files import Hierarchy
from nri_qos.lookout import Lookout
from nri_qos.model import Placement
from nri_qos.pools import Key, Node
from nri_qos.relief import Relief
from nri_qos.resctrl import Group
from nri_qos.sampler import Sampler
from nri_qos.settings import Place, Setting
from nri_qos.squeeze import Limits, Observed, State
from nri_qos.trouble import Trouble
from nri_qos.world import World
from nri_qos.writer import Writer

ROUNDS = 30  # periods in which every file was looked at
LEAST_LOOKS = 64  # files in a period at least
GATHER_S = 0.05  # events come in swarms
REST = 5  # times as long as a turn took, before the next one that an event asks for
_log = logging.getLogger(__name__)


@dataclass
class Seen:
    """What the last period showed, for whoever asks."""

    pods: Mapping[str, Rates] = field(default_factory=dict)  # by folder
    observed: Observed | None = None
    state: State = field(default_factory=State)
    offline: frozenset[int] = frozenset()
    quota: dict[str, float | None] = field(default_factory=dict)  # by folder of an offline pod
    took: float = 0.0  # seconds of the last turn


class Loop(threading.Thread):
    def __init__(
        self,
        world: World,
        files: Hierarchy,
        writer: Writer,
        held: Mapping[Place, object],
        resctrl: Group | None = None,
        save: Callable[[Mapping[Key, Placement]], None] = lambda _: None,
        keep_off: Callable[[frozenset[int]], None] = lambda _: None,
    ) -> None:
        super().__init__(name="loop", daemon=True)
        self.seen = Seen()
        self._world = world
        self._sampler = Sampler(files)
        self._writer = writer
        self._held = held
        self._resctrl = resctrl
        self._save = save  # what is reserved has changed
        self._keep_off = keep_off  # CPUs on which this process must not run itself
        self._saved: Mapping[Key, Placement] = dict(world.placements)
        self._census: Census | None = None
        self._folders: list[str] = []  # to be measured
        self._version = -1  # of the model of which that is the census
        self._squeezed_to: Squeezed | None = None
        self._settled_for: Census | None = None
        self._wanted: dict[Place, Setting] = {}
        self._touched: set[str] = set()  # containers to look at
        self._queue: list[Place] = []  # what is still to be looked at in this round
        self._period = 0
        self._counted = 0  # the period of the census
        self._strangers = 0
        self._sighted: frozenset[str] = frozenset()  # cgroups of containers that were not announced when last looked
        self._relief = Relief(files, self._sampler, writer, world.counts)
        self._lookout = Lookout(files)
        self._alarm = 0.0  # what the lookout saw, for the period that it ended
        self._is_probed = False
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._trouble = Trouble(_log, "the loop cannot work")

    def wake(self) -> None:
        """Something happened that the next period is too late for."""
        self._wake.set()

    def end(self, timeout_s: float = 20) -> bool:
        """End after the turn that is under way; return whether it did: a disk that hangs can keep it from it."""
        self._ending.set()
        self._wake.set()
        if self.is_alive():
            self.join(timeout_s)
        return not self.is_alive()

    def run(self) -> None:
        self._relief.start()
        due, is_woken = time.monotonic(), False
        while not self._ending.is_set():
            now = time.monotonic()
            is_due = now >= due or self._is_disturbed(now)
            if is_due:
                due = max(min(due, now) + self._world.config.period, now)
            if self._world.machine is not None and (is_due or is_woken):
                with self._trouble:
                    self.turn(now, is_due=is_due)
                self._world.counts["loop_errors",] += self._trouble.is_there
            is_woken = self._wake.wait(min(max(due - time.monotonic(), 0.0), lookout.INTERVAL_S))
            if is_woken:
                self._ending.wait(max(GATHER_S, REST * self.seen.took))
            self._wake.clear()

    def _is_disturbed(self, now: float) -> bool:
        """Whether online work waits now, and offline work has something to give: the period is over then."""
        people, quota = self._census, self.seen.state.quota
        config = self._world.config
        if people is None or quota is None or quota <= config.floor or not people.offline():
            self._lookout.rest()
            return False
        waiting = self._lookout.waiting(people, now)
        if waiting <= lookout.FACTOR * config.pressure:
            return False
        self._alarm = waiting
        self._world.counts["alarms",] += 1
        return True

    def turn(self, now: float, *, is_due: bool = True) -> None:
        """Go round once at ``now`` (seconds, monotonic); measure only if a period is over.

        Raises:
            HostFault: the machine is not known, or the journal cannot be kept.
        """
        began = time.perf_counter()
        people = self._take_census()
        is_cut_short = self._alarm > 0
        if is_due:
            self._measure(people, now)
        if is_due and not is_cut_short:  # what follows counts in whole periods
            self._relief.turn(people, self._world.machine, now)
            self._world.overdrawn = self._relief.overdrawn
            if self._resctrl is not None:
                self._resctrl.turn(people.offline_containers(), people.node.config.resctrl)
        squeezed = self._squeezed(people)
        if squeezed != self._squeezed_to or people is not self._settled_for:
            self._squeezed_to, self._settled_for = squeezed, people
            self.seen.offline, self.seen.quota = squeezed.cpus, dict(squeezed.quota)
            self._keep_off(people.node.exclusive)
            with self._world.locked(to_change=False) as world:
                world.offline = squeezed.cpus
                world.homebound = squeezed.homebound
            wanted = desired.settings(people, squeezed, self._held)
        else:
            wanted = self._wanted
        self._writer.apply(self._due(wanted, is_due=is_due))
        if is_due and self._period % ROUNDS == 0:
            self._writer.prune()
        self.seen.took = time.perf_counter() - began

    def _take_census(self) -> Census:
        """Return the census of the model, the last one if nothing changed."""
        with self._world.locked(to_change=False) as world:
            self._touched |= world.touched
            world.touched.clear()
            is_stale = self._period >= self._counted + ROUNDS
            if self._census is not None and world.version == self._version and not is_stale:
                return self._census
            node, sandboxes, members = world.node(), dict(world.sandboxes), list(world.members.values())
            is_static, self._version = world.kubelet_is_static, world.version
            placements = dict(world.placements)
            displaced, world.displaced = world.displaced, []
        for member in displaced:
            _log.warning(
                "a container ran on CPUs that are not its own: reserved for another, or not as many as it asks for",
                extra={"container": member.container.name, "cpus": cpulist.render(member.own_cpus)},
            )
        if placements != self._saved:
            self._saved = placements
            self._save(placements)
        self._counted = self._period
        people = census.take(sandboxes, members, node, kubelet_is_static=is_static)
        self._census, found = census.with_strangers(people, sandboxes, self._sampler.children, self._sighted)
        strangers, is_new = len(found & self._sighted), not found <= self._sighted
        self._sighted = found
        if is_new:
            self._version = -1  # look again in the next turn, at what the runtime has announced by then
        self._note_strangers(strangers)
        self._folders = self._census.measured()
        doubtful = {cgroup.rpartition("/")[0] for cgroup in found}  # the list may be old, and the stranger have ended
        self._sampler.forget_lists({*self._folders} - doubtful)
        self._probe(self._census)
        return self._census

    def _probe(self, people: Census) -> None:
        """See once what the kernel offers, in the first pod that there is: the root of the tree has other files."""
        folder = next((house.folder for house in people.households if house.folder), None)
        if folder is not None and not self._is_probed and self._writer.probe(folder):
            self._is_probed = True

    def _note_strangers(self, count: int) -> None:
        if count > self._strangers:
            self._world.counts["unknown_containers",] += count - self._strangers
            _log.warning("containers run that the runtime did not announce", extra={"count": count})
        self._strangers = count

    def _measure(self, people: Census, now: float) -> None:
        """Read the counters and take one step of the squeeze."""
        self._period += 1
        alarm, self._alarm = self._alarm, 0.0
        sample = self._sampler.sample(self._folders, now)
        self.seen.pods = sample.rates
        before = self.seen.state
        is_starting = before.quota is None and sample.fresh and self._period <= squeeze.PATIENCE
        if sample.is_first or is_starting:
            return  # nothing, or not all, can be told yet
        observed = load.observe(people, sample.rates, sample.total, sample.fresh)
        self.seen.observed = replace(observed, pressure=max(observed.pressure, alarm))
        self.seen.state = squeeze.decide(self.seen.observed, before, limits(people.node))
        self._report(before, is_alarm=alarm > 0)

    def _squeezed(self, people: Census) -> Squeezed:
        state, node, offline = self.seen.state, people.node, people.offline()
        room = node.offline_room
        if state.quota is None:
            return Squeezed(room, {}, self._relief.high, self._relief.homebound)
        counts = squeeze.spread(
            state.quota, state.nodes, {n.id: len(room.intersection(n.cpus)) for n in node.machine.nodes}
        )
        cpus = desired.choose_offline(node, counts, self.seen.offline)
        if state.quota >= len(room):
            return Squeezed(cpus, dict.fromkeys(offline), self._relief.high, self._relief.homebound)
        used = {folder: self.seen.pods.get(folder, Rates()).usage or 0.0 for folder in offline}
        given = {folder: quota for folder, quota in self.seen.quota.items() if quota is not None}
        shares = squeeze.settled(squeeze.share(state.quota, used, given, people.limits()), given, len(room))
        return Squeezed(cpus, shares, self._relief.high, self._relief.homebound)

    def _due(self, wanted: dict[Place, Setting], *, is_due: bool) -> list[Setting]:
        """Return the settings that are new or changed, and the next of those to be looked at in turn."""
        changed: dict[Place, Setting] = {}
        if wanted is not self._wanted:
            changed = {place: setting for place, setting in wanted.items() if self._wanted.get(place) != setting}
            self._wanted = wanted
        if self._touched and self._census is not None:
            folders = self._census.folders(self._touched)
            self._touched.clear()
            changed.update((place, setting) for place, setting in wanted.items() if place[0] in folders)
        if is_due:
            if not self._queue:
                self._queue = list(wanted)
            count = max(LEAST_LOOKS, len(wanted) // ROUNDS + 1)
            looks, self._queue = self._queue[:count], self._queue[count:]
            changed.update((place, wanted[place]) for place in looks if place in wanted)
        return list(changed.values())

    def _report(self, before: State, *, is_alarm: bool) -> None:
        after, observed = self.seen.state, self.seen.observed
        if observed is None or after.quota == before.quota:
            return
        _log.info(
            "offline work squeezed" if _is_less(after.quota, before.quota) else "offline work given more",
            extra={
                "cpus": round(after.quota or 0, 3),
                "before": None if before.quota is None else round(before.quota, 3),
                "because": after.reason,
                "online": observed.online,
                "other": observed.other,
                "pressure": round(observed.pressure, 4),
                "throttled": observed.is_throttled,
                "alarm": is_alarm,
                "room": cpulist.render(self.seen.offline),
            },
        )


def _is_less(quota: float | None, before: float | None) -> bool:
    """Whether a quota is a squeeze; the first is one, as there was no limit before."""
    return quota is not None and (before is None or quota < before)


def limits(node: Node) -> Limits:
    config = node.config
    return Limits(config.floor, config.threshold, config.pressure, config.shrink_on_throttling)
