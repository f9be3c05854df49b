"""A block of input cut into lines, and its records as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from beam_lateness.transforms.sources.records import BadRecordError, Record
from beam_lateness.transforms.times import Flags, Millis

Indices = npt.NDArray[np.int64]

_NEWLINE, _RETURN = 10, 13


@dataclass(frozen=True)
class Rejected:
    """A line that is no record: its place in the block, why, what it held, and its own id."""

    line: int
    reason: str
    detail: str
    payload: bytes
    id: str | None


@dataclass
class Lines:
    """The lines of a block: where each starts and ends (line break left out), blank ones dropped.

    Args:
        data: The block; it starts at a line's start.
        offset: Where it starts in its split.
        base: What a record's position counts from.
    """

    data: bytes
    offset: int = 0
    base: int = 0
    starts: Indices = field(init=False)
    ends: Indices = field(init=False)
    stops: Indices = field(init=False)  # after the line break
    bytes_: npt.NDArray[np.uint8] = field(init=False, repr=False)
    blank_starts: Indices = field(init=False)

    def __post_init__(self) -> None:
        self.bytes_ = np.frombuffer(self.data, dtype=np.uint8)
        ends = np.flatnonzero(self.bytes_ == _NEWLINE)
        if self.data and not self.data.endswith(b"\n"):
            ends = np.append(ends, len(self.data))
        stops = np.minimum(ends + 1, len(self.data))
        starts = np.append(0, stops[:-1]) if len(stops) else stops
        returns = (ends > starts) & (self.bytes_[ends - 1] == _RETURN)
        self.starts, self.ends, self.stops = starts, ends - returns, stops
        blank = [i for i in np.flatnonzero(self._suspects()).tolist() if not self[i].strip()]
        self.blank_starts = self.starts[blank] if blank else self.starts[:0]
        if blank:
            self.starts = np.delete(self.starts, blank)
            self.ends = np.delete(self.ends, blank)
            self.stops = np.delete(self.stops, blank)

    def _suspects(self) -> Flags:
        """Marks the lines that may be blank: empty, or starting with white space."""
        suspects: Flags = self.starts == self.ends
        filled = np.flatnonzero(~suspects)
        suspects[filled] = self.bytes_[self.starts[filled]] <= 32  # space and the controls
        return suspects

    @property
    def blank(self) -> int:
        """How many blank lines were dropped."""
        return len(self.blank_starts)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, line: int) -> bytes:
        return self.data[self.starts[line] : self.ends[line]]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    @property
    def problems(self) -> Mapping[int, BadRecordError]:
        """What is wrong with a record before it is parsed: nothing, in a file."""
        return {}

    def event_times(self, low: int, high: int) -> Millis | None:
        """Gives the event times that stand beside the records, in ms; None in a file."""
        return None

    def irregular(self) -> Indices:
        """Gives the records that are no single line."""
        return np.empty(0, dtype=np.int64)

    def positions(self, rows: Indices) -> pa.Array:
        """Gives the positions of some records."""
        return pa.array(self.base + self.offset + self.starts[rows])

    def resume_at(self, row: int | None) -> int:
        """Gives the offset at which reading goes on before a row; at None, after the last one."""
        return self.offset + (len(self.data) if row is None else int(self.starts[row]))

    def payloads(self) -> pa.Array:
        """Gives the lines, each with its line break, as an Arrow array.

        It copies nothing where no blank line stands between them.
        """
        if len(self.blank_starts):
            bounds = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
            return pa.array([self.data[start:stop] for start, stop in bounds], pa.binary())
        offsets = np.append(0, self.stops).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers)


@dataclass
class Columns:
    """Records of a block as columns; markers stand among them, in their place."""

    line: Indices
    event_time: Millis
    marker: Flags
    key: pa.Array
    value: pa.Array
    id: pa.Array

    def __len__(self) -> int:
        return len(self.line)

    @staticmethod
    def of(lines: list[int], records: list[Record]) -> Columns:
        """Makes columns of records read one by one."""
        values = [record.value for record in records]
        floats = any(isinstance(value, float) for value in values)
        return Columns(
            line=np.array(lines, dtype=np.int64),
            event_time=np.array([record.event_time_ms for record in records], dtype=np.int64),
            marker=np.array([record.marker for record in records], dtype=np.bool_),
            key=pa.array([record.key for record in records], pa.string()),
            value=pa.array(
                [float(v) if floats and v is not None else v for v in values],
                pa.float64() if floats else pa.int64(),
            ),
            id=pa.array([record.id for record in records], pa.string()),
        )

    @staticmethod
    def concat(parts: list[Columns]) -> Columns:
        """Joins parts in the order of their lines."""
        if len(parts) == 1:
            return parts[0]
        line = np.concatenate([part.line for part in parts])
        floats = any(pa.types.is_floating(part.value.type) for part in parts)
        value_type = pa.float64() if floats else pa.int64()
        values = [part.value.cast(value_type, safe=False) for part in parts]
        joined = Columns(
            line=line,
            event_time=np.concatenate([part.event_time for part in parts]),
            marker=np.concatenate([part.marker for part in parts]),
            key=pa.concat_arrays([part.key for part in parts]),
            value=pa.concat_arrays(values),
            id=pa.concat_arrays([part.id for part in parts]),
        )
        if (np.diff(line) > 0).all():
            return joined
        return joined.take(np.argsort(line, kind="stable"))

    def slice(self, low: int, high: int) -> Columns:
        """Gives rows `low` to `high`, without a copy."""
        if low == 0 and high == len(self):
            return self
        return Columns(
            self.line[low:high],
            self.event_time[low:high],
            self.marker[low:high],
            self.key[low:high],
            self.value[low:high],
            self.id[low:high],
        )

    def take(self, indices: Indices) -> Columns:
        """Picks rows."""
        rows = pa.array(indices)
        return Columns(
            self.line[indices],
            self.event_time[indices],
            self.marker[indices],
            self.key.take(rows),
            self.value.take(rows),
            self.id.take(rows),
        )
