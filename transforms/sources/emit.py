"""What a poll becomes: elements of the pipeline, counts, and gauges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue

from beam_lateness.transforms import metrics
from beam_lateness.transforms.beam_time import to_timestamp
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.sources.status import IDLE, PAUSED, GroupStatus, publish

INVALID_TAG: Final = "invalid"

_INPUT = metrics.Count(metrics.INPUT)
_INVALID = metrics.Count(metrics.INVALID)
_BLANK = metrics.Count(metrics.BLANK_LINES)
_BOUND_CHANGES = metrics.Count(metrics.BOUND_CHANGES)
_WATERMARK = metrics.Gauge(metrics.WATERMARK_MS)
_LAG = metrics.Gauge(metrics.WATERMARK_LAG_MS)
_IDLE = metrics.Gauge(metrics.IDLE_SPLITS)
_PAUSED = metrics.Gauge(metrics.PAUSED_SPLITS)
_BOUND = metrics.Gauge(metrics.BOUND_MS)


def emit(poll: Poll) -> Iterator[Any]:
    """Counts a poll and gives its elements: batches, and tagged the lines that are no records."""
    _INPUT.inc(sum(map(len, poll.batches)) + len(poll.invalid))
    _INVALID.inc(len(poll.invalid))
    _BLANK.inc(poll.blank)
    _BOUND_CHANGES.inc(len(poll.changes))
    _show(poll.status)
    for batch in poll.batches:
        yield TimestampedValue(batch, to_timestamp(int(batch.event_times.min())))
    for record in poll.invalid:
        yield TaggedOutput(INVALID_TAG, record)


def _show(status: GroupStatus) -> None:
    """Shows where the group stands, as metrics and to who looks on in this process."""
    for gauge, value in (
        (_WATERMARK, status.watermark_ms),
        (_LAG, status.lag_ms),
        (_IDLE, status.count(IDLE)),
        (_PAUSED, status.count(PAUSED)),
        (_BOUND, status.bound_ms),
    ):
        if value is not None:
            gauge.set(value)
    publish(status)
