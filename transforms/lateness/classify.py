"""`RouteTooLate`: sorts records into accepted and too late.

A stamped record (from `ReadEvents`) carries the watermark that held when it arrived, and is judged
by it: no shuffle, and the same verdict on every engine. Any other record is judged by the engine's
watermark, which Beam shows no DoFn: but a pane's timing tells where the watermark stands. So
records are grouped in a *grace window* `[start, end + allowed lateness)` under a trigger that fires
at once; an EARLY pane then means "in time", a LATE one "too late". The classifier never lets go of
a window (allowed lateness: 200 years), so nothing can be dropped there.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, Repeatedly
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner
from apache_beam.typehints import typehints
from apache_beam.utils.timestamp import Duration as BeamDuration
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import KEY, PAYLOAD, POSITION, VALUE, EventBatch, record_id
from beam_lateness.transforms.beam_time import interval, to_ms, to_timestamp
from beam_lateness.transforms.lateness.window_with_lateness import WindowWithLateness, fixed_windows
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.results import InvalidRecord, TooLateRecord
from beam_lateness.transforms.times import MAX_DURATION_MS, Flags, is_event_time

TOO_LATE_TAG: Final = "too_late"
INVALID_TAG: Final = "invalid"
VERDICTS: Final = ("stamp", "engine")

_SUSPECT_TAG: Final = "suspect"
_SHARDS: Final = 4
_TOO_LATE = metrics.Count(metrics.TOO_LATE)
_INVALID = metrics.Count(metrics.INVALID)
_LATE_BY_MS = metrics.Distribution(metrics.LATE_BY_MS)


@dataclass(frozen=True)
class RouteTooLateResult:
    """What `RouteTooLate` gives.

    Args:
        accepted: The records in time or late, as they came: `PCollection[EventBatch]`, or the
            input's own elements in their windows, ready for a `GroupByKey`.
        too_late: `PCollection[TooLateRecord]`, in the global window.
        invalid: `PCollection[InvalidRecord]`, in the global window: elements whose timestamp is no
            event time (years 1 to 9999), such as those that never got one.
    """

    accepted: PCollection[Any]
    too_late: PCollection[TooLateRecord]
    invalid: PCollection[InvalidRecord]


@dataclass(eq=False)
class RouteTooLate(beam.PTransform[Any, RouteTooLateResult]):
    """Routes each record whose window's time is over to `too_late`, and the rest to `accepted`.

    The rule: a record is too late if and only if `watermark >= window end + allowed lateness` when
    it arrives. It takes the batches of `ReadEvents`, or any collection whose elements have event
    times as their timestamps (pairs `(key, value)` keep both in a `TooLateRecord`). In a bounded
    collection nothing is late.

    Watermark: leaves it as it is.

    Args:
        windows: The windows and their allowed lateness.
        verdict: `stamp`: a stamped record is judged by its own source's watermark; `engine`: by
            the engine's, which after a `Flatten` is the lowest of all sources'. Records without a
            stamp are always judged by the engine. An engine may learn of a watermark after the
            record that it makes too late (Prism does): it then accepts what is just too late,
            never the other way round.

    Returns:
        A `RouteTooLateResult`.

    Raises:
        ValueError: If `verdict` is neither; at expansion, if the engine is to judge an unbounded
            collection in a pipeline without the option `streaming`.

    Example:
        >>> RouteTooLate(Windows("1m", allowed_lateness="2m")).verdict
        'stamp'
    """

    windows: Windows
    verdict: str = "stamp"

    def __post_init__(self) -> None:
        super().__init__()
        if self.verdict not in VERDICTS:
            msg = f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}"
            raise ValueError(msg)

    def expand(self, pcoll: PCollection[Any]) -> RouteTooLateResult:
        """Chooses the path by the element type."""
        if pcoll.element_type is EventBatch:
            return self._route_batches(pcoll)
        return self._route_records(pcoll)

    def _route_batches(self, batches: PCollection[EventBatch]) -> RouteTooLateResult:
        windowed = batches | "ClassifierWindows" >> self._classifier_windows()
        routed = windowed | "RouteByStamp" >> beam.ParDo(
            _RouteByStamp(self.windows, self.verdict == "engine")
        ).with_outputs(TOO_LATE_TAG, INVALID_TAG, _SUSPECT_TAG, main="accepted")
        accepted, too_late = routed.accepted, routed[TOO_LATE_TAG]
        accepted.element_type = EventBatch
        if self.verdict == "engine":
            _require_streaming(batches)
            suspects = routed[_SUSPECT_TAG]
            suspects.element_type = typehints.Tuple[int, EventBatch]
            judged = (
                suspects
                | "GroupSuspects" >> beam.GroupByKey()
                | "JudgeSuspects"
                >> beam.ParDo(_JudgeBatches(self.windows)).with_outputs(
                    TOO_LATE_TAG, main="accepted"
                )
            )
            judged.accepted.element_type = EventBatch
            accepted = (accepted, judged.accepted) | "FlattenAccepted" >> beam.Flatten()
            accepted.element_type = EventBatch
            too_late = judged[TOO_LATE_TAG]
        return self._result(accepted, too_late, routed[INVALID_TAG])

    def _route_records(self, records: PCollection[Any]) -> RouteTooLateResult:
        element_type = records.element_type
        windowed = records | "ClassifierWindows" >> self._classifier_windows()
        chunk_type = typehints.Tuple[int, typehints.List[typehints.Tuple[int, element_type]]]
        if records.is_bounded:
            accepted_by = _AcceptInWindow(self.windows)
            routed = windowed | "AcceptAll" >> beam.ParDo(accepted_by).with_outputs(
                TOO_LATE_TAG, INVALID_TAG, main="accepted"
            )
            accepted, too_late, invalid = routed.accepted, routed[TOO_LATE_TAG], routed[INVALID_TAG]
        else:
            _require_streaming(records)
            chunks = windowed | "ChunkRecords" >> beam.ParDo(
                _ChunkRecords(self.windows)
            ).with_outputs(INVALID_TAG, main="chunks")
            chunks.chunks.element_type = chunk_type
            judged = (
                chunks.chunks
                | "GroupChunks" >> beam.GroupByKey()
                | "JudgeChunks"
                >> beam.ParDo(_JudgeRecords(self.windows)).with_outputs(
                    TOO_LATE_TAG, main="accepted"
                )
            )
            accepted, too_late = judged.accepted, judged[TOO_LATE_TAG]
            invalid = chunks[INVALID_TAG]
        accepted.element_type = element_type
        accepted = accepted | "WindowAccepted" >> WindowWithLateness(self.windows)
        accepted.element_type = element_type
        return self._result(accepted, too_late, invalid)

    def _classifier_windows(self) -> beam.PTransform[Any, Any]:
        return beam.WindowInto(
            fixed_windows(self.windows),
            trigger=Repeatedly(AfterCount(1)),
            accumulation_mode=AccumulationMode.DISCARDING,
            timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST,
            allowed_lateness=BeamDuration(micros=MAX_DURATION_MS * 1000),
        )

    def _result(
        self, accepted: PCollection[Any], too_late: PCollection[Any], invalid: PCollection[Any]
    ) -> RouteTooLateResult:
        too_late = too_late | "TooLateToGlobal" >> beam.WindowInto(GlobalWindows())
        invalid = invalid | "InvalidToGlobal" >> beam.WindowInto(GlobalWindows())
        too_late.element_type = TooLateRecord
        invalid.element_type = InvalidRecord
        return RouteTooLateResult(accepted, too_late, invalid)


def _require_streaming(pcoll: PCollection[Any]) -> None:
    """Refuses to ask an engine that runs in batch: it calls every record in time, silently."""
    if not pcoll.pipeline.options.view_as(StandardOptions).streaming:
        msg = (
            "the engine's watermark judges an unbounded collection here, and needs the option "
            "--streaming (StandardOptions.streaming): without it every record would be in time"
        )
        raise ValueError(msg)


class _RouteByStamp(beam.DoFn):
    """Judges stamped records by their stamps; leaves the suspicious to the engine if asked to."""

    def __init__(self, windows: Windows, ask_engine: bool) -> None:
        self._windows = windows
        self._ask_engine = ask_engine

    def process(self, element: EventBatch) -> Iterable[Any]:
        closed = self._windows.closed_at(element.event_times)
        over: Flags = element.watermarks >= closed
        if not over.any():
            yield element
            return
        if not over.all():
            yield element.filter(~over)
        suspects = element.filter(over)
        if self._ask_engine:
            yield from self._suspects(suspects)
        else:
            for record in _too_late_rows(suspects, self._windows):
                yield TaggedOutput(TOO_LATE_TAG, record)

    def _suspects(self, batch: EventBatch) -> Iterator[Any]:
        starts = self._windows.start_of(batch.event_times)
        shard = zlib.crc32(batch.split.encode()) % _SHARDS
        for start in sorted(set(starts.tolist())):
            part = batch.filter(starts == start)
            earliest = to_timestamp(int(part.event_times.min()))
            window = _grace_window(self._windows, start)
            yield TaggedOutput(_SUSPECT_TAG, WindowedValue((shard, part), earliest, (window,)))


class _JudgeBatches(beam.DoFn):
    """Reads the engine's verdict on suspicious batches from the pane's timing."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def process(
        self, element: tuple[int, Iterable[EventBatch]], pane: Any = beam.DoFn.PaneInfoParam
    ) -> Iterable[Any]:
        for batch in element[1]:
            if not _is_over(pane):
                yield batch
                continue
            for record in _too_late_rows(batch, self._windows):
                yield TaggedOutput(TOO_LATE_TAG, record)


