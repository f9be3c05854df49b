"""`AggregateWindows`: one result a key and window at its end, corrected as late records come.

Records are pre-aggregated per (key, window) where they are and travel as one small table per
(window, shard). A stateful DoFn keyed by shard keeps them in a *grace window*, which ends with the
allowed lateness, so that the engine itself forgets the state. Before the window's end it only
collects; the timer at the end merges and emits; after it each table is merged in at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import (
    KEY,
    EventBatch,
    decode_columns,
    encode_columns,
)
from beam_lateness.transforms.beam_time import to_ms, to_timestamp
from beam_lateness.transforms.lateness.aggregation import (
    COUNT,
    PANES,
    Aggregation,
    ColumnAggregation,
    CombineAggregation,
    Rows,
    slices,
    touched,
)
from beam_lateness.transforms.lateness.partials import (
    IN_TIME_TAG,
    LATE_TAG,
    PreAggregateBatches,
    PreAggregateRecords,
)
from beam_lateness.transforms.lateness.traces import Trace, detach
from beam_lateness.transforms.lateness.window_with_lateness import fixed_windows
from beam_lateness.transforms.lateness.windows import SLACK_MS, Windows
from beam_lateness.transforms.results import LATE, ON_TIME, Pane

_PANES_AT_ONCE: Final = 8192

_AGGREGATED = metrics.Count(metrics.AGGREGATED)
_LATE_RECORDS = metrics.Count(metrics.LATE)
_PANES = metrics.Count(metrics.PANES)
_ON_TIME_RECORDS = metrics.Count(metrics.ON_TIME)
_CORRECTIONS = metrics.Count(metrics.CORRECTIONS)


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
        trace: Whether panes carry the watermark and the ids of their late records, for an audit
            trail.

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
    trace: bool = False

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
                PreAggregateBatches(
                    self._aggregation, self.windows, self.num_shards, trace=self.trace
                )
            )
            key_coder = None
        else:
            key_type, _ = typehints.coerce_to_kv_type(pcoll.element_type).tuple_types
            key_coder = coder_registry.get_coder(key_type).as_deterministic_coder(
                self.label or "AggregateWindows"
            )
            partials = windowed | "PreAggregateRecords" >> beam.ParDo(
                PreAggregateRecords(self._aggregation, self.windows, self.num_shards, key_coder)
            )
        partials.element_type = typehints.Tuple[int, bytes]
        discarding = self.accumulation_mode == AccumulationMode.DISCARDING
        panes = partials | "MergePartials" >> beam.ParDo(
            _MergePartials(self._aggregation, self.windows, discarding, key_coder, self.trace)
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
        trace: bool = False,
    ) -> None:
        self._aggregation = aggregation
        self._windows = windows
        self._discarding = discarding
        self._key_coder = key_coder
        self._trace = trace

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
        in_time = [_decode(t[1:]) for t in tables if t[:1] == IN_TIME_TAG]
        late = [_decode(t[1:]) for t in tables if t[:1] == LATE_TAG]
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
        late, traces = detach(late)
        late_by_key = _with_panes(self._aggregation.merge(late), 0)
        total = late_by_key if state is None else self._aggregation.merge([state, late_by_key])
        changed = touched(total, late_by_key.column(KEY))
        panes = pc.add(total.column(PANES), changed.cast(pa.int64()))
        total = _with_panes(total, panes)
        merged.write(_encode(total))
        changed_rows = total.filter(changed)
        yield from self._panes(changed_rows, late_by_key, window, LATE, traces)

    def _panes(
        self,
        rows: Rows,
        news: Rows,
        window: IntervalWindow,
        timing: str,
        traces: Mapping[Any, Trace] = {},
    ) -> Iterator[Pane]:
        """Emits a pane a row.

        Args:
            rows: The whole results.
            news: What is new in them, by the same keys.
            window: The grace window.
            timing: The panes' timing.
            traces: Of late records, by key.
        """
        records = pc.sum(news.column(COUNT)).as_py()
        _AGGREGATED.inc(records)
        if timing == LATE:
            _LATE_RECORDS.inc(records)
            _CORRECTIONS.inc(rows.num_rows)
        else:
            _ON_TIME_RECORDS.inc(records)
        _PANES.inc(rows.num_rows)
        if self._discarding and timing == LATE:
            order = [(KEY, "ascending")]
            indices = rows.select([KEY, PANES]).sort_by(order).column(PANES)
            rows = _with_panes(news.sort_by(order), indices)
        start, end = to_ms(window.start), self._end_ms(window)
        reached = end if self._trace and timing == ON_TIME else None
        for piece in slices(rows, _PANES_AT_ONCE):
            keys = piece.column(KEY).to_pylist()
            if self._key_coder is not None:
                keys = [self._key_coder.decode(key) for key in keys]
            values = self._aggregation.values(piece)
            counts, panes = piece.column(COUNT).to_pylist(), piece.column(PANES).to_pylist()
            for key, value, count, pane in zip(keys, values, counts, panes, strict=True):
                made = Pane(key, start, end, value, count, pane - 1, timing, reached)
                if traces and key in traces:  # a key without traces may have no hash
                    made = made._replace(**traces[key]._asdict())
                yield made

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
