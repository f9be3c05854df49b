"""Traces: which late records made a pane, carried beside the partial aggregates.

Only late records have them, so that the others cost nothing.
"""

from __future__ import annotations

import itertools
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
        record_ids: Their ids; what UTF-8 cannot hold in them (a file's name) is escaped.
    """

    watermark: int
    record_ids: tuple[str, ...]

    @staticmethod
    def joined(parts: Sequence[Trace]) -> Trace:
        """Joins traces, in the order in which they came."""
        ids = itertools.chain.from_iterable(part.record_ids for part in parts)
        return Trace(max(part.watermark for part in parts), tuple(ids))


Traces: TypeAlias = Mapping[int, Mapping[Any, Trace]]
"""Traces by the start of the window, in ms, and the key."""


def traces_of(late: EventBatch, starts: Millis) -> Traces:
    """Traces the late records of a batch.

    Args:
        late: They alone.
        starts: The start of each one's window, ms.
    """
    found: defaultdict[int, defaultdict[Any, list[Trace]]] = defaultdict(_lists)
    rows = late.columns.select([KEY, ID, POSITION]).to_pylist()
    for row, start, stamp in zip(rows, starts.tolist(), late.watermarks.tolist(), strict=True):
        name = record_id(late.split, row).encode(errors="backslashreplace").decode()
        found[start][row[KEY]].append(Trace(stamp, (name,)))
    return {start: _joined(of_keys) for start, of_keys in found.items()}


def attach(part: pa.RecordBatch, traces: Mapping[Any, Trace]) -> pa.RecordBatch:
    """Adds the traces of its keys to a partial aggregate of one window."""
    of_rows = [traces[key] for key in part.column(KEY).to_pylist()]
    columns = {name: part.column(name) for name in part.schema.names}
    columns[_STAMP] = pa.array([trace.watermark for trace in of_rows], pa.int64())
    columns[_IDS] = pa.array([trace.record_ids for trace in of_rows], pa.list_(pa.string()))
    return pa.RecordBatch.from_pydict(columns)


def detach(parts: Sequence[Rows]) -> tuple[list[Rows], dict[Any, Trace]]:
    """Parts traces, by key, from partial aggregates of one window; some may have none."""
    found = _lists()
    for part in parts:
        if _IDS not in part.column_names:
            continue
        for key, trace in _read(part):
            found[key].append(trace)
    own = [[name for name in part.column_names if name not in (_STAMP, _IDS)] for part in parts]
    return [part.select(names) for part, names in zip(parts, own, strict=True)], _joined(found)


def _lists() -> defaultdict[Any, list[Trace]]:
    return defaultdict(list)


def _joined(found: Mapping[Any, Sequence[Trace]]) -> dict[Any, Trace]:
    return {key: Trace.joined(parts) for key, parts in found.items()}


def _read(part: Rows) -> Iterable[tuple[Any, Trace]]:
    columns = (part.column(name).to_pylist() for name in (KEY, _STAMP, _IDS))
    for key, stamp, ids in zip(*columns, strict=True):
        yield key, Trace(stamp, tuple(ids))
