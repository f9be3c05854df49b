"""A job's counts for Prometheus: over HTTP, or in a file for node exporter's textfile collector.

The metrics, of which `run` and `engine` are labels of the first only:

- `beam_lateness_run_info`, `beam_lateness_up` (0: the counts could not be read, and are not shown)
- `beam_lateness_input_records_total`
- `beam_lateness_records_total{outcome="on_time|late|too_late|invalid"}`: their sum is the input,
  but for records in open windows
- `beam_lateness_aggregated_records_total` (those on time and the late), `..._panes_total`,
  `..._corrections_total`, `..._blank_lines_total`, `..._behind_watermark_records_total`,
  `..._bound_changes_total`, `..._alerts_total`, `..._alerts_failed_total`
- summaries (`_sum` and `_count`), with gauges `..._min_seconds` and `..._max_seconds`, once there
  is a value: `beam_lateness_lateness_seconds`, `beam_lateness_too_late_by_seconds`
- gauges, once they are known: `beam_lateness_watermark_timestamp_seconds`,
  `..._watermark_lag_seconds`, `..._bound_seconds`, `..._idle_splits`, `..._paused_splits`,
  `..._in_flight_records`
- `beam_lateness_other{name="..."}`: counts that this module does not know, as they are
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from beam_lateness.pipelines.ports import LARGEST, LOOPBACK
from beam_lateness.transforms import metrics

_LOG = logging.getLogger(__name__)

ReadCounts = Callable[[], Mapping[str, int]]
"""Gives counts by metric name, such as `metrics.tally`."""

EVERY_S: Final = 15.0  # as often as Prometheus itself comes by, if its example is followed
_SUFFIX: Final = ".prom"  # node exporter passes over files of other names


class _Gauge(NamedTuple):
    name: str
    unit: int  # how many of what we count are one of Prometheus's base unit
    help: str


# Each is counted by itself: a difference of two counters could fall, as they are not read at one
# moment, and Prometheus takes a fall for a restart.
_OUTCOMES: Final = (metrics.ON_TIME, metrics.LATE, metrics.TOO_LATE, metrics.INVALID)
_COUNTERS: Final = {
    metrics.INPUT: ("input_records", "Records read; markers and blank lines are none."),
    metrics.AGGREGATED: ("aggregated_records", "Records that stand in a pane, on time or late."),
    metrics.PANES: ("panes", "Panes emitted: results of windows, and corrections."),
    metrics.CORRECTIONS: ("corrections", "Panes emitted for late records."),
    metrics.BLANK_LINES: ("blank_lines", "Blank lines read, which are no records."),
    metrics.BEHIND_WATERMARK: (
        "behind_watermark_records",
        "Records that were tagged as behind the watermark.",
    ),
    metrics.BOUND_CHANGES: ("bound_changes", "How often the out-of-orderness bound was changed."),
    metrics.ALERTS: ("alerts", "Alerts raised."),
    metrics.ALERTS_FAILED: ("alerts_failed", "Alerts that could not be delivered."),
}
_GAUGES: Final = {
    metrics.WATERMARK_MS: _Gauge(
        "watermark_timestamp_seconds", 1000, "The watermark, exclusive, since the epoch."
    ),
    metrics.WATERMARK_LAG_MS: _Gauge(
        "watermark_lag_seconds", 1000, "How far the watermark is behind the wall clock."
    ),
    metrics.BOUND_MS: _Gauge("bound_seconds", 1000, "The out-of-orderness bound; the widest."),
    metrics.IDLE_SPLITS: _Gauge("idle_splits", 1, "Splits that do not hold the watermark: idle."),
    metrics.PAUSED_SPLITS: _Gauge("paused_splits", 1, "Splits that are too far ahead to be read."),
    metrics.IN_FLIGHT: _Gauge("in_flight_records", 1, "Records read and not yet acknowledged."),
}
_DISTRIBUTIONS: Final = {
    metrics.LATENESS_MS: (
        "lateness",
        "How far the watermark was past the event time of late records.",
    ),
    metrics.LATE_BY_MS: (
        "too_late_by",
        "How far the watermark was past window end + allowed lateness at too late records.",
    ),
}
_KNOWN: Final = {
    *_OUTCOMES,
    *_COUNTERS,
    *_GAUGES,
    *(part for name in _DISTRIBUTIONS for part in metrics.distribution_names(name)),
}


def collect(counts: Mapping[str, int] | None, run: str, engine: str) -> list[Metric]:
    """Gives a job's counts as metrics of Prometheus.

    Args:
        counts: The counts by metric name, times in ms; None if they could not be read. A counter
            that is missing is 0, a gauge that is missing is left out.
        run: The run's name.
        engine: The engine that runs the job.

    Example:
        >>> found = collect({"input": 3, "current_watermark_ms": 1500}, "run-1", "prism")
        >>> {sample.name: sample.value for metric in found for sample in metric.samples}[
        ...     "beam_lateness_watermark_timestamp_seconds"
        ... ]
        1.5
    """
    about = InfoMetricFamily(_name("run"), "The run of the job, and its engine.")
    about.add_metric((), {"run": run, "engine": engine})
    up = GaugeMetricFamily(
        _name("up"),
        "Whether the job's counts could be read (1) or not (0).",
        int(counts is not None),
    )
    found: list[Metric] = [about, up]
    if counts is None:
        return found
    records = CounterMetricFamily(
        _name("records"),
        "Records by what became of them; those in open windows are not counted yet.",
        labels=("outcome",),
    )
    for outcome in _OUTCOMES:
        records.add_metric((outcome,), float(counts.get(outcome, 0)))
    found.append(records)
    for key, (name, text) in _COUNTERS.items():
        found.append(CounterMetricFamily(_name(name), text, float(counts.get(key, 0))))
    for key, gauge in _GAUGES.items():
        if key in counts:
            value = counts[key] / gauge.unit
            found.append(GaugeMetricFamily(_name(gauge.name), gauge.help, value))
    for key, (name, text) in _DISTRIBUTIONS.items():
        found += _distribution(counts, key, name, text)
    other = UnknownMetricFamily(
        _name("other"),
        "Counts that have no metric of their own, in their own unit.",
        labels=("name",),
    )
    for key in sorted(counts.keys() - _KNOWN):
        other.add_metric((key,), float(counts[key]))
    return [*found, other] if other.samples else found


def _distribution(counts: Mapping[str, int], key: str, name: str, text: str) -> Iterator[Metric]:
    """Gives a distribution of ms, if it has a value, as a summary and two gauges in seconds."""
    parts = metrics.distribution_names(key)
    count, total, least, most = (counts.get(part) for part in parts)
    if count is None or total is None:
        return
    yield SummaryMetricFamily(_name(f"{name}_seconds"), text, count, total / 1000)
    for which, value in (("min", least), ("max", most)):
        if value is not None:
            yield GaugeMetricFamily(
                _name(f"{name}_{which}_seconds"), f"{which.capitalize()}: {text}", value / 1000
            )


def _name(name: str) -> str:
    return f"{metrics.NAMESPACE}_{name}"


class _JobCollector(Collector):
    """Reads the counts whenever they are asked for; a failure to is shown, and ends nothing."""

    def __init__(self, read_counts: ReadCounts, run: str, engine: str) -> None:
        self._read_counts, self._run, self._engine = read_counts, run, engine
        self._lock = threading.Lock()  # requests come in threads, of which readers know nothing
        self._failed = False

    def collect(self) -> list[Metric]:
        with self._lock:
            try:
                found = collect(self._read_counts(), self._run, self._engine)
            except Exception as error:  # a cluster that is away, or anything a reader may raise
                if not self._failed:  # once, not every few seconds
                    _LOG.warning("the counts for Prometheus cannot be read: %s", error)
                self._failed = True
                return collect(None, self._run, self._engine)
            self._failed = False
            return found


def _registry(read_counts: ReadCounts, run: str, engine: str) -> CollectorRegistry:
    registry = CollectorRegistry()  # not the global one: it tells of this process, not of the job
    registry.register(_JobCollector(read_counts, run, engine))
    return registry


class MetricsServer:
    """Serves a job's counts to Prometheus over HTTP, until it is closed; see `serve`."""

    def __init__(
        self, port: int, read_counts: ReadCounts, run: str, engine: str, host: str = LOOPBACK
    ) -> None:
        cause = f"a port is a number from 0 to {LARGEST}"
        try:
            if not 0 <= port <= LARGEST:
                raise OSError(cause)
            registry = _registry(read_counts, run, engine)
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            msg = (
                f"port (--metrics_port) must be one on which {host} can listen, got {port} "
                f"({error.strerror or error}); give another, or 0 for one that is free"
            )
            raise ValueError(msg) from error
        self.port: int = self._server.server_port
        """The port on which it listens."""

    def close(self) -> None:
        """Stops to listen, within a second; more than once does no harm."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    port: int, read_counts: ReadCounts, run: str, engine: str, host: str = LOOPBACK
) -> MetricsServer:
    """Serves a job's counts at `http://HOST:PORT/metrics`.

    Args:
        port: Where to listen; 0 for any free port.
        read_counts: Gives the counts by metric name. It is called in other threads, one call at a
            time; if it raises, `beam_lateness_up` is 0 and no count is shown.
        run: The run's name.
        engine: The engine that runs the job.
        host: The address to listen on: by default this machine only.

    Returns:
        The server, which listens until it is closed; it is a context manager.

    Raises:
        ValueError: If it cannot listen there.

    Example:
        >>> with serve(0, metrics.tally, "run-1", "prism") as server:
        ...     server.port > 0
        True
    """
    return MetricsServer(port, read_counts, run, engine, host)


class MetricsFile:
    """Keeps a job's counts in a file, for the textfile collector of Prometheus's node exporter.

    From `with` to its end, the file is written at once, then now and then, and a last time when it
    is closed; readers never see a part of it. It stays when the job is over: its age is node
    exporter's `node_textfile_mtime_seconds`. It holds no records, and gets the mode that the umask
    gives, since node exporter is another user.

    Args:
        path: The file, in the collector's folder; it must end in `.prom`.
        read_counts: Gives the counts by metric name. It is called in another thread; if it raises,
            `beam_lateness_up` is 0 and no count is shown.
        run: The run's name.
        engine: The engine that runs the job.
        every_s: How often to write, in seconds.

    Raises:
        ValueError: At construction, if the path does not end so or its folder cannot be written,
            or `every_s` is no positive number.

    Example:
        with MetricsFile("/var/lib/node_exporter/lateness.prom", metrics.tally, "run-1", "prism"):
            pipeline.run().wait_until_finish()
    """

    def __init__(
        self, path: str, read_counts: ReadCounts, run: str, engine: str, every_s: float = EVERY_S
    ) -> None:
        folder = os.path.dirname(os.path.abspath(path))
        if not path.endswith(_SUFFIX) or os.path.isdir(path):
            msg = (
                f"path (--metrics_file) must be a file that ends in {_SUFFIX}, since node exporter "
                f"reads no other, got {path!r}; give such as {folder}/lateness{_SUFFIX}"
            )
            raise ValueError(msg)
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
            msg = (
                f"path (--metrics_file) must be in a writable folder, got {path!r}; "
                f"make {folder!r}, or give another"
            )
            raise ValueError(msg)
        if not (every_s > 0 and math.isfinite(every_s)):
            msg = f"every_s must be a positive number of seconds, got {every_s!r}; try {EVERY_S:g}"
            raise ValueError(msg)
        self._path = path
        self._every_s = min(every_s, threading.TIMEOUT_MAX)
        self._registry = _registry(read_counts, run, engine)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-file", daemon=True)
        self._failed = False

    def close(self) -> None:
        """Writes the file a last time and stops; more than once does no harm."""
        self._stop.set()
        if self._thread.ident is not None:  # it was begun
            self._thread.join()

    def __enter__(self) -> MetricsFile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        self._write()
        while not self._stop.wait(self._every_s):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            write_to_textfile(self._path, self._registry)
        except Exception as error:  # a full disk, or what else comes, is no reason to end the job
            if not self._failed:
                _LOG.warning("the metrics file %s cannot be written: %s", self._path, error)
            self._failed = True
        else:
            self._failed = False
