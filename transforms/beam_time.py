"""Milliseconds to Beam's `Timestamp` and back: the one edge between our times and Beam's."""

from __future__ import annotations

from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

_MIN_MS = MIN_TIMESTAMP.micros // 1000
_MAX_MS = MAX_TIMESTAMP.micros // 1000


def to_timestamp(ms: int) -> Timestamp:
    """Makes a Beam timestamp of `ms` (ms since the epoch), clamped to Beam's own range."""
    return Timestamp(micros=min(max(ms, _MIN_MS), _MAX_MS) * 1000)


def to_ms(timestamp: Timestamp) -> int:
    """Gives a Beam timestamp in whole ms since the epoch, rounded down."""
    return timestamp.micros // 1000


def interval(start_ms: int, end_ms: int) -> IntervalWindow:
    """Makes the Beam window `[start_ms, end_ms)`."""
    return IntervalWindow(to_timestamp(start_ms), to_timestamp(end_ms))
