"""Prometheus metrics, /healthz and /readyz on ``metrics_address``. Imported only where one is configured.

No look at a metric touches the data of a volume: a hung mount must not hang the scraper too.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from csi_ub.syncthing.beats import lags
from csi_ub.syncthing.conflicts import counted
from csi_ub.volumes import Volumes
from ubhost.errors import UbError
from ubhost.webserver import WebServer, is_ready


class Calls:
    """Counts what the interceptor tells of each call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[str] = Counter()

    def __call__(self, method: str, code: str, seconds: float) -> None:
        with self._lock:
            self._count[method, code] += 1
            self._seconds[method] += seconds  # type: ignore[assignment]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            count, seconds = dict(self._count), dict(self._seconds)
        calls = CounterMetricFamily("csi_ub_calls", "Calls answered", labels=("method", "code"))
        times = SummaryMetricFamily("csi_ub_call_seconds", "Time that calls took", labels=("method",))
        for (method, code), number in count.items():
            calls.add_metric((method, code), number)
        for method, total in seconds.items():
            number = sum(each for (name, _), each in count.items() if name == method)
            times.add_metric((method,), count_value=number, sum_value=total)
        yield calls
        yield times


class Exposition:
    """A collector: the volumes of a node, as their records tell."""

    def __init__(self, volumes: Volumes, replicas: Path) -> None:
        self._volumes = volumes
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("csi_ub_volumes", "Volumes that this node owns", labels=("pool", "type", "engine"))
        promised = GaugeMetricFamily(
            "csi_ub_pool_promised_bytes",
            "Sizes of all volumes of a pool: more than it has is over-use",
            labels=("pool",),
        )
        available = GaugeMetricFamily("csi_ub_pool_available_bytes", "Free space of a pool", labels=("pool",))
        lag = GaugeMetricFamily(
            "csi_ub_replication_lag_seconds", "Age of the last beat of another node", labels=("volume", "node")
        )
        conflicts = GaugeMetricFamily("csi_ub_conflicts", "Conflict copies that wait for somebody", labels=("volume",))
        for pool in self._volumes.pools:
            found = list(pool.volumes.all())
            for key, number in Counter((each.spec.type.value, each.engine) for each in found).items():
                count.add_metric((pool.name, *key), number)
            promised.add_metric((pool.name,), sum(each.size for each in found))
            available.add_metric((pool.name,), pool.space.available(pool.path))
            self._add_copies(lag, conflicts, {each.id: pool.volumes.home / each.id / "share" for each in found})
        self._add_copies(lag, conflicts, {share.name: share for share in self._replicas.glob("ub-*/")})
        yield from (count, promised, available, lag, conflicts)

    def _add_copies(self, lag: GaugeMetricFamily, conflicts: GaugeMetricFamily, shares: dict[str, Path]) -> None:
        for volume, share in shares.items():
            for node, seconds in lags(share, self._volumes.node).items():
                lag.add_metric((volume, node), seconds)
            if (number := counted(share)) is not None:
                conflicts.add_metric((volume,), number)


def serve(address: str, volumes: Volumes, replicas: Path, calls: Calls, check: Callable[[], None]) -> None:
    """Answer in threads of their own, for the life of the process.

    Raises:
        HostFault: the address is taken, or not ours.
    """

    def why_not_ready() -> str | None:
        try:
            check()
        except UbError as error:
            return str(error)
        return None

    WebServer(address, [calls, Exposition(volumes, replicas)], lambda: is_ready(why_not_ready())).start()
