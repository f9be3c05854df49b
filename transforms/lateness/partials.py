"""Pre-aggregation: records become one small table per (window, shard), where they are read."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.utils.windowed_value import WindowedValue

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import KEY, VALUE, EventBatch, encode_columns
from beam_lateness.transforms.beam_time import interval, to_ms, to_timestamp
from beam_lateness.transforms.lateness.aggregation import Aggregation, Rows, shards_of
from beam_lateness.transforms.lateness.traces import Traces, attach, traces_of
from beam_lateness.transforms.lateness.windows import SLACK_MS, Windows
from beam_lateness.transforms.times import Flags, Millis

IN_TIME_TAG, LATE_TAG = b"\x00", b"\x01"
_WINDOW: Final = "window"
_LATE: Final = "late"

_LATENESS_MS = metrics.Distribution(metrics.LATENESS_MS)


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

    def __call__(
        self, grouped: Rows, earliest: Callable[[int], int], traces: Traces | None = None
    ) -> Iterator[WindowedValue]:
        """Gives the tables as elements.

        Args:
            grouped: A row per (window, late, key).
            earliest: Gives the smallest event time, in ms, of the records of a window.
            traces: Of late records, if they are traced.
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
            tag = LATE_TAG if late[low] else IN_TIME_TAG
            if late[low] and traces is not None:
                part = attach(part, traces[start])
            end = start + self._windows.size_ms
            yield WindowedValue(
                (int(shards[low]), tag + encode_columns(part)),
                to_timestamp(earliest(start)),
                (interval(start, end + self._windows.allowed_lateness_ms + SLACK_MS),),
            )


class PreAggregateBatches(beam.DoFn):
    """Pre-aggregates stamped batches."""

    def __init__(
        self, aggregation: Aggregation, windows: Windows, num_shards: int, *, trace: bool = False
    ) -> None:
        self._aggregation = aggregation
        self._windows = windows
        self._partials = _Partials(windows, num_shards, _shard_of_text)
        self._trace = trace

    def process(self, element: EventBatch) -> Iterable[WindowedValue]:
        times, stamps = element.event_times, element.watermarks
        starts: Millis = self._windows.start_of(times)
        late: Flags = stamps >= starts + self._windows.size_ms
        if late.any():
            _LATENESS_MS.update(stamps[late] - times[late])
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
        traces = traces_of(element.filter(late), starts[late]) if self._trace else None
        yield from self._partials(grouped, _Earliest(starts, times), traces)


class PreAggregateRecords(beam.DoFn):
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
