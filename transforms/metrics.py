"""Counts that every transform keeps: Beam metrics in one namespace, and a tally of this process.

The tally is there because Beam's Python DirectRunner (2.77) commits only the first bundle of each
step to its metrics: a job on it would not see its own counts. Where the workers live in the job's
process (the DirectRunner, Prism's loopback), it also shows progress while the job runs.
"""

from __future__ import annotations

import threading
from typing import Final

from apache_beam.metrics.metric import MetricResults, Metrics, MetricsFilter

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
COUNTS: Final = (INPUT, AGGREGATED, LATE, TOO_LATE, INVALID, BLANK_LINES, PANES)

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
    return counts
