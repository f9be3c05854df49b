"""Stamped batches for tests, and judged ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from apache_beam.pvalue import TaggedOutput

from beam_lateness import EventBatch, TooLateRecord, Windows
from beam_lateness.transforms.lateness.classify import TOO_LATE_TAG, _RouteByStamp
from tests.model import Event


def batch_of(stamped: Sequence[tuple[Event, int]], split: str = "a") -> EventBatch:
    """Makes a batch of records, each with the exclusive watermark just before it."""
    events = [event for event, _ in stamped]
    return EventBatch(
        split,
        pa.RecordBatch.from_pydict(
            {
                "key": pa.array([event.key for event in events], pa.string()),
                "value": pa.array([event.value for event in events]),
                "id": pa.array([event.name for event in events], pa.string()),
                "event_time": pa.array([event.ts for event in events], pa.int64()),
                "watermark": pa.array([watermark for _, watermark in stamped], pa.int64()),
                "position": pa.array(range(len(events)), pa.int64()),
                "payload": pa.array([event.name.encode() for event in events], pa.binary()),
            }
        ),
    )


def route(batch: EventBatch, windows: Windows) -> tuple[list[EventBatch], list[TooLateRecord]]:
    """Judges a batch by its stamps, without a runner: what is accepted, what is too late."""
    accepted: list[EventBatch] = []
    too_late: list[Any] = []
    for output in _RouteByStamp(windows, ask_engine=False).process(batch):
        if isinstance(output, TaggedOutput):
            assert output.tag == TOO_LATE_TAG
            too_late.append(output.value)
        else:
            accepted.append(output)
    return accepted, too_late
