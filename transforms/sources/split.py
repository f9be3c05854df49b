"""One split at work: its reader, and a parsed block whose records are released bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from beam_lateness.transforms import batch as columns_of
from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.results import InvalidRecord
from beam_lateness.transforms.sources import status
from beam_lateness.transforms.sources.blocks import Columns, Indices, Lines, Rejected
from beam_lateness.transforms.sources.connector import SplitPosition, SplitReader
from beam_lateness.transforms.sources.parsing import BlockParser
from beam_lateness.transforms.sources.records import Line
from beam_lateness.transforms.sources.status import GroupStatus, SplitStatus
from beam_lateness.transforms.times import NO_WATERMARK_MS, Millis
from beam_lateness.transforms.watermarks.estimator import GroupState, SplitState, exclusive
from beam_lateness.transforms.watermarks.generators import BlockGenerator, BoundChange
from beam_lateness.transforms.watermarks.idleness import IdlenessTimer


class Markers(NamedTuple):
    """Markers that a poll read in a split: their positions, and the largest time of one, in ms."""

    split: str
    positions: list[Any]
    event_time_ms: int


@dataclass
class Poll:
    """What one poll of a group gave.

    Args:
        batches: The records, stamped.
        invalid: Lines that are no records.
        markers: Markers, which are no records, but have been read too.
        blank: How many lines were blank.
        changes: Changes of self-adjusting bounds, each with its split.
        positions: Where every split stands afterwards.
        state: The watermark state afterwards.
        status: The same for people.
        wait_s: How long to wait before the next poll, in seconds.
        caught_up: Of a live input: whether it is known that there was nothing more.
        finished: Whether all has been read.
    """

    batches: list[EventBatch] = field(default_factory=list)
    invalid: list[InvalidRecord] = field(default_factory=list)
    markers: list[Markers] = field(default_factory=list)
    blank: int = 0
    changes: list[tuple[str, BoundChange]] = field(default_factory=list)
    positions: dict[str, SplitPosition] = field(default_factory=dict)
    state: GroupState = field(default_factory=GroupState)
    status: GroupStatus = field(default_factory=GroupStatus)
    wait_s: float = 0.0
    caught_up: bool = False
    finished: bool = False


class Track:
    """One running watermark: of a split, or of all splits merged.

    Args:
        name: The split's name; "" of merged splits.
        create: Makes a generator from its state.
        timer: Tells when it is idle; None without idleness.
        state: What a checkpoint held of it.
    """

    def __init__(
        self,
        name: str,
        create: Callable[[Any], BlockGenerator],
        timeout_ms: int | None,
        state: SplitState,
    ) -> None:
        self.name = name
        self.create = create
        self.generator = create(state.generator)
        self.timer = (
            None
            if timeout_ms is None
            else IdlenessTimer(timeout_ms, state.quiet_since_ms, state.idle)
        )

    @property
    def idle(self) -> bool:
        """Whether it is idle."""
        return self.timer is not None and self.timer.idle

    @property
    def state(self) -> SplitState:
        """What a checkpoint holds of it."""
        if self.timer is None:
            return SplitState(self.generator.state)
        return SplitState(self.generator.state, self.timer.quiet_since_ms, self.timer.idle)


class Split:
    """One split: its reader, its watermark, and a parsed block of which a part may be released.

    Args:
        name: Its name.
        position: Where it stands.
        track: Its watermark; splits that are merged share one.
    """

    def __init__(self, name: str, position: SplitPosition, track: Track) -> None:
        self.name = name
        self.position = position
        self.track = track
        self.reader: SplitReader | None = None
        self.parser: BlockParser | None = None
        self.header = b""
        self.at_end = position.done
        self.paused = False
        self.caught_up = True  # whether an empty block meant that there was nothing more
        self.records = 0  # released since it was opened
        self.span_ms: tuple[int, int] | None = None  # smallest and largest event time among them
        self._clear()

    def _clear(self) -> None:
        self.columns = Columns.of([], [])
        self.stamps: Millis = np.empty(0, dtype=np.int64)  # inclusive, before each record
        self.reached_ms = NO_WATERMARK_MS  # the watermark after the last record of the block
        self.latest: Millis = self.stamps  # the largest event time so far, with each record
        self._ahead = self.track.generator  # as it is after the last record of the block
        self._told = 0  # how many of its changes were released
        self._records: LineRecords | tuple[()] = ()
        self._lines: Lines | None = None
        self._payloads: pa.Array | None = None
        self._rejected: list[Rejected] = []
        self._blank: Millis = self.stamps  # where blank lines stand that are not counted yet
        self.cursor = 0

    def load(self, lines: Lines, columns: Columns, rejected: list[Rejected]) -> None:
        """Takes a parsed block."""
        self._clear()
        generator = self.track.generator
        self.columns, self._lines, self._rejected = columns, lines, rejected
        self._blank = lines.blank_starts
        self.reached_ms = generator.watermark_ms
        if not len(columns):
            return
        ahead = self._ahead = self.track.create(generator.state)
        if ahead.needs_records and self.parser is not None:
            self._records = LineRecords(self.parser, lines, columns.line)
        after = ahead.on_events(columns.event_time, columns.marker, self._records)
        self.stamps = np.append(generator.watermark_ms, after[:-1])
        self.reached_ms = int(after[-1])
        if ahead.failures:
            self._reject(ahead.failures)
        self.latest = np.maximum.accumulate(self.columns.event_time)

    def _reject(self, failures: Mapping[int, str]) -> None:
        """Takes the records on which the generator failed out of the block."""
        assert self._lines is not None  # noqa: S101 (set by load)
        assert isinstance(self._records, LineRecords)  # noqa: S101 (only per-record ones fail)
        for row, detail in failures.items():
            line = int(self.columns.line[row])
            own = self._records.read_id(row)
            self._rejected.append(
                Rejected(line, "watermark_generator_failed", detail, self._lines[line], own)
            )
        self._rejected.sort(key=_line_of)
        good = np.setdiff1d(np.arange(len(self.columns)), list(failures))
        self.columns, self.stamps = self.columns.take(good), self.stamps[good]
        self._records = self._records.take(good)

    @property
    def status(self) -> SplitStatus:
        """Where it stands, for people."""
        state = status.ACTIVE
        if self.position.done:
            state = status.FINISHED
        elif self.track.idle:
            state = status.IDLE
        elif self.paused:
            state = status.PAUSED
        first_ms, last_ms = self.span_ms or (None, None)
        watermark_ms = shown(self.track.generator.watermark_ms)
        return SplitStatus(self.name, state, self.records, first_ms, last_ms, watermark_ms)

    @property
    def drained(self) -> bool:
        """Whether every record of the block has been released."""
        return self.cursor == len(self.columns)

    def is_free(self, limit_ms: int) -> bool:
        """Says whether the next record may be released: no other split is to be read first."""
        return not self.drained and bool(self.stamps[self.cursor] <= limit_ms)

    def release(self, until: int, poll: Poll, stamps: Millis) -> None:
        """Moves the records before row `until` into the poll, stamped, and the watermark on.

        Args:
            until: Row after the last one to release.
            poll: Where they go.
            stamps: The inclusive watermark before each of them.
        """
        if self._lines is None:
            return
        low, self.cursor = self.cursor, until
        columns = self.columns
        self._move_watermark(low, until, poll)
        released = columns.slice(low, until)
        if len(released):
            times = released.event_time
            first, last = self.span_ms or (int(times[0]), int(times[0]))
            self.span_ms = min(first, int(times.min())), max(last, int(times.max()))
        markers = released.marker
        lines = self._lines
        if markers.any():
            own = released.take(np.flatnonzero(markers))
            poll.markers.append(
                Markers(self.name, lines.positions(own.line).to_pylist(), int(own.event_time.max()))
            )
            released, stamps = released.take(np.flatnonzero(~markers)), stamps[~markers]
        if len(released):
            self.records += len(released)
            poll.batches.append(self._batch(released, stamps))
        self._release_rejected(poll)
        end = lines.resume_at(None if self.drained else int(columns.line[until]))
        blank = int(np.searchsorted(self._blank, end - lines.offset))
        poll.blank += blank
        self._blank = self._blank[blank:]
        self.position = self.position._replace(offset=end)
        if self.drained:
            self._clear()

    def _move_watermark(self, low: int, until: int, poll: Poll) -> None:
        """Brings the generator to row `until`: it has seen the block already, as `_ahead`."""
        track = self.track
        if self.drained:
            changes = self._ahead.take_changes()[self._told :]
            track.generator = self._ahead
        else:
            rows = slice(low, until)
            track.generator.on_events(
                self.columns.event_time[rows], self.columns.marker[rows], self._records[rows]
            )
            changes = track.generator.take_changes()
            self._told += len(changes)
        poll.changes.extend((self.name, change) for change in changes)

    def _batch(self, columns: Columns, stamps: Millis) -> EventBatch:
        lines = self._lines
        assert lines is not None  # noqa: S101 (release has checked)
        if self._payloads is None:
            self._payloads = lines.payloads()
        whole = len(columns) == len(lines)
        arrays = {
            columns_of.KEY: columns.key,
            columns_of.VALUE: columns.value,
            columns_of.ID: columns.id,
            columns_of.EVENT_TIME: pa.array(columns.event_time),
            columns_of.WATERMARK: pa.array(exclusive(stamps)),
            columns_of.POSITION: lines.positions(columns.line),
            columns_of.PAYLOAD: self._payloads
            if whole
            else self._payloads.take(pa.array(columns.line)),
        }
        return EventBatch(
            self.name, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        )

    def _release_rejected(self, poll: Poll) -> None:
        assert self._lines is not None  # noqa: S101 (release has checked)
        limit = len(self._lines) if self.drained else int(self.columns.line[self.cursor])
        released = [row for row in self._rejected if row.line < limit]
        self._rejected = self._rejected[len(released) :]
        places = self._lines.positions(np.array([row.line for row in released], dtype=np.int64))
        for row, position in zip(released, places.to_pylist(), strict=True):
            poll.invalid.append(
                InvalidRecord(
                    row.reason,
                    row.detail,
                    self.name,
                    position,
                    row.id if row.id is not None else f"{self.name}:{position}",
                    row.payload,
                )
            )

    def close(self) -> None:
        """Closes its reader."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None