class _ChunkRecords(beam.DoFn):
    """Gathers a bundle's records by window, so that the classifier shuffles chunks."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._turn = 0

    def start_bundle(self) -> None:
        self._chunks: dict[int, list[tuple[int, Any]]] = defaultdict(list)

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterable[Any]:
        event_time = to_ms(timestamp)
        if not is_event_time(event_time):
            yield _out_of_range(element, event_time)
            return
        self._chunks[self._windows.start_of(event_time)].append((event_time, element))

    def finish_bundle(self) -> Iterable[Any]:
        for start, chunk in self._chunks.items():
            self._turn = (self._turn + 1) % _SHARDS
            earliest = to_timestamp(min(event_time for event_time, _ in chunk))
            window = _grace_window(self._windows, start)
            yield WindowedValue((self._turn, chunk), earliest, (window,))
        self._chunks.clear()


class _JudgeRecords(beam.DoFn):
    """Reads the engine's verdict on a chunk from the pane's timing."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def process(
        self,
        element: tuple[int, Iterable[list[tuple[int, Any]]]],
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterable[Any]:
        over = _is_over(pane)
        for chunk in element[1]:
            for event_time, record in chunk:
                if over:
                    _TOO_LATE.inc()
                    yield TaggedOutput(TOO_LATE_TAG, self._too_late(record, event_time))
                else:
                    yield _in_window(record, event_time, self._windows)

    def _too_late(self, record: Any, event_time: int) -> TooLateRecord:
        pair = isinstance(record, tuple) and len(record) == 2
        key, value = record if pair else (None, record)
        start = self._windows.start_of(event_time)
        return TooLateRecord(key, value, event_time, start, start + self._windows.size_ms)


