"""Reads a group of splits and stamps each record: what the source does, without Beam.

A finite replay reads on from the split whose watermark is lowest. Then the group's watermark at
each record is that split's own, so verdicts equal each split's own sequential model, whatever the
block size and the order of the splits. "Lowest first" needs no record-by-record loop: the records
that precede all unread ones are those whose stamp is at most the smallest watermark that a split
with more to read has reached. A live input is taken as it comes, and stamped with the group's
minimum at that moment.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from beam_lateness.transforms import batch as columns_of
from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.results import InvalidRecord
from beam_lateness.transforms.sources.blocks import Columns, Lines, Rejected
from beam_lateness.transforms.sources.connector import (
    Connector,
    Positions,
    SplitPosition,
    SplitReader,
)
from beam_lateness.transforms.sources.parsing import BlockParser
from beam_lateness.transforms.sources.records import Line
from beam_lateness.transforms.times import NO_WATERMARK_MS, Millis
from beam_lateness.transforms.watermarks.estimator import GroupState, exclusive
from beam_lateness.transforms.watermarks.generators import WatermarkGenerator
from beam_lateness.transforms.watermarks.splits import SplitWatermarks
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy

BLOCK_BYTES: Final = 8 << 20
_LEAST_BLOCK_BYTES: Final = 1 << 16
_IDLE_WAIT_S: Final = 0.2  # between polls of a live input that had nothing new
_LONGEST_WAIT_S: Final = 1.0  # between polls of a paced replay


@dataclass(frozen=True)
class ReadSettings:
    """How a group is read.

    Args:
        block_bytes: About how much is read before the watermark is reported.
        max_future_skew_ms: Records further ahead of the clock are invalid; None for no limit.
        replay_speed: Event time released per wall time (2 is twice as fast as it happened); None
            for full speed.
        clock: Gives the time in seconds since the epoch.
    """

    block_bytes: int = BLOCK_BYTES
    max_future_skew_ms: int | None = None
    replay_speed: float | None = None
    clock: Callable[[], float] = time.time


@dataclass
class Poll:
    """What one poll of a group gave.

    Args:
        batches: The records, stamped.
        invalid: Lines that are no records.
        blank: How many lines were blank.
        positions: Where every split stands afterwards.
        state: The watermark state afterwards.
        wait_s: How long to wait before the next poll, in seconds.
        finished: Whether all has been read.
    """

    batches: list[EventBatch] = field(default_factory=list)
    invalid: list[InvalidRecord] = field(default_factory=list)
    blank: int = 0
    positions: dict[str, SplitPosition] = field(default_factory=dict)
    state: GroupState = field(default_factory=GroupState)
    wait_s: float = 0.0
    finished: bool = False


class _Split:
    """One split: its reader, its generator, and a parsed block of which a part may be released."""

    def __init__(self, name: str, position: SplitPosition, generator: WatermarkGenerator) -> None:
        self.name = name
        self.position = position
        self.generator = generator
        self.reader: SplitReader | None = None
        self.parser: BlockParser | None = None
        self.header = b""
        self.at_end = position.done
        self._clear()

    def _clear(self) -> None:
        self.columns = Columns.of([], [])
        self.stamps: Millis = np.empty(0, dtype=np.int64)  # inclusive, before each record
        self.reached_ms = NO_WATERMARK_MS  # the watermark after the last record of the block
        self.latest: Millis = self.stamps  # the largest event time so far, with each record
        self._lines: Lines | None = None
        self._payloads: pa.Array | None = None
        self._rejected: list[Rejected] = []
        self._blank: Millis = self.stamps  # where blank lines stand that are not counted yet
        self._offset = 0  # of the block in its file
        self.cursor = 0

    def load(self, lines: Lines, offset: int, columns: Columns, rejected: list[Rejected]) -> None:
        """Takes a parsed block that starts at `offset`."""
        self._clear()
        self.columns, self._lines, self._rejected = columns, lines, rejected
        self._offset, self._blank = offset, lines.blank_starts
        self.reached_ms = self.generator.watermark_ms
        if len(columns):
            ahead = copy.copy(self.generator)
            after = ahead.on_events(columns.event_time, columns.marker)
            self.stamps = np.append(self.generator.watermark_ms, after[:-1])
            self.reached_ms = int(after[-1])
            self.latest = np.maximum.accumulate(columns.event_time)

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
        times, markers = columns.event_time[low:until], columns.marker[low:until]
        self.generator.on_events(times, markers)
        released = columns.slice(low, until)
        if markers.any():
            released, stamps = released.take(np.flatnonzero(~markers)), stamps[~markers]
        if len(released):
            poll.batches.append(self._batch(released, stamps))
        self._release_rejected(poll)
        lines = self._lines
        end = len(lines.data) if self.drained else int(lines.starts[columns.line[until]])
        blank = int(np.searchsorted(self._blank, end))
        poll.blank += blank
        self._blank = self._blank[blank:]
        self.position = self.position._replace(offset=self._offset + end)
        if self.drained:
            self._clear()

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
            columns_of.POSITION: pa.array(
                self.position.base + self._offset + lines.starts[columns.line]
            ),
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
        for row in released:
            position = self.position.base + self._offset + int(self._lines.starts[row.line])
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


class GroupReader:
    """Reads the splits of a connector on from where they stand.

    Args:
        connector: The input.
        strategy: The watermark strategy, its time unit settled.
        sample: The sample of the input, as `formats.bind` gave it.
        settings: How to read.
        positions: Where every split stands.
        state: The watermark state at those positions.
    """

    def __init__(
        self,
        connector: Connector,
        strategy: WatermarkStrategy,
        sample: list[Line],
        settings: ReadSettings,
        positions: Positions,
        state: GroupState,
    ) -> None:
        self._connector = connector
        self._strategy = strategy
        self._fields = connector.line_format.fields(strategy)
        self._sample = sample
        self._settings = settings
        self._combined = SplitWatermarks(state.watermark_ms)
        self._splits: dict[str, _Split] = {}
        self._epoch: tuple[float, int] | None = None  # wall and event time where a replay began
        for name, position in positions.items():
            self._add(name, position, state.splits)

    def _add(self, name: str, position: SplitPosition, states: Mapping[str, int | None]) -> None:
        generator = self._strategy.create_generator(states.get(name))
        split = self._splits[name] = _Split(name, position, generator)
        if not position.done:
            self._combined.update(name, split.generator.watermark_ms)

    @property
    def positions(self) -> dict[str, SplitPosition]:
        """Where every split stands."""
        return {name: split.position for name, split in self._splits.items()}

    @property
    def state(self) -> GroupState:
        """The watermark state: of the group, and of every split's generator."""
        states = {name: split.generator.state for name, split in self._splits.items()}
        return GroupState(self._combined.combined_ms, states)

    def close(self) -> None:
        """Closes the splits' readers."""
        for split in self._splits.values():
            if split.reader is not None:
                split.reader.close()
                split.reader = None

    def poll(self) -> Poll:
        """Reads about one block and moves the watermark on."""
        poll = Poll()
        if self._connector.follows:
            self._poll_live(poll)
        else:
            self._poll_replay(poll)
        poll.positions, poll.state = self.positions, self.state
        poll.finished = not self._connector.follows and not self._unfinished()
        return poll

    def _unfinished(self) -> list[_Split]:
        return [split for split in self._splits.values() if not split.position.done]

    def _poll_replay(self, poll: Poll) -> None:
        splits = self._unfinished()
        size = max(_LEAST_BLOCK_BYTES, self._settings.block_bytes // max(1, len(splits)))
        size = min(size, self._settings.block_bytes)
        for split in splits:
            if split.drained and not split.at_end:
                self._read(split, size)
        reached = [split.reached_ms for split in splits if not split.at_end]
        limit = min(reached, default=None)
        horizon = self._horizon(splits)
        for split in splits:
            until = len(split.columns)
            if limit is not None:
                until = int(np.searchsorted(split.stamps, limit, side="right"))
            if horizon is not None:
                until = min(until, int(np.searchsorted(split.latest, horizon, side="right")))
            until = max(until, split.cursor)
            split.release(until, poll, split.stamps[split.cursor : until])
            self._combined.update(split.name, split.generator.watermark_ms)
            if split.at_end and split.drained:
                self._finish(split)
        if horizon is not None and not poll.batches:
            free = [split for split in splits if limit is None or split.is_free(limit)]
            poll.wait_s = self._wait(free, horizon)

    def _read(self, split: _Split, size: int) -> None:
        if split.reader is None:
            split.reader = self._connector.open(split.name, split.position)
        block = split.reader.read(size)
        split.at_end = block.at_end
        split.position = split.position._replace(offset=block.offset, base=block.base)
        if not block.data:
            return
        if split.parser is None or split.header != split.reader.header:
            split.header = split.reader.header
            split.parser = self._connector.line_format.parser(
                self._fields, self._sample, split.header
            )
        lines = Lines(block.data)
        columns, rejected = split.parser.parse(lines, self._latest_ms())
        split.load(lines, block.offset, columns, rejected)

    def _latest_ms(self) -> int | None:
        skew = self._settings.max_future_skew_ms
        return None if skew is None else int(self._settings.clock() * 1000) + skew

    def _finish(self, split: _Split) -> None:
        split.position = split.position._replace(done=True)
        if self._unfinished():
            self._combined.remove(split.name)
        else:
            ends = [each.generator.watermark_ms for each in self._splits.values()]
            self._combined = SplitWatermarks(max(self._combined.combined_ms, *ends))
        if split.reader is not None:
            split.reader.close()
            split.reader = None

    def _poll_live(self, poll: Poll) -> None:
        for name, position in self._connector.initial_positions().items():
            if name not in self._splits:
                self._add(name, position, {})
        combined = self._combined
        for split in sorted(self._splits.values(), key=lambda s: (combined.of(s.name), s.name)):
            self._read(split, self._settings.block_bytes)
            others = combined.minimum_of_others(split.name)
            stamps = split.stamps
            if others is not None:
                stamps = np.minimum(stamps, others)
            stamps = np.maximum(stamps, combined.combined_ms)
            split.release(len(split.columns), poll, stamps)
            combined.update(split.name, split.generator.watermark_ms)
        if not poll.batches and not poll.invalid:
            poll.wait_s = _IDLE_WAIT_S

    def _horizon(self, splits: list[_Split]) -> int | None:
        """The event time that a paced replay has come to; None at full speed."""
        speed = self._settings.replay_speed
        if speed is None:
            return None
        now = self._settings.clock()
        if self._epoch is None:
            first = [int(split.latest[split.cursor]) for split in splits if not split.drained]
            if not first:
                return NO_WATERMARK_MS
            self._epoch = (now, min(first))
        began, first_ms = self._epoch
        return first_ms + int((now - began) * 1000 * speed)

    def _wait(self, splits: list[_Split], horizon: int) -> float:
        due = [int(split.latest[split.cursor]) for split in splits if not split.drained]
        speed = self._settings.replay_speed or 1.0
        wait = (min(due, default=horizon) - horizon) / 1000 / speed
        return min(max(wait, 0.001), _LONGEST_WAIT_S)
