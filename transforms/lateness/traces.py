"""Traces: which late records made a pane, carried beside the partial aggregates.

Only late records have them, so that the others cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from beam_lateness.transforms.batch import ID, KEY, POSITION, EventBatch, record_id
from beam_lateness.transforms.lateness.aggregation import Rows
from beam_lateness.transforms.times import Millis

_STAMP: Final = "stamp"
_IDS: Final = "record_ids"


class Trace(NamedTuple):
    """The late records of one key and window.

    Args:
        watermark: The stamp of the last one: the exclusive watermark when it came, ms.
        record_ids: Their ids.
    """

    watermark: int
    record_ids: tuple[str, ...]

    def with_later(self, later: Trace) -> Trace:
        """Joins what came later."""
        return Trace(max(self.watermark, later.watermark), (*self.record_ids, *later.record_ids))


Traces: TypeAlias = Mapping[int, Mapping[Any, Trace]]
"""Traces by the start of the window, in ms, and the key."""


def traces_of(late: EventBatch, starts: Millis) -> Traces:
    """Traces the late records of a batch.

    Args:
        late: They alone.
        starts: The start of each one's window, ms.
    """
    found: defaultdict[int, dict[Any, Trace]] = defaultdict(dict)
    rows = late.columns.select([KEY, ID, POSITION]).to_pylist()
    for row, start, stamp in zip(rows, starts.tolist(), late.watermarks.tolist(), strict=True):
        trace, key = Trace(stamp, (record_id(late.split, row),)), row[KEY]
        known = found[start].get(key)
        found[start][key] = trace if known is None else known.with_later(trace)
    return found


def attach(part: pa.RecordBatch, traces: Mapping[Any, Trace]) -> pa.RecordBatch:
    """Adds the traces of its keys to a partial aggregate of one window."""
    of_rows = [traces[key] for key in part.column(KEY).to_pylist()]
    columns = {name: part.column(name) for name in part.schema.names}
    columns[_STAMP] = pa.array([trace.watermark for trace in of_rows], pa.int64())
    columns[_IDS] = pa.array([trace.record_ids for trace in of_rows], pa.list_(pa.string()))
    return pa.RecordBatch.from_pydict(columns)


def detach(parts: Sequence[Rows]) -> tuple[list[Rows], dict[Any, Trace]]:
    """Parts traces, by key, from partial aggregates of one window; some may have none."""
    found: dict[Any, Trace] = {}
    for part in parts:
        if _IDS not in part.column_names:
            continue
        for key, trace in _read(part):
            found[key] = found[key].with_later(trace) if key in found else trace
    own = [[name for name in part.column_names if name not in (_STAMP, _IDS)] for part in parts]
    return [part.select(names) for part, names in zip(parts, own, strict=True)], found


def _read(part: Rows) -> Iterable[tuple[Any, Trace]]:
    columns = (part.column(name).to_pylist() for name in (KEY, _STAMP, _IDS))
    for key, stamp, ids in zip(*columns, strict=True):
        yield key, Trace(stamp, tuple(ids))
