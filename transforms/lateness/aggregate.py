"""`AggregateWindows`: one result a key and window at its end, corrected as late records come.

Records are pre-aggregated per (key, window) where they are and travel as one small table per
(window, shard). A stateful DoFn keyed by shard keeps them in a *grace window*, which ends with the
allowed lateness, so that the engine itself forgets the state. Before the window's end it only
collects; the timer at the end merges and emits; after it each table is merged in at once.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.coders import BytesCoder, Coder
from apache_beam.coders.typecoders import registry as coder_registry
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import GlobalWindows, IntervalWindow
from apache_beam.typehints import typehints
from apache_beam.utils.windowed_value import WindowedValue

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import (
    KEY,
    VALUE,
    EventBatch,
    decode_columns,
    encode_columns,
)
from beam_lateness.transforms.beam_time import interval, to_ms, to_timestamp
from beam_lateness.transforms.lateness.aggregation import (
    COUNT,
    PANES,
    Aggregation,
    ColumnAggregation,
    CombineAggregation,
    Rows,
    shards_of,
    slices,
    touched,
)
from beam_lateness.transforms.lateness.window_with_lateness import fixed_windows
from beam_lateness.transforms.lateness.windows import SLACK_MS, Windows
from beam_lateness.transforms.results import LATE, ON_TIME, Pane
from beam_lateness.transforms.times import Flags, Millis

_WINDOW: Final = "window"
_LATE: Final = "late"
_PANES_AT_ONCE: Final = 8192
_IN_TIME_TAG, _LATE_TAG = b"\x00", b"\x01"

_AGGREGATED = metrics.Count(metrics.AGGREGATED)
_LATE_RECORDS = metrics.Count(metrics.LATE)
_PANES = metrics.Count(metrics.PANES)


@dataclass(eq=False)
class AggregateWindows(beam.PTransform[Any, PCollection[Pane]]):
    """Aggregates values per key and window; late records bring a corrected pane at once.

    Put it behind `RouteTooLate` with the same windows. It takes `PCollection[EventBatch]` or any
    `PCollection[tuple[K, V]]` whose elements have event times as their timestamps (K needs a
    deterministic coder; V a number, but for a `CombineFn`), and gives `PCollection[Pane]` in the
    global window. With stamped records, the ON_TIME pane stands on exactly the records that came
    before the watermark passed the window's end. How many late records share a LATE pane
    depends on the engine's bundles.

    Watermark: leaves it as it is.

    Args:
        windows: The windows and their allowed lateness.
        aggregate: One of `sum`, `count`, `min`, `max`, `mean`, several of them (the pane's value is
            then a dictionary), or a `CombineFn`.
        num_shards: How many groups of keys share state and work: the unit of parallelism.
        accumulation_mode: `ACCUMULATING`: a pane is the whole result so far, for upserts.
            `DISCARDING`: a late pane is only what is new, for consumers that add up.

    Raises:
        ValueError: If an aggregate is unknown or `num_shards` is less than 1.

    Example:
        >>> AggregateWindows(Windows("1m", allowed_lateness="2m"), "sum").num_shards
        4
    """

    windows: Windows
    aggregate: str | tuple[str, ...] | list[str] | beam.CombineFn = "sum"
    num_shards: int = 4
    accumulation_mode: Any = AccumulationMode.ACCUMULATING

    def __post_init__(self) -> None:
        super().__init__()
        if self.num_shards < 1:
            msg = f"num_shards must be at least 1, got {self.num_shards}"
            raise ValueError(msg)
        self._aggregation = _aggregation(self.aggregate)

    def expand(self, pcoll: PCollection[Any]) -> PCollection[Pane]:
        """Chooses the first step by the element type."""
        windowed = pcoll | "Windows" >> beam.WindowInto(fixed_windows(self.windows))
        if pcoll.element_type is EventBatch:
            partials = windowed | "PreAggregateBatches" >> beam.ParDo(
                _PreAggregateBatches(self._aggregation, self.windows, self.num_shards)
            )
            key_coder = None
        else:
            key_type, _ = typehints.coerce_to_kv_type(pcoll.element_type).tuple_types
            key_coder = coder_registry.get_coder(key_type).as_deterministic_coder(
                self.label or "AggregateWindows"
            )
            partials = windowed | "PreAggregateRecords" >> beam.ParDo(
                _PreAggregateRecords(self._aggregation, self.windows, self.num_shards, key_coder)
            )
        partials.element_type = typehints.Tuple[int, bytes]
        discarding = self.accumulation_mode == AccumulationMode.DISCARDING
        panes = partials | "MergePartials" >> beam.ParDo(
            _MergePartials(self._aggregation, self.windows, discarding, key_coder)
        )
        panes.element_type = Pane
        result = panes | "PanesToGlobal" >> beam.WindowInto(GlobalWindows())
        result.element_type = Pane
        return result


def _aggregation(aggregate: Any) -> Aggregation:
    if isinstance(aggregate, beam.CombineFn):
        coder = aggregate.get_accumulator_coder()
        return CombineAggregation(
            aggregate.create_accumulator,
            aggregate.add_input,
            aggregate.merge_accumulators,
            aggregate.extract_output,
            coder.encode,
            coder.decode,
        )
    return ColumnAggregation([aggregate] if isinstance(aggregate, str) else list(aggregate))


def _shard_of_text(num_shards: int, key: str) -> int:
    return zlib.crc32(key.encode()) % num_shards  # `hash` differs from process to process


def _shard_of_bytes(num_shards: int, key: bytes) -> int:
    return zlib.crc32(key) % num_shards


class _Partials:
    """Cuts records, grouped by window and key, into one table per (window, shard, late or not)."""

    def __init__(
        self, windows: Windows, num_shards: int, shard_of: Callable[[int, Any], int]
    ) -> None:
        self._windows = windows
        self._num_shards = num_shards
        self._shard_of = shard_of

    def __call__(self, grouped: Rows, earliest: Callable[[int], int]) -> Iterator[WindowedValue]:
        """Gives the tables as elements.

        Args:
            grouped: A row per (window, late, key).
            earliest: Gives the smallest event time, in ms, of the records of a window.
        """
        if not grouped.num_rows:
            return
        keys = grouped.column(KEY).combine_chunks()
        shards = shards_of(keys, partial(self._shard_of, self._num_shards))
        starts = grouped.column(_WINDOW).to_numpy()
        late = grouped.column(_LATE).to_numpy()
        order = np.lexsort((shards, late, starts))
        rows = grouped.drop_columns([_WINDOW, _LATE]).take(pa.array(order)).combine_chunks()
        starts, late, shards = starts[order], late[order], shards[order]
        changes = (np.diff(starts) != 0) | (np.diff(late) != 0) | (np.diff(shards) != 0)
        cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
        for low, high in itertools.pairwise(cuts):
            start = int(starts[low])
            (part,) = rows.slice(low, high - low).to_batches()
            tag = _LATE_TAG if late[low] else _IN_TIME_TAG
            end = start + self._windows.size_ms
            yield WindowedValue(
                (int(shards[low]), tag + encode_columns(part)),
                to_timestamp(earliest(start)),
                (interval(start, end + self._windows.allowed_lateness_ms + SLACK_MS),),
            )


class _PreAggregateBatches(beam.DoFn):
    """Pre-aggregates stamped batches."""

    def __init__(self, aggregation: Aggregation, windows: Windows, num_shards: int) -> None:
        self._aggregation = aggregation
        self._windows = windows
        self._partials = _Partials(windows, num_shards, _shard_of_text)

    def process(self, element: EventBatch) -> Iterable[WindowedValue]:
        times = element.event_times
        starts: Millis = self._windows.start_of(times)
        late: Flags = element.watermarks >= starts + self._windows.size_ms
        columns = element.columns
        rows = pa.table(
            {
                KEY: columns.column(KEY),
                VALUE: columns.column(VALUE),
                _WINDOW: pa.array(starts),
                _LATE: pa.array(late.astype(np.int8)),
            }
        )
        grouped = self._aggregation.group(rows, [_WINDOW, _LATE, KEY])
        yield from self._partials(grouped, _Earliest(starts, times))


class _PreAggregateRecords(beam.DoFn):
    """Pre-aggregates a bundle of `(key, value)` records."""

    def __init__(
        self, aggregation: Aggregation, windows: Windows, num_shards: int, key_coder: Coder
    ) -> None:
        self._aggregation = aggregation
        self._windows = windows
        self._key_coder = key_coder
        self._partials = _Partials(windows, num_shards, _shard_of_bytes)

    def start_bundle(self) -> None:
        self._keys: list[bytes] = []
        self._values: list[Any] = []
        self._times: list[int] = []

    def process(self, element: tuple[Any, Any], timestamp: Any = beam.DoFn.TimestampParam) -> None:
        key, value = element
        self._keys.append(self._key_coder.encode(key))
        self._values.append(value)
        self._times.append(to_ms(timestamp))

    def finish_bundle(self) -> Iterable[WindowedValue]:
        if not self._keys:
            return
        times = np.array(self._times, dtype=np.int64)
        starts: Millis = self._windows.start_of(times)
        by = pa.table(
            {
                _WINDOW: pa.array(starts),
                _LATE: pa.array(np.zeros(len(starts), np.int8)),
                KEY: pa.array(self._keys, pa.binary()),
            }
        )
        grouped = self._aggregation.group_values(by, self._values)
        yield from self._partials(grouped, _Earliest(starts, times))


class _Earliest:
    """The smallest event time of each window."""

    def __init__(self, starts: Millis, times: Millis) -> None:
        self._starts, inverse = np.unique(starts, return_inverse=True)
        self._times = np.full(len(self._starts), np.iinfo(np.int64).max)
        np.minimum.at(self._times, inverse, times)

    def __call__(self, start: int) -> int:
        return int(self._times[np.searchsorted(self._starts, start)])


class _MergePartials(beam.DoFn):
    """Keeps the tables of one (window, shard) and emits its panes."""

    PARTIALS = BagStateSpec("partials", BytesCoder())
    MERGED = ReadModifyWriteStateSpec("merged", BytesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(
        self,
        aggregation: Aggregation,
        windows: Windows,
        discarding: bool,
        key_coder: Coder | None,
    ) -> None:
        self._aggregation = aggregation
        self._windows = windows
        self._discarding = discarding
        self._key_coder = key_coder

    def process(
        self,
        element: tuple[int, bytes],
        window: Any = beam.DoFn.WindowParam,
        partials: Any = beam.DoFn.StateParam(PARTIALS),
        merged: Any = beam.DoFn.StateParam(MERGED),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterable[Pane]:
        state = merged.read()
        if state is None:
            partials.add(element[1])
            end.set(to_timestamp(self._end_ms(window)))
            return
        yield from self._correct(_decode(state), [_decode(element[1][1:])], window, merged)

    @on_timer(END)
    def fire(
        self,
        window: Any = beam.DoFn.WindowParam,
        partials: Any = beam.DoFn.StateParam(PARTIALS),
        merged: Any = beam.DoFn.StateParam(MERGED),
    ) -> Iterable[Pane]:
        tables = list(partials.read())
        if not tables or merged.read() is not None:
            return
        in_time = [_decode(t[1:]) for t in tables if t[:1] == _IN_TIME_TAG]
        late = [_decode(t[1:]) for t in tables if t[:1] == _LATE_TAG]
        partials.clear()
        state = None
        if in_time:
            state = _with_panes(self._aggregation.merge(in_time), 1)
            merged.write(_encode(state))
            yield from self._panes(state, state, window, ON_TIME)
        if late:
            yield from self._correct(state, late, window, merged)

    def _correct(
        self, state: Rows | None, late: list[Rows], window: IntervalWindow, merged: Any
    ) -> Iterator[Pane]:
        """Merges late tables into the state and emits the panes of their keys."""
        late_by_key = _with_panes(self._aggregation.merge(late), 0)
        total = late_by_key if state is None else self._aggregation.merge([state, late_by_key])
        changed = touched(total, late_by_key.column(KEY))
        panes = pc.add(total.column(PANES), changed.cast(pa.int64()))
        total = _with_panes(total, panes)
        merged.write(_encode(total))
        changed_rows = total.filter(changed)
        yield from self._panes(changed_rows, late_by_key, window, LATE)

    def _panes(self, rows: Rows, news: Rows, window: IntervalWindow, timing: str) -> Iterator[Pane]:
        """Emits a pane a row.

        Args:
            rows: The whole results.
            news: What is new in them, by the same keys.
            window: The grace window.
            timing: The panes' timing.
        """
        records = pc.sum(news.column(COUNT)).as_py()
        _AGGREGATED.inc(records)
        if timing == LATE:
            _LATE_RECORDS.inc(records)
        _PANES.inc(rows.num_rows)
        if self._discarding and timing == LATE:
            order = [(KEY, "ascending")]
            indices = rows.select([KEY, PANES]).sort_by(order).column(PANES)
            rows = _with_panes(news.sort_by(order), indices)
        start, end = to_ms(window.start), self._end_ms(window)
        for piece in slices(rows, _PANES_AT_ONCE):
            keys = piece.column(KEY).to_pylist()
            if self._key_coder is not None:
                keys = [self._key_coder.decode(key) for key in keys]
            values = self._aggregation.values(piece)
            counts, panes = piece.column(COUNT).to_pylist(), piece.column(PANES).to_pylist()
            for key, value, count, pane in zip(keys, values, counts, panes, strict=True):
                yield Pane(key, start, end, value, count, pane - 1, timing)

    def _end_ms(self, window: IntervalWindow) -> int:
        return to_ms(window.end) - self._windows.allowed_lateness_ms - SLACK_MS


def _with_panes(rows: Rows, panes: Any) -> Rows:
    if isinstance(panes, int):
        panes = pa.array(np.full(rows.num_rows, panes, dtype=np.int64))
    if PANES in rows.column_names:
        return rows.set_column(rows.column_names.index(PANES), PANES, panes)
    return rows.append_column(PANES, panes)


def _encode(rows: Rows) -> bytes:
    (batch,) = rows.combine_chunks().to_batches()
    return encode_columns(batch)


def _decode(encoded: bytes) -> Rows:
    return pa.Table.from_batches([decode_columns(encoded)])
