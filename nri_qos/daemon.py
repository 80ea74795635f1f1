"""The parts of the running plugin, put together.

    runtime -> Link -> Plugin -> World <- Loop -> Writer -> cgroup files
                                   ^               |
                        Watch (sysfs)           Journal

``Plugin`` and ``World`` answer from memory on the main thread; ``Watch`` and ``Loop`` are threads that may wait for
files. A signal ends what the main thread waits for (``Stop``), and the main thread ends the process. Of the others
only the loop is waited for: it writes, and must not while its files are put back.
"""

import logging
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from nri_qos import cgroup, resctrl, reservations, restore
from nri_qos.cgroup import Mode
from nri_qos.config import Config, OnExit
from nri_qos.files import Hierarchy
from nri_qos.journal import Journal
from nri_qos.lookup import Lookup
from nri_qos.loop import Loop
from nri_qos.manners import Manners
from nri_qos.plugin import Plugin
from nri_qos.pools import misfit
from nri_qos.report import Report
from nri_qos.resctrl import Group
from nri_qos.serve import StatusSocket
from nri_qos.watch import Watch
from nri_qos.world import World
from nri_qos.writer import Writer
from ubhost import config
from ubhost.errors import HostFault, InvalidRequest
from ubhost.roots import Roots
from ubhost.webserver import WebServer, is_ready

FIRST_LOOK_S = 1.0  # for sysfs, before the runtime hears of us
_log = logging.getLogger(__name__)


class Daemon:
    """Everything but the connection. A dry run has no journal, so nothing can be written."""

    def __init__(self, roots: Roots, settings: Config, *, dry_run: bool, takes_config: bool) -> None:
        """Put the parts together; ``takes_config``: the runtime may send the configuration."""
        self._roots = roots
        self._dry_run = dry_run
        self._mode = cgroup.mode(roots)
        self._world = World(settings)
        self._trouble: str | None = None
        self._journal = self._keep_journal() if self._mode is Mode.V2 and not dry_run else None
        self._files = Hierarchy(cgroup.folder(roots))
        self._writer = Writer(self._files, self._journal)
        cache = Group(resctrl_of(roots), self._files, self._writer)
        if dry_run:
            self._loop = Loop(self._world, self._files, self._writer, {}, cache)
        else:
            held = {} if self._journal is None else self._journal.entries
            kept = roots.run / "nri-qos.json"
            self._world.placements = reservations.load(kept)
            save = partial(reservations.save, kept)
            manners = (Manners().keep_off,) if roots.root == Path("/") else ()  # elsewhere CPUs are not this machine's
            self._loop = Loop(self._world, self._files, self._writer, held, cache, save, *manners)
        self._watch = Watch(self._world, roots, self._loop.wake)
        self._takes_config = takes_config
        self.plugin = Plugin(
            self._world,
            is_enforcing=not dry_run and self._mode is not Mode.OTHER,
            wake=self._loop.wake,
            configure=self._configure,
            look_up=Lookup(roots).find,
        )
        self._web: WebServer | None = None

    def __enter__(self) -> Self:
        _log.info("cgroup hierarchy", extra={"mode": self._mode.value, "dry_run": self._dry_run})
        if self._mode is Mode.OTHER:
            _log.error("cgroup v2 is needed: decisions are reported, nothing is enforced")
        self._watch.start()
        self._watch.wait_for_first(FIRST_LOOK_S)
        self._refuse_misfit(self._world.config)
        if self._mode is Mode.V2:
            self._loop.start()
        irqs = self._roots.root / "proc/irq"
        report = Report(
            self._world, self._loop, self._files, self._writer, self.plugin, self._mode, irqs, self._trouble
        )
        if not self._dry_run:
            self._serve_status(report)
        if self._world.config.metrics_address is not None:
            from nri_qos.metrics import Exposition  # only who wants metrics pays for their library

            metrics = Exposition(report, self.plugin.latencies)
            self._web = WebServer(self._world.config.metrics_address, [metrics], lambda: is_ready(report.not_ready()))
            self._web.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._web is not None:
            self._web.stop()
        has_ended = self._loop.end()
        if self._journal is None:
            return
        if not has_ended:  # it may still write, and needs the journal for that
            _log.error("the loop does not end: nothing is restored, which nri-qos --restore can do later")
            return
        if self._world.config.on_exit is OnExit.RESTORE:
            outcome = restore.restore(self._files, self._journal)
            outcome[restore.RESTORED] += resctrl.remove(resctrl_of(self._roots))
            _log.info("cgroup files restored", extra={"outcome": outcome})
        self._journal.close()

    def _keep_journal(self) -> Journal | None:
        """Return the journal. Without one containers still get their CPUs from the runtime, and no file is written."""
        try:
            return Journal(journal_of(self._roots))
        except HostFault as error:
            self._trouble = f"cgroup files are left alone, as nothing could be put back: {error}"
            _log.error("cgroup files are left alone, as nothing could be put back", extra={"error": str(error)})
            return None

    def _serve_status(self, report: Report) -> None:
        """Answer ``ubnode qos``; pods do not depend on it, so a failure is only told."""
        try:
            status = StatusSocket(self._roots.run, report)
        except HostFault as error:
            _log.warning("ubnode qos will not be answered", extra={"error": str(error)})
            return
        status.start()

    def _configure(self, text: str) -> None:
        """Take the configuration that a runtime hands to the plugins it starts.

        Raises:
            InvalidRequest: it is wrong.
        """
        if text.strip() and self._takes_config:
            settings = config.parse(text, Config, where="the configuration from the runtime")
            self._refuse_misfit(settings)
            self._world.config = settings

    def _refuse_misfit(self, settings: Config) -> None:
        """Refuse a configuration that leaves containers nothing, as far as this machine is known.

        Raises:
            InvalidRequest: see above.
        """
        machine = self._world.machine
        if machine is not None and (why := misfit(machine, settings)):
            raise InvalidRequest(why)


def journal_of(roots: Roots) -> Path:
    return roots.run / "nri-qos.journal"


def resctrl_of(roots: Roots) -> Path:
    return roots.root / "sys/fs/resctrl"