def shown(watermark_ms: int) -> int | None:
    """Gives an inclusive watermark as people see it: exclusive, and None before the first."""
    return exclusive(watermark_ms) if watermark_ms > NO_WATERMARK_MS else None


def _line_of(rejected: Rejected) -> int:
    return rejected.line


class LineRecords(Sequence[Mapping[str, Any]]):
    """The records of a block as their fields; each is parsed only if a generator looks at it."""

    def __init__(self, parser: BlockParser, lines: Lines, rows: Indices) -> None:
        self._parser, self._lines, self._rows = parser, lines, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, row: slice) -> LineRecords: ...
    def __getitem__(self, row: int | slice) -> Mapping[str, Any] | LineRecords:
        if isinstance(row, slice):
            return self.take(np.arange(*row.indices(len(self))))
        return _LazyRecord(self._parser, self._lines[int(self._rows[row])])

    def take(self, rows: Indices) -> LineRecords:
        """Picks records."""
        return LineRecords(self._parser, self._lines, self._rows[rows])

    def read_id(self, row: int) -> str | None:
        """Gives a record's own id; None where it has none."""
        return self._parser.fields.read_id(self[row])


class _LazyRecord(Mapping[str, Any]):
    """The fields of a line that is known to be a record."""

    def __init__(self, parser: BlockParser, raw: bytes) -> None:
        self._parser, self._raw = parser, raw
        self._line: Line | None = None

    def _fields(self) -> Line:
        if self._line is None:
            self._line = self._parser.read_line(self._raw)
        return self._line

    def __getitem__(self, name: str) -> Any:
        return self._fields()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields())

    def __len__(self) -> int:
        return len(self._fields())