class _AcceptInWindow(beam.DoFn):
    """Accepts all of a bounded collection: its watermark stays at the start until its end."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterable[Any]:
        event_time = to_ms(timestamp)
        if is_event_time(event_time):
            yield _in_window(element, event_time, self._windows)
        else:
            yield _out_of_range(element, event_time)


def _is_over(pane: PaneInfo) -> bool:
    """Says whether the watermark is past the grace window in which this pane fired.

    Java engines label the first pane after the end ON_TIME while their output watermark lags; the
    ON_TIME pane of a drained bounded run is the last one, and in time.
    """
    if pane.timing == PaneInfoTiming.ON_TIME:
        return not pane.is_last
    return bool(pane.timing == PaneInfoTiming.LATE)


def _grace_window(windows: Windows, start: int) -> Any:
    return interval(start, start + windows.size_ms + windows.allowed_lateness_ms)


def _in_window(record: Any, event_time: int, windows: Windows) -> WindowedValue:
    start = windows.start_of(event_time)
    window = interval(start, start + windows.size_ms)
    return WindowedValue(record, to_timestamp(event_time), (window,))


def _out_of_range(record: Any, event_time: int) -> TaggedOutput[Any, InvalidRecord]:
    _INVALID.inc()
    detail = f"{event_time} ms is not in years 1 to 9999"
    payload = repr(record).encode()
    return TaggedOutput(
        INVALID_TAG, InvalidRecord("event_time_out_of_range", detail, payload=payload)
    )


def _too_late_rows(batch: EventBatch, windows: Windows) -> Iterator[TooLateRecord]:
    _TOO_LATE.inc(len(batch))
    _LATE_BY_MS.update(batch.watermarks - windows.closed_at(batch.event_times))
    starts = windows.start_of(batch.event_times).tolist()
    for row, start in zip(batch.columns.to_pylist(), starts, strict=True):
        end = start + windows.size_ms
        yield TooLateRecord(
            key=row[KEY],
            value=row[VALUE],
            event_time=row["event_time"],
            window_start=start,
            window_end=end,
            watermark=row["watermark"],
            late_by_ms=row["watermark"] - (end + windows.allowed_lateness_ms),
            split=batch.split,
            position=row[POSITION],
            record_id=record_id(batch.split, row),
            payload=row[PAYLOAD].removesuffix(b"\n").removesuffix(b"\r"),
        )
