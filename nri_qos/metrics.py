"""Prometheus metrics of nri-qos. Imported only where an address is configured.

Source of the names: prometheus.io/docs/practices/naming; all are listed in docs/qos.md.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from nri_qos.latency import BOUNDS_S, Latencies
from nri_qos.report import Report

PREFIX = "ub_qos_"

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "decisions": ("Containers decided about", ("class",)),
    "refused": ("Containers that must not be created", ()),
    "grants_unknown": ("Containers that went without what their pod may have been given", ()),
    "invalid_values": ("Annotations and labels with a value that means nothing", ("key",)),
    "class_changes_ignored": ("Pods that changed their class while they ran", ()),
    "unknown_containers": ("Events about containers that nobody announced", ()),
    "displaced": ("Containers found running on CPUs that are not their own", ()),
    "evicted": ("Offline pods ended", ("because",)),
    "handler_errors": ("Calls of the runtime that could not be worked on", ("method",)),
    "reasserted": ("Updates of the runtime that were corrected", ()),
    "sessions": ("Connections to the runtime", ()),
    "alarms": ("Periods that were cut short, as online work waited", ()),
    "loop_errors": ("Periods in which the loop failed", ()),
    "writes": ("Writes of cgroup files", ("file",)),
    "drift": ("Cgroup files that somebody else changed", ("file",)),
    "ineffective": ("Cgroup files that did not become what was written", ("file",)),
    "write_errors": ("Cgroup files that could not be written", ("file", "errno")),
}

GAUGES: Mapping[str, str] = {
    "nri_connected": "1 while the runtime has configured us",
    "nri_synchronized": "1 while the model is the runtime's: ready",
    "offline_quota_cpus": "CPUs that offline work may use",
    "offline_cpuset_cpus": "CPUs on which offline work may run",
    "online_usage_cpus": "CPUs that online work uses, other than its own",
    "other_usage_cpus": "CPUs that everything else uses, but for offline work",
    "pressure_ratio": "Share of time in which an online pod waited for a CPU; the worst pod",
    "irqs_on_own_cpus": "Interrupts that come to CPUs which are a container's own",
    "loop_seconds": "Time that the last period took",
}


class Exposition:
    """A collector: one look at the daemon becomes all metrics."""

    def __init__(self, report: Report, latencies: Latencies) -> None:
        self._report = report
        self._latencies = latencies

    def collect(self) -> Iterator[Metric]:
        state = self._report.state()
        for name, help_ in GAUGES.items():
            if (value := state.get(name)) is not None:
                yield GaugeMetricFamily(PREFIX + name, help_, value=float(value))
        yield _labelled("pods", "Pods that run, by class", ("class",), _pairs(state["pods"]))
        yield _labelled("capability", "1 if this kernel has a cgroup file", ("file",), _pairs(state["capabilities"]))
        yield _labelled("cgroup_mode", "1 for the hierarchy of this node", ("mode",), [((state["cgroup_mode"],), 1.0)])
        report = self._report
        yield _labelled("remote_bytes", "Borrowed memory of a pod", ("namespace", "pod"), report.remote_bytes())
        help_ = "Containers that may use borrowed memory"
        yield _labelled("remote_containers", help_, ("class",), report.remote_containers())
        help_ = "Memory of a pod on other NUMA nodes than those it is bound to"
        yield _labelled("away_bytes", help_, ("namespace", "pod"), report.away_bytes())
        kills = CounterMetricFamily(
            PREFIX + "oom_kills", "Processes killed for want of memory", labels=("namespace", "pod", "class")
        )
        for labels, value in self._report.oom_kills():
            kills.add_metric(labels, value)
        yield kills
        yield from self._counters()
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        counts = self._report.counts()
        for name, (help_, labels) in COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, help_, labels=labels)
            found = {key[1:]: value for key, value in counts.items() if key[0] == name}
            for values, value in (found or ({(): 0} if not labels else {})).items():
                family.add_metric(values, value)
            yield family

    def _histograms(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(PREFIX + "handler_seconds", "Time to answer the runtime", labels=("method",))
        for method, (buckets, total) in self._latencies.snapshot().items():
            bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
            family.add_metric((method,), list(zip(bounds, buckets, strict=True)), total)
        yield family


def _labelled(
    name: str, help_: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, help_, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _pairs(values: Mapping[str, float | bool]) -> list[tuple[tuple[str, ...], float]]:
    return [((key,), float(value)) for key, value in values.items()]
