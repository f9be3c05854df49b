"""An input in memory, and what is read from it: the connector protocol's smallest user."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from beam_lateness.transforms.sources.connector import Block, Positions, SplitPosition
from beam_lateness.transforms.sources.formats import JsonLines, LineFormat
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.read_settings import BLOCK_BYTES, ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import GroupState, GroupStateCoder, exclusive
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests import model

BEAM_MINIMUM: Final = NO_WATERMARK_MS + 1
JSON: Final = JsonLines("k", "v", "id")


class Stamped(NamedTuple):
    """A record as it left the source."""

    split: str
    name: str
    ts: int
    stamp: int


Streams: TypeAlias = Mapping[str, Iterable["model.Event | model.Marker"]]


class MemorySplit:
    """Reads whole lines of a text that may grow."""

    header = b""

    def __init__(self, owner: MemoryInput, split: str, offset: int) -> None:
        self._owner, self._split, self._offset = owner, split, offset

    def read(self, size: int) -> Block:
        """Gives the next lines, of about `size` bytes."""
        data, start = self._owner.texts[self._split], self._offset
        self._offset = data.find(b"\n", min(start + size, len(data)) - 1) + 1 or len(data)
        self._offset = max(self._offset, start)
        at_end = self._offset == len(data) and not self._owner.follows
        return Block(data[start : self._offset], start, at_end)

    def close(self) -> None:
        """Holds nothing."""


@dataclass
class MemoryInput:
    """Texts by the names of their splits."""

    texts: dict[str, bytes]
    follows: bool = False
    line_format: LineFormat = field(default=JSON)

    def write(self, split: str, *lines: model.Event | model.Marker | bytes) -> None:
        """Appends records, markers or raw lines to a split, which may be new."""
        added = (x + b"\n" if isinstance(x, bytes) else line_of(x) for x in lines)
        self.texts[split] = self.texts.get(split, b"") + b"".join(added)

    def initial_positions(self) -> dict[str, SplitPosition]:
        """The splits, in the order of their names."""
        return {name: SplitPosition() for name in sorted(self.texts)}

    def open(self, split: str, position: SplitPosition) -> MemorySplit:
        """Opens a split at a position."""
        return MemorySplit(self, split, position.offset)

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives all lines."""
        for text in self.texts.values():
            for line in text.split(b"\n"):
                yield b"", line

    def reader(
        self,
        strategy: WatermarkStrategy,
        settings: ReadSettings | None = None,
        positions: Positions | None = None,
        state: GroupState | None = None,
    ) -> GroupReader:
        """Starts to read, or goes on."""
        timed = strategy.with_timestamp_assigner(FieldTime("t", "ms"))
        return Group(self, timed, [], settings or ReadSettings()).open(positions, state)


def line_of(step: model.Event | model.Marker) -> bytes:
    """A record or a marker as a JSON line."""
    fields: dict[str, Any] = (
        {"end": True, "t": step.ts}
        if isinstance(step, model.Marker)
        else {"k": step.key, "v": step.value, "id": step.name, "t": step.ts}
    )
    return json.dumps(fields).encode() + b"\n"


def written(streams: Streams, follows: bool = False) -> MemoryInput:
    """An input of streams."""
    return MemoryInput({name: b"".join(map(line_of, s)) for name, s in streams.items()}, follows)


def drain(reader: GroupReader) -> list[Poll]:
    """Polls to the end."""
    polls = [reader.poll()]
    while not polls[-1].finished:
        polls.append(reader.poll())
        assert len(polls) < 10_000, "a finite input comes to an end"
    reader.close()
    return polls


def stamped(polls: Iterable[Poll]) -> list[Stamped]:
    """The records of some polls, in the order they came."""
    return [
        Stamped(batch.split, row["id"], row["event_time"], row["watermark"])
        for poll in polls
        for batch in poll.batches
        for row in batch.columns.to_pylist()
    ]


def by_split(records: Iterable[Stamped]) -> dict[str, list[Stamped]]:
    """The same, split by split."""
    splits: dict[str, list[Stamped]] = {}
    for record in records:
        splits.setdefault(record.split, []).append(record)
    return splits


def expected(
    streams: Streams, bound: int | None = None, floor: int = BEAM_MINIMUM
) -> dict[str, list[Stamped]]:
    """What the sequential model says of each split alone; markers without a bound."""
    splits = {}
    for split, steps in streams.items():
        judged = (
            model.punctuated(steps)
            if bound is None
            else model.bounded((step for step in steps if isinstance(step, model.Event)), bound)
        )
        records = [
            Stamped(split, event.name, event.ts, max(watermark, floor))
            for event, watermark in judged
        ]
        if records:
            splits[split] = records
    return splits


def too_late(records: Iterable[Stamped], size: int, lateness: int) -> set[str]:
    """Names of the records whose window's time was over when they came."""
    return {r.name for r in records if r.stamp >= r.ts - r.ts % size + size + lateness}


class Clock:
    """A clock that moves when it is told to, or when somebody sleeps by it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Takes no time but its own."""
        self.now_s += seconds


class Live:
    """A followed input, the reader that follows it, and the clock of both.

    Args:
        strategy: The watermark strategy.
        splits: Names of the splits that are there from the start, empty.
        source: The input, instead.
        clock: The clock, where others share it.
        block_bytes: About how much is read of a split at a poll.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        splits: Iterable[str] = (),
        source: MemoryInput | None = None,
        clock: Clock | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.clock = clock or Clock()
        self.source = source or MemoryInput(dict.fromkeys(splits, b""), follows=True)
        self._strategy = strategy
        self._settings = ReadSettings(block_bytes, max_future_skew_ms=None, clock=self.clock)
        self.reader = self.source.reader(strategy, self._settings)

    def poll(self, at_s: float, **seconds: Iterable[float]) -> Poll:
        """Polls at a time; before that, splits get records with the given event times."""
        self.clock.now_s = at_s
        for split, times in seconds.items():
            self.source.write(split, *(at(split, second) for second in times))
        return self.reader.poll()

    def restart(self) -> None:
        """Goes on with a new reader, from what a checkpoint holds of this one."""
        positions = {name: SplitPosition(*p) for name, p in self.reader.positions.items()}
        coder = GroupStateCoder()
        state = coder.decode(coder.encode(self.reader.state))
        self.reader.close()
        self.reader = self.source.reader(self._strategy, self._settings, positions, state)


def at(split: str, second: float) -> model.Event:
    """A record named by its split and its event time in seconds."""
    return model.Event("k", 1, round(second * 1_000), f"{split}@{second:g}")


def watermark_of(poll: Poll) -> int:
    """The group's exclusive watermark after a poll."""
    return exclusive(poll.state.watermark_ms)


def states_of(poll: Poll) -> dict[str, str]:
    """The state of each split after a poll."""
    return {split.split: split.state for split in poll.status.splits}
