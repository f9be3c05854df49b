"""`TagLate`: for streams without windows, where nothing is ever dropped, and nothing says so.

Flink routes no late record there, and users take that for safety. "Late" here is about the record
alone: its event time is behind the watermark. In a window a record is late when its window's end
is behind the watermark (`RouteTooLate`, `AggregateWindows`), which comes up to a window later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection, TaggedOutput

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import BEHIND_MS, EventBatch
from beam_lateness.transforms.times import Millis

LATE_TAG: Final = "late"

_BEHIND = metrics.Count(metrics.BEHIND_WATERMARK)


@dataclass(frozen=True)
class TagLateResult:
    """What `TagLate` gives; each batch has a column `behind_ms` more.

    Args:
        on_time: Records at the watermark or ahead of it (`behind_ms` 0): `PCollection[EventBatch]`.
        late: Records behind it, with how far: `PCollection[EventBatch]`.
    """

    on_time: PCollection[EventBatch]
    late: PCollection[EventBatch]


@dataclass(eq=False)
class TagLate(beam.PTransform[PCollection[EventBatch], TagLateResult]):
    """Tells the records that came behind the watermark from the others, and marks how far.

    A record is late here if and only if `event time < watermark` when it arrived; `behind_ms` is
    the difference. It takes what `ReadEvents` gives. Flatten both outputs where marks are enough.

    Watermark: leaves it as it is.

    Returns:
        A `TagLateResult`.

    Raises:
        ValueError: At expansion, if the input has no stamps: it is none of `ReadEvents`.

    Example:
        >>> TagLate().label
        'TagLate'
    """

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, batches: PCollection[EventBatch]) -> TagLateResult:
        """Tags by the stamps."""
        if batches.element_type is not EventBatch:
            msg = (
                "TagLate takes the events of ReadEvents, whose records are stamped with their "
                f"watermark, got a collection of {batches.element_type}"
            )
            raise ValueError(msg)
        tagged = batches | "TagByStamp" >> beam.ParDo(_TagByStamp()).with_outputs(
            LATE_TAG, main="on_time"
        )
        on_time, late = tagged.on_time, tagged[LATE_TAG]
        on_time.element_type = late.element_type = EventBatch
        return TagLateResult(on_time, late)


def behind_ms(batch: EventBatch) -> Millis:
    """Gives how far each record was behind the watermark when it came, in ms; 0 if it was not."""
    behind: Millis = np.maximum(batch.watermarks - batch.event_times, 0)
    return behind


class _TagByStamp(beam.DoFn):
    """Marks and splits batches."""

    def __init__(self) -> None:
        """Holds nothing (Beam's own has no types)."""

    def process(self, batch: EventBatch) -> Iterator[Any]:
        behind = behind_ms(batch)
        marked = EventBatch(
            batch.split, batch.columns.append_column(BEHIND_MS, pa.array(behind, pa.int64()))
        )
        late = behind > 0
        _BEHIND.inc(int(late.sum()))
        if not late.all():
            yield marked.filter(~late)
        if late.any():
            yield TaggedOutput(LATE_TAG, marked.filter(late))
