"""Counts that every transform keeps: Beam metrics in one namespace, and a tally of this process.

The tally is there because Beam's Python DirectRunner (2.77) commits only the first bundle of each
step to its metrics: a job on it would not see its own counts. Where the workers live in the job's
process (the DirectRunner, Prism's loopback), it also shows progress while the job runs.
"""

from __future__ import annotations

import threading
from typing import Final

from apache_beam.metrics.metric import MetricResults, Metrics, MetricsFilter

from beam_lateness.transforms.times import Millis

NAMESPACE: Final = "beam_lateness"

INPUT: Final = "input"
AGGREGATED: Final = "aggregated"
LATE: Final = "late"
TOO_LATE: Final = "too_late"
INVALID: Final = "invalid"
BLANK_LINES: Final = "blank_lines"
PANES: Final = "panes"
BEHIND_WATERMARK: Final = "behind_watermark"
BOUND_CHANGES: Final = "bound_changes"
WATERMARK_MS: Final = "current_watermark_ms"
WATERMARK_LAG_MS: Final = "watermark_lag_ms"
IDLE_SPLITS: Final = "idle_splits"
PAUSED_SPLITS: Final = "paused_splits"
BOUND_MS: Final = "bound_ms"
IN_FLIGHT: Final = "in_flight_records"
ON_TIME: Final = "on_time"
CORRECTIONS: Final = "corrections"
LATENESS_MS: Final = "lateness_ms"
LATE_BY_MS: Final = "late_by_ms"
ALERTS: Final = "alerts"
ALERTS_FAILED: Final = "alerts_failed"
DEAD_LETTERS: Final = "dead_letters"
RECONCILED: Final = "reconciled"
ALREADY_RECONCILED: Final = "already_reconciled"
CORRECTED_WINDOWS: Final = "corrected_windows"
LEFT: Final = "left"
REFUSED_PANES: Final = "refused_panes"
COUNTS: Final = (INPUT, AGGREGATED, LATE, TOO_LATE, INVALID, BLANK_LINES, PANES)
GAUGES: Final = (WATERMARK_MS, WATERMARK_LAG_MS, IDLE_SPLITS, PAUSED_SPLITS, BOUND_MS, IN_FLIGHT)
COUNTERS: Final = (
    *COUNTS,
    ON_TIME,
    CORRECTIONS,
    BEHIND_WATERMARK,
    BOUND_CHANGES,
    ALERTS,
    ALERTS_FAILED,
    DEAD_LETTERS,
    RECONCILED,
    ALREADY_RECONCILED,
    CORRECTED_WINDOWS,
    LEFT,
    REFUSED_PANES,
)

_lock = threading.Lock()
_tally: dict[str, int] = {}


class Count:
    """A counter in the package's namespace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counter = Metrics.counter(NAMESPACE, name)

    def inc(self, by: int = 1) -> None:
        """Adds to the counter."""
        if by:
            self._counter.inc(by)
            with _lock:
                _tally[self._name] = _tally.get(self._name, 0) + by


class Gauge:
    """A gauge in the package's namespace: its latest value counts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gauge = Metrics.gauge(NAMESPACE, name)

    def set(self, value: int) -> None:
        """Sets the gauge."""
        self._gauge.set(value)
        with _lock:
            _tally[self._name] = value


class Distribution:
    """A distribution in the package's namespace.

    The tally keeps its NAME_count, NAME_sum, NAME_min and NAME_max; `committed` gives the same.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._distribution = Metrics.distribution(NAMESPACE, name)

    def update(self, values: Millis) -> None:
        """Adds each of many values."""
        if not len(values):
            return
        for value in values.tolist():  # Beam takes them one by one
            self._distribution.update(value)
        low, high = int(values.min()), int(values.max())
        count, total, least, most = distribution_names(self._name)
        with _lock:
            _tally[count] = _tally.get(count, 0) + len(values)
            _tally[total] = _tally.get(total, 0) + int(values.sum())
            _tally[least] = min(_tally.get(least, low), low)
            _tally[most] = max(_tally.get(most, high), high)


def distribution_names(name: str) -> tuple[str, str, str, str]:
    """Gives the names of a distribution's count, sum, min and max in the tally.

    Example:
        >>> distribution_names("late_by_ms")
        ('late_by_ms_count', 'late_by_ms_sum', 'late_by_ms_min', 'late_by_ms_max')
    """
    return f"{name}_count", f"{name}_sum", f"{name}_min", f"{name}_max"


def start_tally() -> None:
    """Sets this process's tally back: a job that reads it calls this before it runs."""
    with _lock:
        _tally.clear()


def tally() -> dict[str, int]:
    """Gives what this process has counted since `start_tally`, by metric name."""
    with _lock:
        return dict(_tally)


def committed(results: MetricResults) -> dict[str, int]:
    """Gives what a job has counted according to Beam's metrics, by metric name."""
    found = results.query(MetricsFilter().with_namespace(NAMESPACE))
    counts = dict.fromkeys(COUNTS, 0)
    for counter in found[MetricResults.COUNTERS]:
        name = counter.key.metric.name
        counts[name] = counts.get(name, 0) + (counter.committed or 0)
    for gauge in found[MetricResults.GAUGES]:
        if gauge.committed is not None and gauge.committed.value is not None:
            counts[gauge.key.metric.name] = gauge.committed.value
    for distribution in found[MetricResults.DISTRIBUTIONS]:
        data = distribution.committed
        if data is not None and data.count:  # one a step
            count, total, least, most = distribution_names(distribution.key.metric.name)
            counts[count] = counts.get(count, 0) + data.count
            counts[total] = counts.get(total, 0) + data.sum
            counts[least] = min(counts.get(least, data.min), data.min)
            counts[most] = max(counts.get(most, data.max), data.max)
    return counts
